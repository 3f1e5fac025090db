/**
 * `onejob filter`: passes calls of jobs to their service. Only the daemon starts it, or the filter of another version. It ends when
 * nobody needs it any more, not with the terminal or the daemon that started it.
 */

import { createLog } from '../base/log.ts';
import { cacheRules, cacheRulesOf } from '../ci/filter/cache-calls.ts';
import type { Certificate } from '../ci/filter/certificates.ts';
import { keepListening, predecessor } from '../ci/filter/listeners.ts';
import { OneTimeFiles } from '../ci/filter/one-time-files.ts';
import type { Rules } from '../ci/filter/rules.ts';
import { installationKey, Seal } from '../ci/filter/seal.ts';
import { FilterServer } from '../ci/filter/server.ts';
import type { ServiceType } from '../ci/service-type.ts';
import { StoredCaches, storedFolder } from '../ci/stored/store.ts';
import { serviceTypes } from '../ci/types.ts';
import { subdirectory } from '../store/directory.ts';
import { systemClock } from '../system/system-clock.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import type { Session } from './session.ts';

/** ms for calls under way when another filter has taken over. Long uploads and followed logs are repeated by the agent. */
const callPatience = 30_000;

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
  const rules = serviceTypes.map(async ({ type, filterRules }: ServiceType) => [type, await filterRules?.()] as const);
  const filter = new FilterServer({
    seal: new Seal(installationKey(dir)),
    identity: { key: installationKey(dir, 'proof.key'), version },
    left: new OneTimeFiles(dir),
    caches: new StoredCaches(storedFolder(flags.stateDir), systemClock.wall),
    rules: new Map([
      [cacheRulesOf, cacheRules],
      ...(await Promise.all(rules)).flatMap(([type, one]): [string, Rules][] => (one === undefined ? [] : [[type, one]])),
    ]),
    proxies: context.environment.proxies,
    clock: systemClock,
    log,
  });
  const listenerParts = {
    version,
    stateDir: flags.stateDir,
    dir,
    server: (tls: Certificate | null) => filter.server(tls),
    clock: systemClock,
    log,
  };
  // What a job is given once would be lost with its call.
  if (await keepListening(listenerParts, asked.signal, predecessor())) await filter.drain(callPatience);
  filter.close();
  offSignal();
  return exitCodes.ok;
}
