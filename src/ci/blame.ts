/** What to say of an agent that ended by itself and never had a job. */
import type { Exit, Failure } from '../core/slot.ts';

/** `lastWords`: the end of its output. */
export function endedWithoutJob(exit: Exit, lastWords: string): Failure {
  const said = lastWords === '' ? '' : ` It said last:\n${lastWords}`;
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
    case 'lost':
      return 'for reasons of the host';
  }
}
