/** Questions, files and the final message of every `init SERVICE`. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Environment } from '../config/environment.ts';
import { checkConfig } from '../config/load.ts';
import type { Flags } from '../config/paths.ts';
import { formatProblem } from '../config/problem.ts';
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { checkSecret } from '../secrets/reference.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import type { Answer, Person, Question } from './init-ask.ts';
import { writePrivate } from './private-file.ts';
import { configSource, type Session } from './session.ts';
import { countCards, shareCards } from './share-cards.ts';

/** @throws OnejobError E_USAGE for an invalid option value */
export function taken<T>(service: string, option: string, answer: Answer<T>): T {
  if ('value' in answer) return answer.value;
  throw wrongUsage(`Invalid value for ${option}. ${answer.again}`, `See "onejob init ${service} --help".`);
}

/** `person`: null without a terminal. `yes`: defaults are used for what was not given. */
export interface Settling {
  readonly service: string;
  readonly person: Person | null;
  readonly yes: boolean;
}

/** The value of an option, else the answer to a question, else the default. */
export async function settle<T>(
  { service, person, yes }: Settling,
  given: string | null,
  option: string,
  question: Question<T>,
): Promise<T> {
  if (given === null && person !== null && !(yes && question.usual !== null)) return person.ask(question);
  return taken(service, option, await question.read((given ?? question.usual ?? '').trim()));
}

/** The token of an existing file. `what`: what the file must contain. @throws OnejobError E_SECRET */
export async function tokenIn(path: string, read: (typed: string) => Answer<string>, what: string): Promise<string> {
  const { problem } = await checkSecret({ kind: 'file', path, expires: null }, 0);
  const found = problem === null ? read(readFileSync(path, 'utf8').trim()) : { again: `${problem}.` };
  if ('value' in found) return found.value;
  throw new OnejobError('E_SECRET', `Cannot use the token file ${path}: ${found.again}`, {
    hint: `Put only ${what} into it: install -m 600 /dev/stdin ${path}`,
  });
}

/** Checks what is required without a terminal. `missing`: options that were not given. @throws OnejobError E_USAGE, E_SECRET */
export function refuseWithout(missing: readonly string[], hasToken: boolean, tokenFile: string, what: string): void {
  if (missing.length > 0) {
    const message = `There is no terminal to ask on, and these are missing: ${missing.join(', ')}.`;
    throw wrongUsage(message, 'Give them as options, or start onejob on a terminal.');
  }
  if (hasToken) return;
  throw new OnejobError('E_SECRET', `The token file ${tokenFile} does not exist.`, {
    hint: `Put ${what} into it first: install -D -m 600 /dev/stdin ${tokenFile}`,
  });
}

/** Where a daemon looks for its config first. */
export function configPlace(flags: Flags, { config, configHome, uid }: Environment): string {
  return flags.config ?? config ?? (uid === 0 ? '/etc/onejob/config.yml' : join(configHome, 'onejob', 'config.yml'));
}

/** @throws OnejobError E_INIT_FILE when the file exists */
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

/** Whether the files shall be written. */
export async function isWanted({ person, yes }: Settling, files: string): Promise<boolean> {
  if (person === null || yes) return true;
  return person.ask<boolean>({
    text: `Write ${files}?`,
    usual: 'yes',
    read: (typed) => (/^(y|yes|n|no)$/i.test(typed) ? { value: /^y/i.test(typed) } : { again: 'Write yes or no.' }),
  });
}

/** The option with which other commands find this config. */
export function configFlag({ flags }: Session): string {
  return flags.config === undefined ? '' : ` --config ${flags.config}`;
}

/** Prints what was written, the config first, its problems, and what to type next. `up`: what "onejob up" does. 1 when it has errors. */
export async function tellWritten(session: Session, written: readonly [string, ...string[]], up: string, next: readonly string[]) {
  const { output } = session;
  const { errors, warnings } = await checkConfig({ ...configSource(session), flags: { config: written[0] } });
  for (const problem of [...errors, ...warnings]) output.say(formatProblem(problem));
  const named = configFlag(session);
  const commands = [`  onejob up${named}        ${up}`, `  onejob doctor${named}    check whether anything is missing`];
  await output.result({ written }, () => [`Written: ${written.join(', ')}.`, '', 'Next:', ...commands, ...next]);
  return errors.length === 0 ? exitCodes.ok : exitCodes.failed;
}

/** A text in YAML, quoted if necessary. */
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

/** The last day of a token, `YYYY-MM-DD`; null if unknown. */
export function readDay(typed: string): Answer<string | null> {
  if (typed === '') return { value: null };
  const at = /^\d{4}-\d\d-\d\d$/.test(typed) ? Date.parse(`${typed}T00:00:00Z`) : Number.NaN;
  const isDay = !Number.isNaN(at) && new Date(at).toISOString().startsWith(typed);
  return isDay ? { value: typed } : { again: 'Write a day such as 2027-05-01, or nothing.' };
}

/** The key `devices` of the pool, so that the agents share this host's cards. */
export function devicesFor(agents: number | 'per-device', inventory: Inventory): object | number {
  if (agents !== 'per-device') return shareCards(agents, inventory).devices;
  return { count: 1, vendor: 'nvidia', ...(countCards(inventory).areSlices && { mig: true }) };
}
