/**
 * For tests of the service: a stand-in for Azure DevOps, a clock that both sides share and that is moved by hand, and managers that
 * start and end on state directories of their own. After each test everything that was written or said is searched for secrets.
 */

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, expect } from 'vitest';
import { OnejobError, toFailure } from '../../src/base/errors.ts';
import type { HandAgent } from '../standins/azure-devops/hand-agent.ts';
import { type AzureDevOps, type StandInOptions, startAzureDevOps } from '../standins/azure-devops/standin.ts';
import { scratch } from '../support/scratch.ts';
import { type Manager, type ManagerOptions, openManager } from './azure-manager.ts';
import { type HandClock, handClock } from './core.ts';

export interface World {
  readonly azure: AzureDevOps;
  /** Id of the agent pool `gpu`. */
  readonly pool: number;
  readonly clock: HandClock;
  /** Holds the PAT of the stand-in. */
  readonly tokenFile: string;
  /** Everything that people could have read: log lines, events, failures. */
  readonly said: string[];
  /** Values that must stand nowhere. */
  readonly secrets: string[];
  manager(o?: ManagerOptions): Manager;
  /** Until nothing continues that needs no time. */
  quiet(): Promise<void>;
  /** Lets time pass, and everything happen that happens in it. */
  pass(ms: number): Promise<void>;
  /** The error that a promise fails with. */
  failure(promise: Promise<unknown>): Promise<OnejobError>;
  /** How often the service was asked since `from` (a length of its log). */
  asked(from: number, route?: string, method?: string): number;
  /** Names of the entries in a pool. */
  names(pool?: number): string[];
}

export interface WorldOptions extends StandInOptions {
  /** Part of the address of requests that are not waited for, since nobody answers them. */
  readonly notAwaited?: string;
}

/** Opens worlds: an empty one, or one with a manager in it. */
export interface Worlds {
  (o?: WorldOptions): Promise<World>;
  one(o?: OneOptions): Promise<{ readonly world: World; readonly one: Manager }>;
  /** It looks at the service. */
  watching(o?: OneOptions): Promise<{ readonly world: World; readonly one: Manager }>;
  /** Its agent `a1` is online, and nobody looks. */
  online(o?: OneOptions): Promise<{ readonly world: World; readonly one: Manager; readonly agent: HandAgent }>;
}

type OneOptions = WorldOptions & Omit<ManagerOptions, 'dir'>;

/** Registers what happens after each test; the answer opens a world for one. */
export function worlds(): Worlds {
  const closing: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of closing.splice(0)) await close();
  });
  const open = async (options: WorldOptions = {}): Promise<World> => {
    const { world, close } = await openWorld(options);
    closing.push(close);
    return world;
  };
  const withOne = async ({ config, pools, opened, pat, ...options }: OneOptions = {}) => {
    const world = await open(options);
    return { world, one: world.manager({ config, pools, opened, pat }) };
  };
  return Object.assign(open, {
    one: withOne,
    async watching(o?: OneOptions) {
      const made = await withOne(o);
      await made.one.watch();
      return made;
    },
    async online(o?: OneOptions) {
      const made = await withOne(o);
      return { ...made, agent: await made.one.start('a1') };
    },
  });
}

async function openWorld({ notAwaited, ...options }: WorldOptions) {
  const clock = handClock(Date.now());
  const day = 86_400_000;
  const azure = await startAzureDevOps({ now: () => clock.wall(), sessionMs: day, tokenMs: day, pollHoldMs: 10, ...options });
  const pool = azure.addPool('gpu', { autoUpdate: false });
  const files = scratch();
  const tokenFile = join(files.path, 'pat');
  writeFileSync(tokenFile, `${azure.pat}\n`, { mode: 0o600 });
  const said: string[] = [];
  const secrets = [azure.pat, azure.principal.secret];
  const managers: Manager[] = [];
  let inFlight = 0;
  const counted: typeof fetch = async (...sent) => {
    if (notAwaited !== undefined && String(sent[0]).includes(notAwaited)) return fetch(...sent);
    inFlight += 1;
    try {
      const answer = await fetch(...sent);
      const body = await answer.arrayBuffer();
      return new Response(body.byteLength === 0 ? null : body, { status: answer.status, headers: answer.headers });
    } finally {
      inFlight -= 1;
    }
  };

  const world: World = {
    azure,
    pool,
    clock,
    tokenFile,
    said,
    secrets,
    manager(o = {}) {
      const one = openManager(world, counted, { dir: join(files.path, `state${managers.length}`), ...o });
      managers.push(one);
      return one;
    },
    async quiet() {
      // What follows a look continues beside it, and reads files between two calls. A look that waits for the clock, as the service
      // has asked for, cannot be told from one that waits for a file on a busy machine: so it is given more time.
      let since = performance.now();
      const isCalm = (rounds: number): boolean =>
        managers.some((one) => one.isLooking()) ? rounds >= 40 && performance.now() - since >= 30 : rounds >= 8;
      for (let calm = 0; !isCalm(calm); calm += 1) {
        await stat('/');
        await new Promise((resolve) => setImmediate(resolve));
        if (inFlight === 0) continue;
        calm = -1;
        since = performance.now();
      }
    },
    async pass(ms) {
      const end = clock.now() + ms;
      await world.quiet();
      for (let next = clock.next(); next !== null && clock.now() + next <= end; next = clock.next()) {
        clock.advance(next);
        await world.quiet();
      }
      clock.advance(end - clock.now());
      await world.quiet();
    },
    async failure(promise) {
      try {
        await promise;
      } catch (error) {
        const { code, message } = toFailure(error);
        said.push(`${code} ${message}`);
        expect(error).toBeInstanceOf(OnejobError);
        return error as OnejobError;
      }
      throw new Error('it did not fail');
    },
    asked: (from, route, method) =>
      azure.log
        .slice(from)
        .filter((one) => one.identity !== 'agent' && one.identity !== 'job')
        .filter((one) => (route === undefined || one.route === route) && (method === undefined || one.method === method)).length,
    names: (id = pool) => azure.agents(id).map(({ name }) => name),
  };

  return {
    world,
    async close() {
      await world.quiet();
      for (const one of managers) one.stop();
      await azure[Symbol.asyncDispose]();
      const forms = secrets.flatMap((one) => [one, Buffer.from(one).toString('base64'), Buffer.from(`:${one}`).toString('base64')]);
      const states = readdirSync(files.path, { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
      const written = states
        .map((file) => join(file.parentPath, file.name))
        .filter((path) => path !== tokenFile)
        .map((path) => [path, readFileSync(path, 'latin1')] as const);
      files[Symbol.dispose]();
      for (const secret of forms) {
        for (const line of said) expect(line).not.toContain(secret);
        for (const [path, text] of written) expect(text.includes(secret), `a secret in ${path}`).toBe(false);
      }
      expect(azure.log.filter(({ leaked }) => leaked)).toEqual([]);
      expect(azure.strays).toEqual([]);
    },
  };
}
