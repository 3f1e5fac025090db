/** Findings about the secrets of a config, and about pools that weaken their sandboxes. */

import { type Finding, fine, warning } from '../base/finding.ts';
import type { Variables } from '../base/variables.ts';
import { checkSecret, describeSecret } from '../schema/secret-reference.ts';
import { acceptedOutsiders } from './check-trust.ts';
import type { Config, PoolConfig } from './config.ts';
import { engineSocketIn } from './host-places.ts';

/** The parts of a config that refer to secrets. */
export type WithSecrets = Pick<Config, 'secrets' | 'origins'>;

/** `present`: nothing is wrong. `open`: others can use it. */
export type SecretState = 'present' | 'gone' | 'expires' | 'expired' | 'open';

/**
 * One for each sound secret, and one for each problem. A running daemon keeps the values that it has read, so a missing file is
 * only a warning here. `now`: wall clock, ms since the epoch.
 */
export async function secretStates(
  { secrets }: Pick<Config, 'secrets'>,
  now: number,
  variables?: Variables,
): Promise<{ readonly state: SecretState; readonly finding: Finding }[]> {
  const found = await Promise.all(
    secrets.map(async ([subject, secret]) => {
      const { problem, warnings } = await checkSecret(secret, now, variables);
      const wrong = warnings.map(({ state, text }) => ({ state, finding: finding(subject, text) }));
      if (problem !== null) return [{ state: 'gone' as const, finding: finding(subject, problem) }, ...wrong];
      if (wrong.length > 0) return wrong;
      return [{ state: 'present' as const, finding: fine(subject, `It is present: ${describeSecret(secret)}.`) }];
    }),
  );
  return found.flat();
}

/** Findings of `doctor` and `status` about secrets: see `secretStates`. */
export async function secretFindings(config: Pick<Config, 'secrets'>, now: number, variables?: Variables): Promise<Finding[]> {
  return (await secretStates(config, now, variables)).map((one) => one.finding);
}

/** `text`: the problem and, after a semicolon, what to do: `expires on 2030-01-31, in a day; create a new one in time`. */
function finding(subject: string, text: string): Finding {
  const [what = '', todo] = text.split('; ');
  const about = /^(expire|is )/.test(what) ? 'It' : 'Its';
  const message = what.startsWith('/') ? `${what}.` : `${about} ${what}.`;
  return warning(subject, message, todo === undefined ? null : `${todo.slice(0, 1).toUpperCase()}${todo.slice(1)}.`);
}

/** Findings of `doctor` about pools that weaken their sandboxes: one warning for each such key of a pool. */
export function weakenedFindings({ pools, origins: knowsTrust }: Pick<Config, 'pools' | 'origins'>): Finding[] {
  return pools.flatMap((pool) =>
    given(pool, knowsTrust.has(pool.service) ? 'its trusted jobs' : 'its jobs').map(([key, what]) => {
      const hint = `Remove "${key}" if jobs do not need it; otherwise set it only in a separate pool with its own queue.`;
      return warning(`pool ${pool.name}`, `It sets "${key}": ${what}.`, hint);
    }),
  );
}

function given({ recipe, isolation, service, trust }: PoolConfig, whose: string): [key: string, what: string][] {
  const { privileged, pidHost, seccompUnconfined } = recipe.unsafe;
  const isExposed = isolation === 'none' && service !== 'own';
  const sockets = recipe.mounts.filter(({ cache, host }) => cache === null && engineSocketIn(host) !== null);
  const rows: (readonly [isSet: boolean, key: string, what: string])[] = [
    [privileged, 'unsafe: { privileged: true }', `${whose} can do everything on this host, and use all its devices`],
    [pidHost, 'unsafe: { pid_host: true }', `${whose} see the processes of this host, other jobs and their environment among them`],
    [seccompUnconfined, 'unsafe: { seccomp_unconfined: true }', `${whose} may use every system call of this host's kernel`],
    [
      recipe.containers !== undefined && trust.containers === 'allow' && acceptedOutsiders(trust).length > 0,
      'trust: { containers: allow }',
      'untrusted jobs may make user namespaces, with which they reach more of the kernel',
    ],
    [recipe.network === 'host', 'network: host', `${whose} can reach everything that listens on this host`],
    [isExposed, 'isolation: none', `credentials of service ${service} may be read by other jobs of this host`],
    ...sockets.map(({ host }) => [true, `volumes: ["${host}:…"]`, `${whose} can do everything on this host`] as const),
  ];
  return rows.flatMap(([isSet, key, what]) => (isSet ? [[key, what]] : []));
}
