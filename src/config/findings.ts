/** What is found in a config besides what its keys may hold: of its secrets, and of pools that give something of their sandboxes away. */
import { serviceType, tellingOrigin } from '../ci/types.ts';
import { OnejobError } from '../errors.ts';
import type { Finding } from '../finding.ts';
import { checkSecret, describeSecret, readSecret, type SecretReference, type Variables } from '../secrets/reference.ts';
import type { Writing } from './check.ts';
import type { Config, PoolConfig } from './config.ts';
import { engineSocketIn } from './host-places.ts';
import type { Problem } from './problem.ts';

/** Every secret of a config, with the key it stands at. */
export function secretsOf(config: Pick<Config, 'secretsKey' | 'services'>): [string, SecretReference][] {
  const found: [string, SecretReference][] = config.secretsKey === null ? [] : [['secrets.key', config.secretsKey]];
  for (const service of config.services)
    for (const [key, secret] of serviceType(service.type).secrets(service)) found.push([`services.${service.name}.${key}`, secret]);
  return found;
}

/** What is wrong with them where they are named. `now`: wall clock, ms since the epoch. */
export async function checkSecrets(config: Config, writing: Writing, now: number): Promise<Problem[]> {
  const problems: Problem[] = [];
  for (const [key, secret] of secretsOf(config)) {
    const path = [...key.split('.'), secret.kind];
    const { problem, warnings } = await checkSecret(secret, now);
    const at = { ...writing.locate(path), key: `${key}.${secret.kind}` };
    if (problem !== null) problems.push({ ...at, level: 'error', message: problem });
    for (const warning of warnings) problems.push({ ...at, level: 'warning', message: warning });
    const wrong =
      problem === null && key === 'secrets.key' && tellingOrigin(config.services).size > 0 ? await keysProblem(secret) : null;
    if (wrong !== null) problems.push({ ...at, level: 'error', message: wrong });
  }
  return problems;
}

/** What is wrong in a key file, by its lines and never by what stands there: else the first job that brings a secret would find it. */
async function keysProblem(secret: SecretReference): Promise<string | null> {
  const { parseKeys } = await import('../secrets/keys.ts');
  try {
    await parseKeys(await readSecret(secret), describeSecret({ ...secret, expires: null }));
    return null;
  } catch (error) {
    if (!(error instanceof OnejobError)) throw error;
    return error.message.replace(/\.$/, '');
  }
}

/**
 * What `doctor` and `status` say of secrets while a daemon runs: a date comes nearer, a file is removed.
 * One finding for each secret that is all right, and one for each thing that is not. `now`: wall clock, ms since the epoch.
 * What is in use goes on with the value it has, so a file that is gone is a warning here, where it keeps a daemon from starting.
 */
export async function secretFindings(
  config: Pick<Config, 'secretsKey' | 'services'>,
  now: number,
  variables?: Variables,
): Promise<Finding[]> {
  const found = await Promise.all(
    secretsOf(config).map(async ([subject, secret]): Promise<Finding[]> => {
      const { problem, warnings } = await checkSecret(secret, now, variables);
      const wrong = [...(problem === null ? [] : [problem]), ...warnings];
      if (wrong.length === 0) return [{ level: 'ok', subject, message: `It is present: ${describeSecret(secret)}.`, hint: null }];
      return wrong.map((text) => finding(subject, text));
    }),
  );
  return found.flat();
}

/** `expires on 2030-01-31, in a day; create a new one in time`: what is wrong, and after the semicolon what to do. */
function finding(subject: string, text: string): Finding {
  const [what = '', todo] = text.split('; ');
  const about = /^(expire|is )/.test(what) ? 'It' : 'Its';
  const message = what.startsWith('/') ? `${what}.` : `${about} ${what}.`;
  return {
    level: 'warning',
    subject,
    message,
    hint: todo === undefined ? null : `${todo.slice(0, 1).toUpperCase()}${todo.slice(1)}.`,
  };
}

/**
 * What `doctor` says of pools that give something of their sandboxes away, although it is written down: one warning for each pool and
 * thing that it gives away.
 */
export function weakenedFindings({ pools, services }: Pick<Config, 'pools' | 'services'>): Finding[] {
  const knowsTrust = tellingOrigin(services);
  return pools.flatMap((pool) =>
    given(pool, knowsTrust.has(pool.service) ? 'its trusted jobs' : 'its jobs').map(([key, what]) => ({
      level: 'warning' as const,
      subject: `pool ${pool.name}`,
      message: `It sets "${key}": ${what}.`,
      hint: `Remove "${key}" if jobs can do without it; otherwise set it only in a separate pool with its own queue.`,
    })),
  );
}

function given({ recipe, isolation, service }: PoolConfig, whose: string): (readonly [string, string])[] {
  const { privileged, pidHost, seccompUnconfined } = recipe.unsafe;
  const rows: readonly (readonly [string, string, boolean])[] = [
    ['unsafe: { privileged: true }', `${whose} can do everything on this host, and use all its devices`, privileged],
    ['unsafe: { pid_host: true }', `${whose} see the processes of this host, other jobs and their environment among them`, pidHost],
    ['unsafe: { seccomp_unconfined: true }', `${whose} may use every system call of this host's kernel`, seccompUnconfined],
    ['network: host', `${whose} can reach everything that listens on this host`, recipe.network === 'host'],
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
