/**
 * The steps that every `init SERVICE` shares: its files, the token, questions, agents, consent, and the final message. And `init
 * own-queue`, which asks nothing.
 */

import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { stringify } from 'yaml';
import { type ErrorCode, OnejobError } from '../../base/errors.ts';
import type { Environment } from '../../config/environment.ts';
import { checkConfig } from '../../config/load.ts';
import type { Flags } from '../../config/paths.ts';
import type { ServiceType } from '../../config/service-type.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import { formatProblem } from '../../schema/problem.ts';
import { checkSecret } from '../../schema/secret-reference.ts';
import { exitCodes, wrongUsage } from '../exit.ts';
import { writePrivate } from '../private-file.ts';
import { howToStart } from '../service.ts';
import { configSource, type Session } from '../session.ts';
import { countCards, lookAtCards, shareCards } from '../share-cards.ts';
import { types } from '../types.ts';
import { openPerson, type Person, type Question, type Reply } from './ask.ts';

/** Options; null if not given. */
/** The credential of a service: what it is, and the default name of its file next to the config. */
export interface TokenAsked {
  readonly what: string;
  readonly file: string;
}

export interface InitFlags {
  /** Options that only this service has. */
  readonly own: Readonly<Partial<Record<string, string>>>;
  readonly tokenFile: string | null;
  readonly agents: string | null;
  readonly expires: string | null;
  /** Uses defaults, and asks for no consent. */
  readonly yes: boolean;
  readonly force: boolean;
  /** false: the answers are not checked with the service. */
  readonly check: boolean;
}

export interface SignIn<T> {
  readonly text: string;
  readonly read: (typed: string) => Reply<string>;
  /** Asks the service about it. `from` tells people which token it is. */
  readonly see: (token: string, from: string) => Promise<T>;
  /** Errors after which another token may be typed. */
  readonly refusals: readonly ErrorCode[];
}

export interface FrameEnd {
  readonly token: string;
  /** Name of the service and its pool. */
  readonly name: string;
  readonly queue: string;
  /** Keys of the service, given the reference to its token. */
  readonly keys: (token: object) => object;
  /** Keys of the pool in addition to those of any pool. */
  readonly poolKeys?: object;
  readonly inPipeline: readonly string[];
}

/** How often a token may be typed. */
const mostTokens = 3;

/** `missing`: options of this service that are required without a terminal, and were not given. */
export type OpenFrame = (missing: readonly string[]) => ReturnType<typeof openFrame>;

/** @throws OnejobError E_USAGE, E_SECRET, before a token is typed */
export function openFrame(
  session: Session,
  flags: InitFlags,
  { type, title }: Pick<ServiceType, 'type' | 'title'>,
  { what, file: tokenName }: TokenAsked,
  missing: readonly string[],
) {
  const { context, output } = session;
  const stdin = context.stdin();
  const isThere = stdin.isTTY === true && !output.json;
  const config = configPlace(session.flags, context.environment);
  if (!flags.force) refuseToOverwrite(config, '--config');
  let tokenFile = flags.tokenFile === null ? join(dirname(config), tokenName) : resolve(context.cwd, flags.tokenFile);
  refuseUnknownFolders(session, [config, ...(flags.tokenFile === null ? [] : [tokenFile])]);
  let hasToken = existsSync(tokenFile) && !(flags.force && isThere && flags.tokenFile === null);
  if (!isThere) {
    const noFile = flags.tokenFile === null && !hasToken ? ['--token-file FILE'] : [];
    const noAgents = flags.agents === null && !flags.yes ? ['--agents N (or --yes for the defaults)'] : [];
    refuseWithout([...missing, ...noFile, ...noAgents], hasToken, tokenFile, what);
  }
  if (flags.agents !== null) taken(type, '--agents', readAgents(flags.agents.trim()));
  if (flags.expires !== null) taken(type, '--expires', readDay(flags.expires.trim()));
  const person = isThere ? openPerson(stdin, context.stderr) : null;
  const settling: Settling = { service: type, person, yes: flags.yes };

  /** Asks for the file of a secret that nobody types, such as a private key. `text`: the question. */
  async function askForFile(text: string): Promise<void> {
    tokenFile = await settle(settling, null, '--token-file', {
      text,
      usual: null,
      read(typed) {
        const path = resolve(context.cwd, typed);
        return existsSync(path) ? { value: path } : { again: `${path} does not exist.` };
      },
    });
    hasToken = true;
  }

  /** Uses the token of an existing file, else a typed one, which the service may refuse a few times. */
  async function signIn<T>({ text, read, see, refusals }: SignIn<T>): Promise<{ token: string; seen: T }> {
    if (hasToken) output.say(`using the token in ${tokenFile}`);
    if (hasToken || person === null) {
      const token = await tokenIn(tokenFile, read, what);
      return { token, seen: await see(token, `file ${tokenFile}`) };
    }
    for (let tries = 1; ; tries++) {
      const token = await person.ask({ text: `${text} (input is hidden)`, usual: null, hidden: true, read });
      try {
        return { token, seen: await see(token, 'as it was typed') };
      } catch (error) {
        if (!(error instanceof OnejobError) || !refusals.includes(error.code) || tries === mostTokens) throw error;
        output.say(error.message);
      }
    }
  }

  /** Asks for the rest, and writes. `inPipeline`: lines of a pipeline that uses it. */
  async function finish({ token, name, queue, keys, poolKeys, inPipeline }: FrameEnd): Promise<number> {
    const inventory = await lookAtCards(session);
    const count = countCards(inventory).cards;
    const agents = await settle(settling, flags.agents, '--agents', {
      text: count === 0 ? 'Number of agents' : `Number of agents, or per-device (this host has ${count} for jobs)`,
      usual: count === 0 ? '2' : 'per-device',
      read: readAgents,
    });
    if (agents === 'per-device' && count === 0) output.say('this host has no card for jobs now: no agent starts until it has one');
    const expires = await settle(settling, flags.expires, '--expires', {
      text: 'Last day of the token, such as 2027-05-01, to get a warning in time (empty: none, or unknown)',
      usual: '',
      read: readDay,
    });
    if (!(await isWanted(settling, hasToken ? config : `${config} and ${tokenFile}`))) {
      output.say('nothing was written');
      return exitCodes.failed;
    }
    const secret = { file: tokenFile, ...(expires !== null && { expires }) };
    const file = {
      services: { [name]: { type, ...keys(secret) } },
      pools: { [name]: { service: name, queue, agents, devices: devicesFor(agents, inventory), ...poolKeys } },
    };
    const head = `# Agents for ${title}. Every key: docs/configuration.md; "onejob config show" prints the values in use.\n`;
    if (!hasToken) writeFile(tokenFile, `${token}\n`);
    writeFile(config, head + stringify(file, { lineWidth: 0 }));
    const shown = ['', 'In a pipeline:', ...inPipeline.map((line) => `  ${line}`)];
    const first = 'the first time it builds the image of the agents';
    return tellWritten(session, [config, ...(hasToken ? [] : [tokenFile])], first, shown);
  }

  return {
    settling,
    askForFile,
    signIn,
    finish,
    /** Whether a token will be asked for. */
    needsToken: person !== null && !hasToken,
    /** Aborted when the person leaves. */
    signal: person?.left ?? new AbortController().signal,
    [Symbol.dispose]: () => person?.[Symbol.dispose](),
  };
}

