/** The steps that every `init SERVICE` shares: first its files and the token, finally the agents, consent, and writing both files. */
import { existsSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { stringify } from 'yaml';
import type { InitSteps, ServiceType } from '../ci/service-type.ts';
import { type ErrorCode, OnejobError } from '../errors.ts';
import { exitCodes } from './exit.ts';
import { type Answer, openPerson } from './init-ask.ts';
import {
  configPlace,
  devicesFor,
  isWanted,
  readAgents,
  readDay,
  refuseToOverwrite,
  refuseWithout,
  type Settling,
  settle,
  taken,
  tellWritten,
  tokenIn,
  writeFile,
} from './init-steps.ts';
import type { Session } from './session.ts';
import { countCards, lookAtCards } from './share-cards.ts';

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

export interface Frame extends Disposable {
  readonly settling: Settling;
  /** Aborted when the person leaves. */
  readonly signal: AbortSignal;
  /** Uses the token of an existing file, else a typed one, which the service may refuse a few times. */
  signIn<T>(how: SignIn<T>): Promise<{ readonly token: string; readonly seen: T }>;
  /** Asks for the rest, and writes. `inPipeline`: lines of a pipeline that uses it. */
  finish(end: FrameEnd): Promise<number>;
}

export interface SignIn<T> {
  readonly text: string;
  readonly read: (typed: string) => Answer<string>;
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
export type OpenFrame = (missing: readonly string[]) => Frame;

/** @throws OnejobError E_USAGE, E_SECRET, before a token is typed */
export function openFrame(
  session: Session,
  flags: InitFlags,
  { type, title }: Pick<ServiceType, 'type' | 'title'>,
  { what, file: tokenName }: InitSteps['token'],
  missing: readonly string[],
): Frame {
  const { context, output } = session;
  const stdin = context.stdin();
  const isThere = stdin.isTTY === true && !output.json;
  const config = configPlace(session.flags, context.environment);
  if (!flags.force) refuseToOverwrite(config, '--config');
  const tokenFile = flags.tokenFile === null ? join(dirname(config), tokenName) : resolve(context.cwd, flags.tokenFile);
  const hasToken = existsSync(tokenFile) && !(flags.force && isThere && flags.tokenFile === null);
  if (!isThere) refuseWithout([...missing, ...missingOf(flags, hasToken)], hasToken, tokenFile, what);
  if (flags.agents !== null) taken(type, '--agents', readAgents(flags.agents.trim()));
  if (flags.expires !== null) taken(type, '--expires', readDay(flags.expires.trim()));
  const person = isThere ? openPerson(stdin, context.stderr) : null;
  const settling: Settling = { service: type, person, yes: flags.yes };

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
    const up = 'run the daemon; the first time it builds the image of the agents';
    return tellWritten(session, [config, ...(hasToken ? [] : [tokenFile])], up, shown);
  }

  return {
    ...{ settling, signIn, finish },
    signal: person?.left ?? new AbortController().signal,
    [Symbol.dispose]: () => person?.[Symbol.dispose](),
  };
}

function missingOf({ agents, yes, tokenFile }: InitFlags, hasToken: boolean): string[] {
  return [
    ...(tokenFile === null && !hasToken ? ['--token-file FILE'] : []),
    ...(agents === null && !yes ? ['--agents N (or --yes for the defaults)'] : []),
  ];
}
