/** Services of a host's config: one for each token and address that its agents had. */
import { posix } from 'node:path';
import { buildkite } from '../ci/buildkite/type.ts';
import type { Agent, PlainMap } from './agent.ts';

export interface ServiceNames {
  readonly services: Readonly<Record<string, PlainMap>>;
  readonly of: ReadonlyMap<Agent, string>;
}

export function serviceNames(agents: readonly Agent[]): ServiceNames {
  const services: Record<string, PlainMap> = {};
  const of = new Map<Agent, string>();
  const known = new Map<string, string>();
  // Where an agent has its token from may not show; then it is that of the others.
  const usual = agents.find(({ tokenFile }) => tokenFile !== null)?.tokenFile ?? null;
  const files = new Set(agents.map(({ tokenFile, endpoint }) => `${tokenFile ?? usual ?? ''} ${endpoint ?? ''}`));
  for (const agent of agents) {
    const { endpoint } = agent;
    const tokenFile = agent.tokenFile ?? usual;
    const key = `${tokenFile ?? ''} ${endpoint ?? ''}`;
    let name = known.get(key);
    if (name === undefined) {
      const own = files.size === 1 || tokenFile === null ? buildkite.type : nameOf(tokenFile);
      name = own;
      for (let n = 2; name in services; n++) name = `${own}-${n}`;
      known.set(key, name);
      services[name] = {
        type: buildkite.type,
        ...(endpoint === null ? {} : { endpoint }),
        token: { file: `/etc/onejob/${name}.token` },
      };
    }
    of.set(agent, name);
  }
  return { services, of };
}

function nameOf(file: string): string {
  const base = posix
    .basename(file)
    .replace(/\.(env|txt|token)$/i, '')
    .replace(/^\./, '');
  const leaf = /^(token|buildkite|agent|env)?$/i.test(base) ? posix.basename(posix.dirname(file)) : base;
  return (
    leaf
      .replaceAll(/[^A-Za-z0-9_-]+/g, '-')
      .replace(/^[-_]+/, '')
      .slice(0, 24) || buildkite.type
  );
}