/** @throws OnejobError E_USAGE for an invalid option value */
export function taken<T>(service: string, option: string, answer: Reply<T>): T {
  if ('value' in answer) return answer.value;
  throw wrongUsage(`Invalid value for ${option}. ${answer.again}`, `See "onejob init ${service} --help".`);
}

/** `person`: null without a terminal. `yes`: defaults are used for what was not given. */
export type Settling = { readonly service: string; readonly person: Person | null; readonly yes: boolean };

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
async function tokenIn(path: string, read: (typed: string) => Reply<string>, what: string): Promise<string> {
  const { problem } = await checkSecret({ kind: 'file', path, expires: null }, 0);
  const found = problem === null ? read(readFileSync(path, 'utf8').trim()) : { again: `${problem}.` };
  if ('value' in found) return found.value;
  throw new OnejobError('E_SECRET', `Cannot use the token file ${path}: ${found.again}`, {
    hint: `Put only ${what} into it: install -m 600 /dev/stdin ${path}`,
  });
}

/** Checks what is required without a terminal. `missing`: options that were not given. @throws OnejobError E_USAGE, E_SECRET */
function refuseWithout(missing: readonly string[], hasToken: boolean, tokenFile: string, what: string): void {
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
function configPlace(flags: Flags, { config, configHome, uid }: Environment): string {
  return flags.config ?? config ?? (uid === 0 ? '/etc/onejob/config.yml' : join(configHome, 'onejob', 'config.yml'));
}

/** @throws OnejobError E_INIT_FILE when the file exists */
function refuseToOverwrite(path: string, option: string): void {
  if (!existsSync(path)) return;
  throw new OnejobError('E_INIT_FILE', `Refusing to overwrite the existing file ${path}.`, {
    hint: `Write another one with ${option} FILE, or overwrite it with --force.`,
  });
}

/** Refuses what is probably a mistyped path. The usual place may lack all its folders. @throws OnejobError E_INIT_FILE */
function refuseUnknownFolders({ context }: Session, files: readonly string[]): void {
  const usual = configPlace({}, { ...context.environment, config: null });
  for (const file of files) {
    const above = dirname(dirname(file));
    if (file === usual || existsSync(above)) continue;
    const hint = `Check the path, or make its folder first: mkdir -p ${dirname(file)}`;
    throw new OnejobError('E_INIT_FILE', `Cannot write ${file}: ${above} does not exist.`, { hint });
  }
}

/** A file that only this user can read. @throws OnejobError E_INIT_FILE */
export function writeFile(path: string, text: string): void {
  const hint = 'Choose writable places with --config FILE and --token-file FILE, or run the command as root.';
  writePrivate(path, text, { over: true, folders: true, refusal: { code: 'E_INIT_FILE', hint } });
}

/** Whether the files shall be written. */
async function isWanted({ person, yes }: Settling, files: string): Promise<boolean> {
  if (person === null || yes) return true;
  return person.ask<boolean>({
    text: `Write ${files}?`,
    usual: 'yes',
    read: (typed) => (/^(y|yes|n|no)$/i.test(typed) ? { value: /^y/i.test(typed) } : { again: 'Write yes or no.' }),
  });
}

/** The option with which other commands find this config. */
function configFlag({ flags }: Session): string {
  return flags.config === undefined ? '' : ` --config ${flags.config}`;
}

/** Prints what was written, the config first, its problems, and what to type next. `first`: what a daemon does then. 1 on errors. */
async function tellWritten(
  session: Session,
  written: readonly [string, ...string[]],
  first: string | null,
  next: readonly string[],
): Promise<number> {
  const { output } = session;
  const { errors, warnings } = await checkConfig({ types, ...configSource(session), flags: { config: written[0] } });
  for (const problem of [...errors, ...warnings]) output.say(formatProblem(problem));
  const [start, does] = howToStart(session);
  const doctor = `onejob doctor${configFlag(session)}`;
  const width = Math.max(start.length, doctor.length);
  const commands = [
    `  ${start.padEnd(width)}    ${does}${first === null ? '' : `; ${first}`}`,
    `  ${doctor.padEnd(width)}    check whether anything is missing`,
  ];
  await output.result({ written }, () => [`Written: ${written.join(', ')}.`, '', 'Next:', ...commands, ...next]);
  return errors.length === 0 ? exitCodes.ok : exitCodes.failed;
}

/** A text in YAML, quoted if necessary. */
export function inYaml(text: string): string {
  return /^[A-Za-z][A-Za-z0-9 ._-]*$/.test(text) ? text : JSON.stringify(text);
}

/** Most agents of a pool. */
const mostAgents = 512;

function readAgents(typed: string): Reply<number | 'per-device'> {
  if (typed === 'per-device') return { value: typed };
  const number = /^\d+$/.test(typed) ? Number(typed) : Number.NaN;
  if (number >= 1 && number <= mostAgents) return { value: number };
  return { again: `Write a number from 1 to ${mostAgents}, or "per-device" for one agent per card.` };
}

/** The last day of a token, `YYYY-MM-DD`; null if unknown. */
function readDay(typed: string): Reply<string | null> {
  if (typed === '') return { value: null };
  const at = /^\d{4}-\d\d-\d\d$/.test(typed) ? Date.parse(`${typed}T00:00:00Z`) : Number.NaN;
  const isDay = !Number.isNaN(at) && new Date(at).toISOString().startsWith(typed);
  return isDay ? { value: typed } : { again: 'Write a day such as 2027-05-01, or nothing.' };
}

/** The key `devices` of the pool, so that the agents share this host's cards. */
function devicesFor(agents: number | 'per-device', inventory: Inventory): object | number {
  if (agents !== 'per-device') return shareCards(agents, inventory).devices;
  return { count: 1, vendor: 'nvidia', ...(countCards(inventory).areSlices && { mig: true }) };
}

const mostOwnAgents = 8;

/** A pool for jobs without devices and, if there are cards, one with an agent for each card or MIG instance. */
export function ownQueueFile(inventory: Pick<Inventory, 'devices'>, cores: number): { text: string; cards: number } {
  const { cards, areSlices } = countCards(inventory, null);
  const pools = {
    default: { agents: Math.min(mostOwnAgents, Math.max(1, Math.floor(cores / 2))) },
    ...(cards > 0 && { gpu: { agents: 'per-device', devices: { count: 1, ...(areSlices && { mig: true }) } } }),
  };
  const head = [
    '# Jobs that are submitted with "onejob run". Every key: docs/configuration.md; "onejob config show" prints the values in use.',
    '# A job that asks for no devices goes to "default", "onejob run --devices 1" to "gpu". A pool may name its "image".',
  ];
  return { text: `${head.join('\n')}\n${stringify({ pools }, { lineWidth: 0 })}`, cards };
}

/** Writes a config for jobs of `onejob run` that suits this host. 1 when the config has problems. @throws OnejobError E_INIT_FILE */
export async function initOwnQueue(session: Session, { force }: { readonly force: boolean }, look = lookAtCards): Promise<number> {
  const { context, output, flags } = session;
  const config = configPlace(flags, context.environment);
  if (!force) refuseToOverwrite(config, '--config');
  refuseUnknownFolders(session, [config]);
  const inventory = await look(session);
  if (!inventory.complete)
    output.say('not all GPUs of this host could be read, see "onejob gpus"; the config covers those that were');
  const { text, cards } = ownQueueFile(inventory, availableParallelism());
  writeFile(config, text);
  return tellWritten(session, [config], null, [
    `  onejob run${configFlag(session)} -- echo hello`,
    ...(cards > 0 ? [`  onejob run${configFlag(session)} --devices 1 -- nvidia-smi -L`] : []),
  ]);
}
