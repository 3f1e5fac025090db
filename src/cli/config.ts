/** `onejob config check` and `config show`: needs no daemon. */
import { configCheck, configShow, formatShown } from '../config/explain.ts';
import { checkConfig } from '../config/load.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

/** 1 when something is wrong with the config. */
export async function lookAtConfig({ context, flags, output }: Session, what: 'check' | 'show'): Promise<number> {
  const checked = await checkConfig({
    flags: { config: flags.config ?? undefined, stateDir: flags.stateDir ?? undefined, socket: flags.socket ?? undefined },
    env: context.environment,
    cwd: context.cwd,
    secrets: what === 'check' ? 'check' : 'skip',
  });
  const { ok, text } = configCheck(checked);
  if (what === 'check') {
    if (output.json) await output.value({ ok, errors: checked.errors, warnings: checked.warnings });
    else await output.print(text.trimEnd());
  } else if (output.json) await output.value(configShow(checked));
  else await output.print(formatShown(configShow(checked)).trimEnd());
  // What is shown of a config with problems is not what would be run: say so where it cannot be taken for the config.
  if (what === 'show' && !ok) output.say('the config has problems, so no daemon would start with it; see "onejob config check"');
  return ok ? exitCodes.ok : exitCodes.failed;
}
