/** What a config asks for that this version cannot run. It is understood and checked, but never quietly left out. */

import type { Writing } from './check.ts';
import type { Config, PoolConfig } from './config.ts';
import type { Path, Problem } from './problem.ts';
import { formatPath } from './problem.ts';

/** One problem per feature that is used; empty when `up` can run all of it. `writing` knows the lines. */
export function notYet(config: Config, writing?: Writing): Problem[] {
  const problems: Problem[] = [];
  const nowhere = { source: config.path ?? 'default', line: null, column: null };
  const add = (path: Path, what: string) => {
    const shared = path[0] === 'pools' ? ['defaults', ...path.slice(2)] : path;
    const place = writing?.locate(!writing.has(path) && writing.has(shared) ? shared : path, 'key') ?? nowhere;
    problems.push({ ...place, level: 'error', key: formatPath(path), message: `${what}: not yet possible in this version` });
  };
  for (const service of config.services) {
    if (service.type === 'buildkite') add(['services', service.name], `agents for ${service.type}`);
  }
  if (config.secretsKey !== null) add(['secrets', 'key'], 'encrypted secrets');
  for (const pool of config.pools) for (const [key, what] of ofPool(pool)) add(['pools', pool.name, key], what);
  return problems;
}

function ofPool(pool: PoolConfig): [string, string][] {
  const found: [string, string][] = [];
  if (pool.trust !== null) found.push(['trust', 'trust rules']);
  if (pool.isolation === 'none') found.push(['isolation', 'giving up isolation']);
  return found;
}
