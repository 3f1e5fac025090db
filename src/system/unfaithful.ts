/**
 * Arguments and variables that are not UTF-8. Node turns each of their bytes into the same character, so what a job got would not be
 * what was typed.
 */
import { readFileSync } from 'node:fs';
import { attempt } from '../base/errors.ts';

/** Whether this process was given exactly this text, as an argument or as `NAME=VALUE` in its environment. */
export function isGiven(text: string, as: 'cmdline' | 'environ', read = (path: string): Buffer => readFileSync(path)): boolean {
  if (!text.includes('\ufffd')) return true;
  // The character itself may have been meant.
  const given = attempt(() => read(`/proc/self/${as}`));
  if (given === null) return true;
  const whole = Buffer.concat([Buffer.from([0]), given, Buffer.from([0])]);
  return whole.includes(Buffer.from(`\0${text}\0`));
}
