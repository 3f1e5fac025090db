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
import { lookAtHost } from '../../config/host-look.ts';
import { checkConfig } from '../../config/load.ts';
import type { Flags } from '../../config/paths.ts';
import type { ServiceType } from '../../config/service-type.ts';
import type { Clock } from '../../core/clock.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import { createOutbound, type Outbound } from '../../http/outbound.ts';
import { formatProblem } from '../../schema/problem.ts';
import { checkSecret } from '../../schema/secret-reference.ts';
import { systemClock } from '../../system/system-clock.ts';
import { exitCodes, wrongUsage } from '../exit.ts';
import { writePrivate } from '../private-file.ts';
import { howToStart } from '../service.ts';
import { configSource, type Session } from '../session.ts';
import { countCards, lookAtCards, shareCards } from '../share-cards.ts';
import { types } from '../types.ts';
import { type Asked, openPerson, type Person, type Reply } from './ask.ts';
import { notChecked } from './kit.ts';

/** The credential of a service: what it is, and the default name of its file next to the config. */
export interface TokenAsked {
  readonly what: string;
  readonly file: string;
}

/** Options; null if not given. */
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

/** What must be right before anything is asked. */
type AskedFirst = Pick<Asked<unknown>, 'option' | 'needs' | 'usual' | 'form'>;

/** `asked`: what the service will ask for. @throws OnejobError E_USAGE, E_SECRET, E_INIT_FILE, before a token is typed */
export type OpenFrame = (...asked: AskedFirst[]) => InitFrame;

/** What `init` of every service does in the same way. */
export class InitFrame implements Disposable {
  readonly #session: Session;
  readonly #flags: InitFlags;
  readonly #service: Pick<ServiceType, 'type' | 'title'>;
  readonly #what: string;
  readonly #person: Person | null;
  readonly #config: string;
  readonly #outbound: Outbound;
  #tokenFile: string;
  #hasToken: boolean;

