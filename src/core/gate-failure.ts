/** Explains the end of a sandbox whose script had not begun. */
import type { Exit, Failure } from './slot.ts';

/** An end before the script began is a start failure, never a job's result. */
export function endedAtGate(exit: Exit): Failure {
  switch (exit.kind) {
    case 'code':
      return endedWithCode(exit.code);
    case 'signal':
      return { code: 'E_GATE_ENDED', message: `The sandbox was ended by ${exit.signal} before its script began.`, retry: true };
    case 'oom':
      return { code: 'E_GATE_OOM', message: 'The sandbox ran out of memory before its script began.', retry: true };
    case 'lost':
      return { code: 'E_SANDBOX_LOST', message: `The sandbox was lost before its script began: ${exit.reason}.`, retry: true };
  }
}

function endedWithCode(code: number): Failure {
  switch (code) {
    case 97:
      return {
        code: 'E_DEVICE_LOST',
        message: 'The sandbox could not open its devices any more (exit 97); nothing has run.',
        retry: true,
      };
    case 126:
    case 127:
      return {
        code: 'E_NO_SHELL',
        message: `The image has no usable "sh" (exit ${code}); the gate needs a POSIX shell.`,
        retry: false,
      };
    default:
      return { code: 'E_GATE_ENDED', message: `The sandbox ended with exit code ${code} before its script began.`, retry: true };
  }
}
