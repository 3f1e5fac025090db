/** A new organisation or collection: its settings, its secrets, and nothing in it yet. */
import { createHash, randomBytes, randomInt, randomUUID } from 'node:crypto';
import { afterRealTime } from '../kit/door.ts';
import type { World } from './state.ts';
import type { StandInOptions } from './types.ts';

/** What is there before the first pool. `origin`: `http://host:port`. */
export function createWorld(o: StandInOptions, origin: string, faults: World['faults'], emit: World['emit']): World {
  const hosted = o.collectionPath === undefined;
  const base = (o.collectionPath ?? 'acme')
    .replace(/^\/+|\/+$/g, '')
    .split('/')
    .map(encodeURIComponent)
    .join('/');
  let last = 0;
  return {
    origin,
    base,
    hosted,
    pollHoldMs: o.pollHoldMs ?? 50_000,
    lockMs: o.lockMs ?? 10 * 60_000,
    sessionMs: o.sessionMs ?? 5 * 60_000,
    tokenMs: o.tokenMs ?? 60 * 60_000,
    requeueUnreceived: o.requeueUnreceived ?? false,
    faults,
    now: o.now ?? Date.now,
    after: o.after ?? afterRealTime,
    remembered: o.remembered ?? Number.POSITIVE_INFINITY,
    next: () => ++last,
    emit,
    pools: new Map(),
    sessions: new Map(),
    requests: new Map(),
    open: new Set(),
    plans: new Map(),
    builds: new Map(),
    pats: new Map(),
    principal: {
      tenant: randomUUID(),
      client: randomUUID(),
      secret: `stand-in~${randomBytes(24).toString('base64url')}`,
    },
    tokens: new Map(),
    packages: ['linux-x64', 'linux-arm64'].flatMap((platform) =>
      ['5.278.0', '4.275.0'].map((version) => ({
        platform,
        version,
        filename: `vsts-agent-${platform}-${version}.tar.gz`,
        file: null,
        sha256: createHash('sha256')
          .update(platform + version)
          .digest('hex'),
      })),
    ),
  };
}

/** The shape by which clients and scanners know a PAT: 76 characters, `AZDO`, 4 characters. */
export function newPat(): string {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';
  const some = (count: number) => Array.from({ length: count }, () => letters[randomInt(letters.length)]).join('');
  return `${some(76)}AZDO${some(4)}`;
}
