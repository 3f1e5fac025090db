/** `onejob config check` and `config show`, which need no daemon, and `config apply`. */

import { OnejobError } from '../base/errors.ts';
import { acceptedOutsiders } from '../config/check-trust.ts';
import { mayBeNvidia } from '../config/conditions.ts';
import { configCheck, configShow, formatShown } from '../config/explain.ts';
import { type HostLook, lookAtHost } from '../config/host-look.ts';
import { type Checked, checkConfig } from '../config/load.ts';
import { checkCommand } from '../config/paths.ts';
import { hasImages } from '../config/types.ts';
import { formatProblem, type Problem } from '../schema/problem.ts';
import { connect, reconnect } from './connect.ts';
import { exitCodes } from './exit.ts';
import { configSource, type Session } from './session.ts';
import { printable } from './text.ts';
import { types } from './types.ts';

export interface CheckFlags {
  /** false: secrets need not exist, as for the config of another host. */
  readonly secrets: boolean;
}

/** 1 when the config has an error. */
export async function checkConfigFile(session: Session, { secrets }: CheckFlags): Promise<number> {
  const { output } = session;
  const found = await check(session, secrets ? lookAtHost : null);
  const checked = { ...found, errors: [...found.errors, ...(secrets ? await unfitPools(session, found) : [])] };
  const { ok, text } = configCheck(checked);
  await output.result({ ok, errors: checked.errors, warnings: checked.warnings }, () => [text.trimEnd()]);
  const places = checked.config.secrets.map(([key]) => `${key}.`);
  const missing = checked.errors.some((problem) => places.some((place) => problem.key.startsWith(place)));
  if (missing) output.say('if this host does not have these secrets, use --no-secrets to check everything else');
  else if (!secrets && places.length > 0) output.say('its secrets were not checked');
  return ok ? exitCodes.ok : exitCodes.failed;
}

/** What pools ask for and this host cannot give. */
async function unfitPools(session: Session, checked: Checked): Promise<Problem[]> {
  const { config, paths } = checked;
  const unable: Problem[] = [];
  for (const { name, devices } of config.pools.filter(({ recipe }) => recipe.containers !== undefined)) {
    const why = await session.context.host.containersObstacle(mayBeNvidia(devices));
    const message = `is true, but agents of this host can have no engine: ${why}`;
    if (why !== null) unable.push(problemIn(paths, `pools.${name}.containers`, message));
  }
  for (const { name, recipe, trust } of config.pools) {
    const wanted = { oci_runtime: recipe.ociRuntime, 'trust.oci_runtime': trust.oci_runtime };
    for (const [key, runtime] of Object.entries(wanted)) {
      const why = runtime == null ? null : await session.context.host.ociObstacle(runtime);
      if (why !== null) unable.push(problemIn(paths, `pools.${name}.${key}`, `is ${runtime}, but ${why}`));
    }
  }
  return [...(await unguardedPools(session, checked)), ...unable];
}

function problemIn(paths: Checked['paths'], key: string, message: string): Problem {
  return { source: paths.config?.path ?? '', line: null, column: null, level: 'error', key, message };
}

/** Pools whose untrusted jobs this host could not keep away from itself. */
async function unguardedPools({ context }: Session, { config, paths }: Checked): Promise<Problem[]> {
  const wanting = config.pools.filter(
    ({ service, runtime, recipe, trust }) =>
      config.origins.has(service) &&
      hasImages({ runtime, recipe }) &&
      trust.network === 'internet' &&
      acceptedOutsiders(trust).length > 0,
  );
  const why = wanting.length === 0 ? null : await context.host.internetObstacle();
  if (why === null) return [];
  const ways =
    'write trust: { forks: refuse, others: refuse }, or trust: { network: … } with a network that reaches nothing secret';
  const message = `is "internet", which untrusted jobs cannot use on this host: ${why}; ${ways}`;
  return wanting.map(({ name }) => problemIn(paths, `pools.${name}.trust.network`, message));
}

/** 1 when the config has an error. */
export async function showConfig(session: Session, { changed = false }: { readonly changed?: boolean }): Promise<number> {
  const { output } = session;
  const checked = await check(session, null);
  const shown = configShow(checked).filter(({ origin }) => !changed || origin !== 'default');
  await output.result(shown, () => [formatShown(shown).trimEnd()]);
  if (configCheck(checked).ok) return exitCodes.ok;
  // A daemon would not run what is shown, and standard output must contain only the config.
  output.say(`the config is invalid, so no daemon can start with it; see "${checkCommand(checked.paths.config)}"`);
  return exitCodes.failed;
}

/** ms that the daemon may take to run with another config. */
const applyPatience = 120_000;

/** 1 when the daemon does not run with the config. */
export async function applyConfig(session: Session, { dryRun = false }: { readonly dryRun?: boolean }): Promise<number> {
  const { output } = session;
  const connection = await connect(session, { start: false, named: true });
  try {
    const { applied, changes, warnings, stranded } = await connection.client.call('POST /v1/config/apply', {
      body: { dryRun },
    });
    if (!output.json) for (const warning of warnings) output.say(formatProblem(warning));
    if (applied) {
      output.progress('waiting until the daemon runs with it');
      await connection.gone;
      const { signal } = new AbortController();
      const again = await reconnect(session, connection.client, { temporary: false, patience: applyPatience, signal });
      const { configChanged } = await again.client.status().finally(() => again.close());
      output.progress(null);
      if (configChanged !== null) throw new OnejobError('E_CONFIG', `The daemon failed to load it. ${configChanged}`);
    }
    const lead = applied ? 'Applied:' : 'It would change:';
    const lines = () => [
      ...(changes.length === 0 ? ['Nothing to apply.'] : [lead, ...changes.map((change) => `  ${printable(change)}`)]),
      ...stranded.map((line) => output.colors.yellow(`! ${printable(line)}`)),
    ];
    await output.result({ applied, changes, warnings, stranded }, lines);
    return exitCodes.ok;
  } finally {
    connection.close();
  }
}

function check(session: Session, look: HostLook | null): Promise<Checked> {
  return checkConfig({ types, ...configSource(session), look });
}
