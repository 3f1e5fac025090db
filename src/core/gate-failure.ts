/** Explains the end of a sandbox whose script had not begun. */

import type { Failure } from '../base/errors.ts';
import type { Exit } from './slot.ts';

/** An end before the script began is a start failure, never a job's result. `said`: the last line that it printed, if it is known. */
export function endedAtGate(exit: Exit, said = ''): Failure {
  const last = said === '' ? '.' : `: ${said}`;
  const fail = (code: string, message: string, retry = true): Failure => ({ code, message, retry });
  switch (exit.kind) {
    case 'code':
      if (exit.code === 97)
        return fail('E_DEVICE_LOST', 'The sandbox could not open its devices any more (exit 97); nothing has run.');
      if (exit.code === 126 || exit.code === 127)
        return fail('E_NO_SHELL', `The image has no usable "sh" (exit ${exit.code}); the gate needs a POSIX shell.`, false);
      return fail('E_GATE_ENDED', `The sandbox ended with exit code ${exit.code} before its script began${last}`);
    case 'signal':
      return fail('E_GATE_ENDED', `The sandbox was ended by ${exit.signal} before its script began${last}`);
    case 'oom':
      return fail('E_GATE_OOM', 'The sandbox ran out of memory before its script began.');
    case 'lost':
      return fail('E_SANDBOX_LOST', `The sandbox was lost before its script began: ${exit.reason}.`);
  }
}
