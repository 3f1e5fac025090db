/** What `doctor` says of pools that give something of their sandboxes away, although it is written down. */
import { tellingOrigin } from '../ci/types.ts';
import type { Finding } from '../runtimes/runtime.ts';
import type { Config, PoolConfig } from './config.ts';
import { engineSocketIn } from './host-places.ts';

/** One warning for each pool and thing that it gives away; none where nothing is. */
export function weakenedFindings({ pools, services }: Pick<Config, 'pools' | 'services'>): Finding[] {
  const knowsTrust = tellingOrigin(services);
  return pools.flatMap((pool) =>
    given(pool, knowsTrust.has(pool.service) ? 'its trusted jobs' : 'its jobs').map(([key, what]) => ({
      level: 'warning' as const,
      subject: `pool ${pool.name}`,
      message: `It has "${key}": ${what}.`,
      hint: `Remove "${key}" where jobs can do without; else give it to a pool of its own with a queue of its own.`,
    })),
  );
}

function given({ recipe, isolation, service }: PoolConfig, whose: string): (readonly [string, string])[] {
  const { privileged, pidHost, seccompUnconfined } = recipe.unsafe;
  const rows: readonly (readonly [string, string, boolean])[] = [
    ['unsafe: { privileged: true }', `${whose} can do everything on this host, and use all its devices`, privileged],
    ['unsafe: { pid_host: true }', `${whose} see the processes of this host, other jobs and their environment among them`, pidHost],
    ['unsafe: { seccomp_unconfined: true }', `${whose} may use every system call of this host's kernel`, seccompUnconfined],
    ['network: host', `${whose} reach all that listens on this host`, recipe.network === 'host'],
    [
      'isolation: none',
      `credentials of service ${service} may be read by other jobs of this host`,
      isolation === 'none' && service !== 'own',
    ],
  ];
  const sockets = recipe.mounts
    .filter(({ cache, host }) => cache === null && engineSocketIn(host) !== null)
    .map(({ host }) => [`volumes: ["${host}:…"]`, `${whose} can do everything on this host`] as const);
  return [...rows.flatMap(([key, what, is]) => (is ? [[key, what] as const] : [])), ...sockets];
}
