/** `onejob doctor`: what the daemon finds or, without one, what keeps it from starting, and what it would run jobs in. */

import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type OnejobError, toFailure } from '../base/errors.ts';
import { coded, fine, found, problem, warning } from '../base/finding.ts';
import { secretFindings, weakenedFindings } from '../config/findings.ts';
import { lookAtHost } from '../config/host-look.ts';
import { checkConfig } from '../config/load.ts';
import type { FindingView } from '../contract/schema.ts';
import { chooseRuntimes } from '../runtimes/choose.ts';
import { formatProblem } from '../schema/problem.ts';
import { removeTree } from '../system/foreign-tree.ts';
import { systemClock, timeLimit } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import { configSource, type Session } from './session.ts';
import { hang, plural, printable } from './text.ts';
import { types } from './types.ts';

/** 1 when there is an error among the findings. */
export async function showDoctor(session: Session): Promise<number> {
  const { output } = session;
  const findings = await findingsOf(session, true);
  const code = findings.some((each) => each.level === 'error') ? exitCodes.failed : exitCodes.ok;
  const { colors } = output;
  const marks = { ok: colors.green('ok     '), warning: colors.yellow('warning'), error: colors.red('error  ') };
  const order = { error: 0, warning: 1, ok: 2 };
  const width = output.width ?? 100;
  await output.result(findings, () => {
    const lines = findings
      .toSorted((one, other) => order[one.level] - order[other.level])
      .flatMap(({ level, subject, message, hint }) => {
        const advice = hint === null ? [] : hang(' '.repeat(9), `-> ${printable(hint)}`, width);
        return [...hang(`${marks[level]}  `, printable(`${subject}: ${message}`), width), ...advice];
      });
    const count = (level: 'error' | 'warning') => plural(findings.filter((each) => each.level === level).length, level);
    return [...lines, '', `${count('error')}, ${count('warning')}, ${findings.length} checked.`];
  });
  return code;
}

/** Those of the daemon, or without one of what would run. `named`: the daemon must have the config that the command names. */
export function findingsOf(session: Session, named: boolean): Promise<FindingView[]> {
  return withDaemon(
    session,
    (client) => client.call('GET /v1/doctor'),
    (absent) => doctorAlone(session, absent),
    { named },
  );
}

/** ms for all runtimes to answer. */
const patience = 60_000;

/** `absent`: the error about the missing daemon. */
async function doctorAlone(session: Session, absent: OnejobError): Promise<FindingView[]> {
  const source = { types, ...configSource(session), look: lookAtHost };
  const { config, errors, warnings } = await checkConfig(source);
  return [
    warning('daemon', absent.message, absent.hint, 'daemon-absent'),
    ...errors.map((each) => problem('config', formatProblem(each), null, 'config')),
    ...warnings.map((each) => warning('config', formatProblem(each), null, 'config')),
    ...coded('secret', await secretFindings(config, systemClock.wall())),
    ...(errors.length > 0
      ? []
      : [...coded('weak-sandbox', weakenedFindings(config)), ...coded('runtime', await runtimeFindings())]),
    fine(
      'not checked',
      'Only a daemon checks slots, images, caches, GPUs and CI services.',
      'Start one with "onejob up"; for GPUs alone, type "onejob gpus".',
      'not-checked',
    ),
  ];

  async function runtimeFindings(): Promise<FindingView[]> {
    // The process runtime makes folders, which must not be in the state directory.
    const stateDir = await mkdtemp(join(tmpdir(), 'onejob-doctor-'));
    try {
      const runtimes = await chooseRuntimes({ config, clock: systemClock, env: source.env, owner: 'doctor', stateDir, stored: [] });
      const signal = timeLimit(patience);
      const look = (runtime: (typeof runtimes.all)[number]) =>
        found(runtime.name, runtime.check(signal), signal).finally(() => runtime.close?.());
      return [...runtimes.findings(), ...(await Promise.all(runtimes.all.map(look))).flat()];
    } catch (error) {
      return [problem('runtime', toFailure(error).message)];
    } finally {
      await removeTree(stateDir);
    }
  }
}