  constructor(
    session: Session,
    flags: InitFlags,
    service: Pick<ServiceType, 'type' | 'title'>,
    { what, file }: TokenAsked,
    asked: readonly AskedFirst[],
  ) {
    this.#session = session;
    this.#flags = flags;
    this.#service = service;
    this.#what = what;
    const { context, output } = session;
    for (const { option, form } of asked) {
      const given = flags.own[option];
      if (given !== undefined && form !== undefined) this.#taken(option, form(given.trim()));
    }
    const stdin = context.stdin();
    const isThere = stdin.isTTY === true && !output.json;
    this.#config = configPlace(session.flags, context.environment);
    if (!flags.force) refuseToOverwrite(this.#config, '--config');
    this.#tokenFile = flags.tokenFile === null ? join(dirname(this.#config), file) : resolve(context.cwd, flags.tokenFile);
    refuseUnknownFolders(session, [this.#config, ...(flags.tokenFile === null ? [] : [this.#tokenFile])]);
    this.#hasToken = existsSync(this.#tokenFile) && !(flags.force && isThere && flags.tokenFile === null);
    if (!isThere) this.#refuseWithout(asked);
    if (flags.agents !== null) this.#taken('agents', readAgents(flags.agents.trim()));
    if (flags.expires !== null) this.#taken('expires', readDay(flags.expires.trim()));
    this.#outbound = createOutbound(context.environment.proxies);
    const closed = wrongUsage(
      'The answers ended before the last question; nothing was written.',
      `Start again, or give the answers as options: see "onejob init ${service.type} --help".`,
    );
    this.#person = isThere ? openPerson(stdin, context.stderr, closed) : null;
  }

  /** With what a client calls the service. */
  get calling(): { readonly clock: Clock; readonly fetch: typeof fetch; readonly version: string } {
    return { clock: systemClock, fetch: this.#outbound.fetch, version: this.#session.version };
  }

  /** Aborted when the person leaves. */
  get signal(): AbortSignal {
    return this.#person?.left ?? new AbortController().signal;
  }

  /** Whether a token will be asked for. */
  get needsToken(): boolean {
    return this.#person !== null && !this.#hasToken;
  }

  say(line: string): void {
    this.#session.output.say(line);
  }

  /** Says what `ask` finds out with a token. A server that is away says nothing about it, so that it may be good. */
  async sayFound(ask: () => Promise<string>): Promise<void> {
    try {
      this.say(await ask());
    } catch (error) {
      this.say(notChecked(error, 'the token'));
    }
  }

  /** Whether a person will be asked. */
  asks({ option, usual }: Pick<Asked<unknown>, 'option' | 'usual'>): boolean {
    return this.#person !== null && this.#valueOf(option) === null && !(this.#flags.yes && usual !== null);
  }

  /** The value of an option, else the answer to a question, else the default. */
  async settle<T>(asked: Asked<T>): Promise<T> {
    return this.#person !== null && this.asks(asked) ? this.#person.ask(asked) : this.given(asked);
  }

  /** The value of an option, else the default. */
  async given<T>({ option, usual, read }: Asked<T>): Promise<T> {
    return this.#taken(option, await read((this.#valueOf(option) ?? usual ?? '').trim()));
  }

  /** Asks for the file of a secret that nobody types, such as a private key. `text`: the question. */
  async askForFile(text: string): Promise<void> {
    const { cwd } = this.#session.context;
    this.#tokenFile = await this.settle({
      option: 'token-file',
      text,
      usual: null,
      read(typed) {
        const path = resolve(cwd, typed);
        return existsSync(path) ? { value: path } : { again: `${path} does not exist.` };
      },
    });
    this.#hasToken = true;
  }

  /** Uses the token of an existing file, else a typed one, which the service may refuse a few times. `seen`: null if it was not asked. */
  async signIn<T>({ text, read, see, refusals }: SignIn<T>): Promise<{ token: string; seen: T | null }> {
    const seen = async (token: string, from: string) => ({ token, seen: this.#flags.check ? await see(token, from) : null });
    if (this.#hasToken) this.say(`using the token in ${this.#tokenFile}`);
    if (this.#hasToken || this.#person === null)
      return await seen(await tokenIn(this.#tokenFile, read, this.#what), `file ${this.#tokenFile}`);
    for (let tries = 1; ; tries++) {
      const token = await this.#person.ask({ text: `${text} (input is hidden)`, usual: null, hidden: true, read });
      try {
        return await seen(token, 'as it was typed');
      } catch (error) {
        if (!(error instanceof OnejobError) || !refusals.includes(error.code) || tries === mostTokens) throw error;
        this.say(error.message);
      }
    }
  }

  /** Asks for the rest, and writes. `inPipeline`: lines of a pipeline that uses it. */
  async finish({ token, name, queue, keys, poolKeys, inPipeline }: FrameEnd): Promise<number> {
    const { type, title } = this.#service;
    const inventory = await lookAtCards(this.#session);
    const count = countCards(inventory).cards;
    const agents = await this.settle({
      option: 'agents',
      text: count === 0 ? 'Number of agents' : `Number of agents, or per-device (this host has ${count} for jobs)`,
      usual: count === 0 ? '2' : 'per-device',
      read: readAgents,
    });
    if (agents === 'per-device' && count === 0) this.say('this host has no card for jobs now: no agent starts until it has one');
    const expires = await this.settle({
      option: 'expires',
      text: 'Last day of the token, such as 2027-05-01, to get a warning in time (empty: none, or unknown)',
      usual: '',
      read: readDay,
    });
    const written = [this.#config, ...(this.#hasToken ? [] : [this.#tokenFile])] as const;
    if (!(await this.#isWanted(written.join(' and ')))) {
      this.say('nothing was written');
      return exitCodes.failed;
    }
    const secret = { file: this.#tokenFile, ...(expires !== null && { expires }) };
    const file = {
      services: { [name]: { type, ...keys(secret) } },
      pools: { [name]: { service: name, queue, agents, devices: devicesFor(agents, inventory), ...poolKeys } },
    };
    const head = `# Agents for ${title}. Every key: docs/configuration.md; "onejob config show" prints the values in use.\n`;
    if (!this.#hasToken) writeFile(this.#tokenFile, `${token}\n`);
    writeFile(this.#config, head + stringify(file, { lineWidth: 0 }));
    const shown = ['', 'In a pipeline:', ...inPipeline.map((line) => `  ${line}`)];
    return tellWritten(this.#session, written, 'the first time it builds the image of the agents', shown);
  }

  [Symbol.dispose](): void {
    this.#outbound.close();
    this.#person?.[Symbol.dispose]();
  }

  #valueOf(option: string): string | null {
    const { own, agents, expires } = this.#flags;
    return option === 'agents' ? agents : option === 'expires' ? expires : (own[option] ?? null);
  }

  /** @throws OnejobError E_USAGE for an invalid option value */
  #taken<T>(option: string, answer: Reply<T>): T {
    if ('value' in answer) return answer.value;
    throw wrongUsage(`Invalid value for --${option}. ${answer.again}`, `See "onejob init ${this.#service.type} --help".`);
  }

  /** Checks what is required without a terminal. @throws OnejobError E_USAGE, E_SECRET */
  #refuseWithout(asked: readonly AskedFirst[]): void {
    const { own, tokenFile, agents, yes } = this.#flags;
    const missing = asked.flatMap(({ option, needs, usual }) =>
      needs === undefined || own[option] !== undefined || (yes && usual !== null) ? [] : [`--${option} ${needs}`],
    );
    if (tokenFile === null && !this.#hasToken) missing.push('--token-file FILE');
    if (agents === null && !yes) missing.push('--agents N (or --yes for the defaults)');
    if (missing.length > 0) {
      const message = `There is no terminal to ask on, and these are missing: ${missing.join(', ')}.`;
      throw wrongUsage(message, 'Give them as options, or start onejob on a terminal.');
    }
    if (this.#hasToken) return;
    throw new OnejobError('E_SECRET', `The token file ${this.#tokenFile} does not exist.`, {
      hint: `Put ${this.#what} into it first: install -D -m 600 /dev/stdin ${this.#tokenFile}`,
    });
  }

  /** Whether the files shall be written. */
  async #isWanted(files: string): Promise<boolean> {
    if (this.#person === null || this.#flags.yes) return true;
    return this.#person.ask<boolean>({
      text: `Write ${files}?`,
      usual: 'yes',
      read: (typed) => (/^(y|yes|n|no)$/i.test(typed) ? { value: /^y/i.test(typed) } : { again: 'Write yes or no.' }),
    });
  }
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
  const { errors, warnings } = await checkConfig({
    types,
    ...configSource(session),
    look: lookAtHost,
    flags: { config: written[0] },
  });
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
