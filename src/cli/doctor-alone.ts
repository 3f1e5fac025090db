/** `onejob doctor` without a daemon: what keeps a daemon from starting, and what it would run jobs in. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FindingView } from '../api/schema.ts';
import { systemClock } from '../clock.ts';
import { secretFindings, weakenedFindings } from '../config/findings.ts';
import { checkConfig } from '../config/load.ts';
import { formatProblem } from '../config/problem.ts';
import { type OnejobError, toFailure } from '../errors.ts';
import { fine, problem, warning } from '../finding.ts';
import { chooseRuntimes } from '../runtimes/choose.ts';
import { configSource, type Session } from './session.ts';

/** ms for all runtimes to answer. */
const patience = 60_000;

/** `absent`: the error about the missing daemon. */
export async function doctorAlone(session: Session, absent: OnejobError): Promise<FindingView[]> {
  const source = configSource(session);
  const { config, errors, warnings } = await checkConfig(source);
  return [
    warning('daemon', absent.message, absent.hint),
    ...errors.map((each) => problem('config', formatProblem(each))),
    ...warnings.map((each) => warning('config', formatProblem(each))),
    ...(await secretFindings(config, Date.now())),
    ...(errors.length > 0 ? [] : [...weakenedFindings(config), ...(await runtimeFindings())]),
    {
      ...fine('not checked', 'Only a daemon checks slots, images, caches, GPUs and CI services.'),
      hint: 'Start one with "onejob up"; for GPUs alone, type "onejob gpus".',
    },
  ];

  async function runtimeFindings(): Promise<FindingView[]> {
    // The process runtime makes folders, which must not be in the state directory.
    const stateDir = await mkdtemp(join(tmpdir(), 'onejob-doctor-'));
    try {
      const runtimes = await chooseRuntimes({ config, clock: systemClock, env: source.env, owner: 'doctor', stateDir, stored: [] });
      const signal = AbortSignal.timeout(patience);
      const found = await Promise.all(runtimes.all.map((runtime) => runtime.check(signal).finally(() => runtime.close?.())));
      return [...runtimes.findings(), ...found.flat()];
    } catch (error) {
      return [problem('runtime', toFailure(error).message)];
    } finally {
      await rm(stateDir, { recursive: true, force: true });
    }
  }
}
