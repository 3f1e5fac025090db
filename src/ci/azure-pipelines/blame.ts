/** What to say of an agent that ended and never had a job. */
import type { Exit, Failure } from '../../core/slot.ts';

/** Exit codes of the listener: agent `Constants.cs`. `lastWords`: the end of its output. */
export function blame(exit: Exit, lastWords: string): Failure {
  const said = lastWords === '' ? '' : ` It said last:\n${lastWords}`;
  if (exit.kind === 'code' && (exit.code === 3 || exit.code === 4)) {
    return {
      code: 'E_AGENT_OUTDATED',
      message: `The agent ended to become a newer version (exit ${exit.code}), which it would do for every job. Run "onejob image refresh", and switch off automatic updates of the agent pool.`,
      retry: true,
    };
  }
  return { code: 'E_AGENT_ENDED', message: `The agent ended ${how(exit)} and had no job.${said}`, retry: true };
}

function how(exit: Exit): string {
  switch (exit.kind) {
    case 'code':
      return `with exit code ${exit.code}`;
    case 'signal':
      return `by ${exit.signal}`;
    case 'oom':
      return 'for lack of memory';
    default:
      return 'for reasons of the host';
  }
}
