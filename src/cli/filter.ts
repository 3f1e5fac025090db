/**
 * `onejob filter`: passes calls of jobs to their service. Only the daemon starts it. It ends when nobody needs it any
 * more, not with the terminal or the daemon that started it.
 */
import { keepListening } from '../ci/filter/filter.ts';
import { createLeft } from '../ci/filter/left.ts';
import { createSeal, installationKey } from '../ci/filter/seal.ts';
import { createFilterServer } from '../ci/filter/server.ts';
import { serviceTypes } from '../ci/types.ts';
import { systemClock } from '../clock.ts';
import { createLog } from '../log.ts';
import { subdirectory } from '../store/directory.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import type { Session } from './session.ts';

/** Resolves once it has ended. */
export async function runFilter({ context, flags, version }: Session): Promise<number> {
  if (flags.stateDir === undefined) throw wrongUsage('The filter needs --state-dir.', '"onejob up" starts the filter itself.');
  const dir = subdirectory(flags.stateDir, 'filter');
  const log = createLog({ json: context.stderr.isTTY !== true, stream: context.stderr });
  const asked = new AbortController();
  // Ctrl-C at the daemon's terminal, and its end, must not end the filter.
  process.on('SIGHUP', () => {});
  const offSignal = context.process.onSignal((signal) => {
    if (signal === 'SIGTERM') asked.abort();
  });
  const rules = serviceTypes.map(async ({ type, filterRules }) => [type, await filterRules?.()] as const);
  const filter = createFilterServer({
    seal: createSeal(installationKey(dir)),
    left: createLeft(dir),
    rules: new Map((await Promise.all(rules)).flatMap(([type, one]) => (one === undefined ? [] : [[type, one]]))),
    proxies: context.environment.proxies,
    clock: systemClock,
    log,
  });
  await keepListening(dir, { version, server: () => filter.server(), clock: systemClock, log }, asked.signal);
  filter.close();
  offSignal();
  return exitCodes.ok;
}
