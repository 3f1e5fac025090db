/** What every `init SERVICE` does with its questions, its files and its end. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Environment } from '../config/environment.ts';
import { checkConfig } from '../config/load.ts';
import type { Flags } from '../config/paths.ts';
import { formatProblem } from '../config/problem.ts';
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { checkSecret } from '../secrets/reference.ts';
import { exitCodes } from './exit.ts';
import type { Answer, Person, Question } from './init-ask.ts';
import { writePrivate } from './private-file.ts';
import { configSource, type Session } from './session.ts';
import { countCards, shareCards } from './share-cards.ts';

/** @throws OnejobError E_USAGE where an option's value cannot be used */
export function taken<T>(service: string, option: string, answer: Answer<T>): T {
  if ('value' in answer) return answer.value;
  throw new OnejobError('E_USAGE', `Invalid value for ${option}. ${answer.again}`, {
    hint: `See "onejob init ${service} --help".`,
  });
}

/** `person`: null where there is nobody to ask. `yes`: what is usual is taken where nothing was said. */
export interface Settling {
  readonly service: string;
  readonly person: Person | null;
  readonly yes: boolean;
}

/** A value that was given is read as one that is typed; what nobody said is asked, or as usual. */
export async function settle<T>(
  { service, person, yes }: Settling,
  given: string | null,
  option: string,
  question: Question<T>,
): Promise<T> {
  if (given === null && person !== null && !(yes && question.usual !== null)) return person.ask(question);
  return taken(service, option, await question.read((given ?? question.usual ?? '').trim()));
}

/** A token file as it is there. `what`: what it is to hold. @throws OnejobError E_SECRET */
export async function tokenIn(path: string, read: (typed: string) => Answer<string>, what: string): Promise<string> {
  const { problem } = await checkSecret({ kind: 'file', path, expires: null }, 0);
  const found = problem === null ? read(readFileSync(path, 'utf8').trim()) : { again: `${problem}.` };
  if ('value' in found) return found.value;
  throw new OnejobError('E_SECRET', `Cannot use the token file ${path}: ${found.again}`, {
    hint: `Put only ${what} into it: install -m 600 /dev/stdin ${path}`,
  });
}

/** There is no terminal to ask on. `missing`: options that are needed then. @throws OnejobError E_USAGE, E_SECRET */
export function refuseWithout(missing: readonly string[], hasToken: boolean, tokenFile: string, what: string): void {
  if (missing.length > 0) {
    throw new OnejobError('E_USAGE', `There is no terminal to ask on, and these are missing: ${missing.join(', ')}.`, {
      hint: 'Give them as options, or start onejob on a terminal.',
    });
  }
  if (hasToken) return;
  throw new OnejobError('E_SECRET', `The token file ${tokenFile} does not exist.`, {
    hint: `Put ${what} into it first: install -D -m 600 /dev/stdin ${tokenFile}`,
  });
}

/** Where a daemon would look for its config first, by what it is started with. */
export function configPlace(flags: Flags, { config, configHome, uid }: Environment): string {
  return flags.config ?? config ?? (uid === 0 ? '/etc/onejob/config.yml' : join(configHome, 'onejob', 'config.yml'));
}

/** @throws OnejobError E_INIT_FILE when there is a file already */
export function refuseToOverwrite(path: string, option: string): void {
  if (!existsSync(path)) return;
  throw new OnejobError('E_INIT_FILE', `Refusing to overwrite the existing file ${path}.`, {
    hint: `Write another one with ${option} FILE, or overwrite it with --force.`,
  });
}

/** A file that only this user can read. @throws OnejobError E_INIT_FILE */
export function writeFile(path: string, text: string): void {
  const hint = 'Choose writable places with --config FILE and --token-file FILE, or run the command as root.';
  writePrivate(path, text, { over: true, folders: true, refusal: { code: 'E_INIT_FILE', hint } });
}

/** Whether all is to be written. */
export async function isWanted({ person, yes }: Settling, files: string): Promise<boolean> {
  if (person === null || yes) return true;
  return person.ask<boolean>({
    text: `Write ${files}?`,
    usual: 'yes',
    read: (typed) => (/^(y|yes|n|no)$/i.test(typed) ? { value: /^y/i.test(typed) } : { again: 'Write yes or no.' }),
  });
}

/** Says what is wrong with a config that was written; false when there is an error. */
async function sayProblems(session: Session, config: string): Promise<boolean> {
  const { errors, warnings } = await checkConfig({ ...configSource(session), flags: { config } });
  for (const problem of [...errors, ...warnings]) session.output.say(formatProblem(problem));
  return errors.length === 0;
}

/** How a command names the config, where it does not find it by itself. */
export function configFlag({ flags }: Session): string {
  return flags.config === undefined ? '' : ` --config ${flags.config}`;
}

/** What was written, the config first, what is wrong with it, and what to type next. `up`: what that does. 1 when it has problems. */
export async function tellWritten(session: Session, written: readonly [string, ...string[]], up: string, next: readonly string[]) {
  const { output } = session;
  const isSound = await sayProblems(session, written[0]);
  const named = configFlag(session);
  if (output.json) await output.value({ written });
  else
    await output.print(
      `Written: ${written.join(', ')}.`,
      '',
      'Next:',
      `  onejob up${named}        ${up}`,
      `  onejob doctor${named}    check whether anything is missing`,
      ...next,
    );
  return isSound ? exitCodes.ok : exitCodes.failed;
}

/** A text as YAML would have it: quoted unless it is plain. */
export function inYaml(text: string): string {
  return /^[A-Za-z][A-Za-z0-9 ._-]*$/.test(text) ? text : JSON.stringify(text);
}

/** Most agents of a pool. */
const mostAgents = 512;

export function readAgents(typed: string): Answer<number | 'per-device'> {
  if (typed === 'per-device') return { value: typed };
  const number = /^\d+$/.test(typed) ? Number(typed) : Number.NaN;
  if (number >= 1 && number <= mostAgents) return { value: number };
  return { again: `Write a number from 1 to ${mostAgents}, or "per-device" for one agent per card.` };
}

/** The last day of a token, `YYYY-MM-DD`; null when nobody knows. */
export function readDay(typed: string): Answer<string | null> {
  if (typed === '') return { value: null };
  const at = /^\d{4}-\d\d-\d\d$/.test(typed) ? Date.parse(`${typed}T00:00:00Z`) : Number.NaN;
  const isDay = !Number.isNaN(at) && new Date(at).toISOString().startsWith(typed);
  return isDay ? { value: typed } : { again: 'Write a day such as 2027-05-01, or nothing.' };
}

/** What each agent has of this host's cards. */
export function devicesFor(agents: number | 'per-device', inventory: Inventory): object | number {
  if (agents !== 'per-device') return shareCards(agents, inventory).devices;
  return { count: 1, vendor: 'nvidia', ...(countCards(inventory).areSlices && { mig: true }) };
}
