/** What `onejob init` of services that are servers of one's own share. */

import { hasCode, messageOf } from '../../base/errors.ts';
import { isWebAddress } from '../../schema/program-keys.ts';
import type { Session } from '../session.ts';
import type { Reply } from './ask.ts';

export const readUrl =
  (example: string) =>
  (typed: string): Reply<string> =>
    isWebAddress(typed) ? { value: typed.replace(/\/+$/, '') } : { again: `Expected an address such as ${example}.` };

/** Says what `ask` finds out with a token. A server that is away says nothing about it, so that it may be good. */
export async function sayFound(output: Session['output'], ask: () => Promise<string>): Promise<null> {
  try {
    output.say(await ask());
  } catch (error) {
    output.say(notChecked(error, 'the token'));
  }
  return null;
}

/** What to say when the service could not be asked about `what`, which may be good. @throws the error, if it is another one */
export function notChecked(error: unknown, what: string): string {
  if (!hasCode(error, 'E_CI_UNREACHABLE', 'E_CI_THROTTLED')) throw error;
  return `${messageOf(error)} So onejob could not check ${what}; "onejob doctor" checks it when the service answers.`;
}
