/** What a config says about this host, looked at: folders of its pools, also on file servers, and secrets. For a daemon, not for clients. */
import { OnejobError } from '../base/errors.ts';
import type { Problem } from '../schema/problem.ts';
import { checkSecret, readSecret, type SecretReference, secretPlace } from '../schema/secret-reference.ts';
import { slotNames } from '../schema/template.ts';
import { isNamed } from '../schema/volumes.ts';
import { webhookProblem } from '../schema/webhook.ts';
import { lookAt } from '../system/file-server.ts';
import { type Guarded, pathsOf } from './check-mounts.ts';
import type { Writing } from './checking.ts';
import type { Config } from './config.ts';
import type { WithSecrets } from './findings.ts';

type LookedAt = Omit<Guarded, 'places'> & Pick<Config, 'pools' | 'host'>;

/** How loading a config looks at the host that it is for. */
export interface HostLook {
  /** Where host paths of its pools and its own places lead. */
  places(config: LookedAt): Promise<Config['places']>;
  /** Problems of secrets, at their keys. `now`: wall clock, ms since the epoch. */
  secrets(config: WithSecrets, writing: Writing, now: number): Promise<Problem[]>;
}

export const lookAtHost: HostLook = { places: lookAtPlaces, secrets: checkSecrets };

/** Looks once, for the check and for the agents, at all folders of this host that their sandboxes have, and at what none may have. */
function lookAtPlaces(config: LookedAt): Promise<Config['places']> {
  const nameOf = slotNames(config);
  const secrets = config.secrets.flatMap(([, secret]) => (secret.kind === 'file' ? [secret.path] : []));
  return lookAt([
    ...secrets,
    config.stateDir,
    config.socket,
    ...config.pools.flatMap((pool) => {
      const folders = [pool.hooks, pool.plugins].filter((folder) => folder !== null);
      const mounts = pool.recipe.mounts.filter(({ cache }) => !isNamed(cache)).map(({ host }) => host);
      return [...folders, ...mounts].flatMap((path) => pathsOf(pool, path, nameOf));
    }),
  ]);
}

/** Problems of secrets, at their keys. `now`: wall clock, ms since the epoch. */
async function checkSecrets({ secrets, origins }: WithSecrets, writing: Writing, now: number): Promise<Problem[]> {
  const problems: Problem[] = [];
  // At once: each waits for its file server.
  const checked = await Promise.all(secrets.map(async ([key, secret]) => ({ key, secret, ...(await checkSecret(secret, now)) })));
  for (const { key, secret, problem, isAway, warnings } of checked) {
    const path = [...key.split('.'), secret.kind];
    const at = { ...writing.locate(path), key: `${key}.${secret.kind}` };
    // It is read again when it is needed.
    if (problem !== null) problems.push({ ...at, level: isAway ? 'warning' : 'error', message: problem });
    for (const { text } of warnings) problems.push({ ...at, level: 'warning', message: text });
    if (problem !== null) continue;
    const isUsed = key === 'notify.webhook' || (key === 'secrets.key' && origins.size > 0);
    const wrong = isUsed ? await contentProblem(key, secret) : null;
    if (wrong !== null) problems.push({ ...at, level: 'error', message: wrong });
  }
  return problems;
}

/** The problem of a key file or a webhook, which otherwise its first use would find. Never quotes what is secret. */
async function contentProblem(key: string, secret: SecretReference): Promise<string | null> {
  try {
    const value = await readSecret(secret);
    if (key === 'notify.webhook') return webhookProblem(value);
    const { parseKeys } = await import('../secrets/keys.ts');
    await parseKeys(value, secretPlace(secret));
    return null;
  } catch (error) {
    if (!(error instanceof OnejobError)) throw error;
    return error.message.replace(/\.$/, '');
  }
}
