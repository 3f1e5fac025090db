/** What to say of an agent that ended and never had a job. */
import type { Exit, Failure } from '../../core/slot.ts';
import { endedWithoutJob } from '../ci-service.ts';

/** Exit codes of the listener: agent `Constants.cs`. `lastWords`: the end of its output. */
export function blame(exit: Exit, lastWords: string): Failure {
  if (exit.kind === 'code' && (exit.code === 3 || exit.code === 4)) {
    return {
      code: 'E_AGENT_OUTDATED',
      message: `The agent ended to become a newer version (exit ${exit.code}), which it would do for every job. Run "onejob image refresh", and switch off automatic updates of the agent pool.`,
      retry: true,
    };
  }
  return endedWithoutJob(exit, lastWords);
}
