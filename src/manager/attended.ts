/** Programs that clients run in the sandbox of a job that runs, for jobs that were submitted with `attended`. */

import { OnejobError } from '../base/errors.ts';
import type { ShellStart } from '../contract/shell-frames.ts';
import type { AgentId } from '../core/slot.ts';
import type { RunningShell } from '../ports/runtime.ts';
import type { Runtimes } from '../runtimes/choose.ts';
import type { Reconciler } from './loop/reconciler.ts';

/**
 * `agent`: that runs the job; null: it does not run.
 * @throws OnejobError E_SHELL if its runtime cannot do that, or for a terminal; else as `Runtime.exec`
 */
export async function runAttended(
  { reconciler, runtimes }: { readonly reconciler: Pick<Reconciler, 'slots'>; readonly runtimes: Pick<Runtimes, 'get'> },
  agent: AgentId | null,
  { command, terminal }: ShellStart,
  signal: AbortSignal,
): Promise<RunningShell> {
  const slot = reconciler.slots.find((one) => one.agent.kind !== 'free' && one.agent.agent === agent);
  if (agent === null || slot === undefined)
    throw new OnejobError('E_SANDBOX_LOST', 'Cannot run a program in the sandbox of this job: it does not run.');
  const runtime = runtimes.get(slot.runtime);
  if (runtime.exec === undefined)
    throw new OnejobError('E_SHELL', `Cannot run a program in a sandbox of the runtime "${runtime.name}" while its job runs.`, {
      hint: 'Set "runtime: docker" for this pool.',
    });
  if (terminal !== null || command === null)
    throw new OnejobError('E_SHELL', 'Cannot open a terminal in a job that runs.', { hint: 'Give a command to run.' });
  return runtime.exec(agent, command, signal);
}
