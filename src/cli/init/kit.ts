/** Answers that `onejob init` of several services reads in the same way. */

import { hasCode, messageOf } from '../../base/errors.ts';
import { isWebAddress } from '../../schema/program-keys.ts';
import type { Asked, Reply } from './ask.ts';

export const readUrl =
  (example: string) =>
  (typed: string): Reply<string> =>
    isWebAddress(typed) ? { value: typed.replace(/\/+$/, '') } : { again: `Expected an address such as ${example}.` };

/** The address of a server of one's own. */
export function serverUrl(server: string, example: string): Asked<string> {
  const form = readUrl(example);
  return { option: 'url', needs: 'URL', text: `Address of the ${server} server`, usual: null, form, read: form };
}

/** A credential in one line. `least`: its letters. */
export const readCredential =
  (what: string, least: number) =>
  (typed: string): Reply<string> => {
    if (typed === '') return { again: 'It is empty.' };
    if (typed.length >= least && /^[\x21-\x7e]{1,4096}$/.test(typed)) return { value: typed };
    return { again: `The ${what} is malformed: it is too short or contains whitespace.` };
  };

/** What to say when the service could not be asked about `what`, which may be good. @throws the error, if it is another one */
export function notChecked(error: unknown, what: string): string {
  if (!hasCode(error, 'E_CI_UNREACHABLE', 'E_CI_THROTTLED')) throw error;
  return `${messageOf(error)} So onejob could not check ${what}; "onejob doctor" checks it when the service answers.`;
}
