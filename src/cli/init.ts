/** `onejob init`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { checkConfig } from '../config/load.ts';
import { formatProblem } from '../config/problem.ts';
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { checkSecret } from '../secrets/reference.ts';
import { countCards } from './azure-cards.ts';
import { exitCodes } from './exit.ts';
import { type Answer, openPerson, type Person, type Question } from './init-ask.ts';
import { checkPool, checkSignIn, type Look, lookWith } from './init-check.ts';
import { type Answers, initFile, readAgents, readDay, readToken, readUrl } from './init-config.ts';
import { configPlace, refuseToOverwrite, writePrivate } from './init-files.ts';
import { lookAtCards } from './look-at-cards.ts';
import type { Session } from './session.ts';

/** Services that `init` knows, with what it does. */
export const initServices = {
  'azure-pipelines': 'asks for organisation, token and pool, checks them, and writes config and token file',
} as const;

export async function listServices({ output }: Session): Promise<number> {
  const rows = Object.entries(initServices).map(([name, does]) => `  onejob init ${name}    ${does}`);
  if (output.json) await output.value(Object.keys(initServices));
  else
    await output.print('onejob can set itself up for:', ...rows, '', 'The own queue needs nothing: type "onejob run -- COMMAND".');
  return exitCodes.ok;
}

/** null where nothing was said. */
export interface InitFlags {
  readonly url: string | null;
  readonly pool: string | null;
  readonly tokenFile: string | null;
  readonly agents: string | null;
  readonly expires: string | null;
  /** Takes what is usual where nothing was said, and asks for no consent. */
  readonly yes: boolean;
  readonly force: boolean;
  /** false: the service is not asked. */
  readonly check: boolean;
}

/** Where a test has something else. */
export interface InitParts {
  readonly look: typeof lookWith;
  readonly cards: (session: Session) => Promise<Inventory>;
}

/** How often a token may be wrong. */
const mostTokens = 3;

export async function initAzure(
  session: Session,
  flags: InitFlags,
  { look: sign, cards }: InitParts = { look: lookWith, cards: lookAtCards },
): Promise<number> {
  const { context, output, version } = session;
  const stdin = context.stdin();
  const isThere = stdin.isTTY === true && !output.json;
  const config = configPlace(session.flags, context.environment);
  if (!flags.force) refuseToOverwrite(config, '--config');
  const tokenFile = flags.tokenFile === null ? join(dirname(config), 'azure.pat') : resolve(context.cwd, flags.tokenFile);
  const hasToken = existsSync(tokenFile) && !(flags.force && isThere && flags.tokenFile === null);
  if (!isThere) refuseWithout(flags, hasToken, tokenFile);
  using person = isThere ? openPerson(stdin, context.stderr) : null;
  // What can be judged at once is not refused after a token was typed and the service was asked.
  if (flags.agents !== null) taken('--agents', readAgents(flags.agents.trim()));
  if (flags.expires !== null) taken('--expires', readDay(flags.expires.trim()));
  const signal = person?.left ?? new AbortController().signal;
  const say = (lines: readonly string[]) => {
    for (const line of lines) output.say(line);
  };

  const url = await settle(person, flags.url, '--url', {
    text: 'Address of the organisation, such as https://dev.azure.com/acme',
    usual: null,
    read: readUrl,
  });
  if (flags.url !== null && url !== flags.url.replace(/\/+$/, '')) output.say(`what is used of the address is ${url}`);
  if (hasToken) output.say(`the token in ${tokenFile} is used`);
  const { token, look } = await signIn();

  const pool = await settle(person, flags.pool, '--pool', {
    text: 'Name of the agent pool',
    usual: null,
    read: async (name) => {
      if (look === null) return { value: name };
      try {
        say(await checkPool(look, name, signal));
        return { value: name };
      } catch (error) {
        if (person === null || flags.pool !== null || !(error instanceof OnejobError) || error.code !== 'E_CI_POOL') throw error;
        return { again: error.message };
      }
    },
  });

  const inventory = await cards(session);
  const count = countCards(inventory).cards;
  const agents = await settle(person, flags.agents, '--agents', {
    text: count === 0 ? 'Number of agents' : `Number of agents, or per-device (this host has ${count} for jobs)`,
    usual: count === 0 ? '2' : 'per-device',
    read: readAgents,
  });
  if (agents === 'per-device' && count === 0)
    output.say('this host has no card for jobs now: there will be no agent until it has one');
  const expires = await settle(person, flags.expires, '--expires', {
    text: 'Last day of the token, such as 2027-05-01, to be warned in time (empty: unknown)',
    usual: '',
    read: readDay,
  });

  const answers: Answers = { url, pool, agents, tokenFile, expires };
  const files = hasToken ? config : `${config} and ${tokenFile}`;
  const isWanted =
    person === null ||
    flags.yes ||
    (await person.ask<boolean>({
      text: `Write ${files}?`,
      usual: 'yes',
      read: (typed) => (/^(y|yes|n|no)$/i.test(typed) ? { value: /^y/i.test(typed) } : { again: 'Write yes or no.' }),
    }));
  if (!isWanted) {
    output.say('nothing was written');
    return exitCodes.failed;
  }
  const file = initFile(answers, inventory);
  if (!hasToken) writePrivate(tokenFile, `${token}\n`);
  writePrivate(config, file);
  return tell(session, config, hasToken ? null : tokenFile, pool);

  /** A value that was given is read as one that is typed; what nobody said is asked, or as usual. */
  async function settle<T>(who: Person | null, given: string | null, option: string, question: Question<T>): Promise<T> {
    if (given === null && who !== null && !(flags.yes && question.usual !== null)) return who.ask(question);
    return taken(option, await question.read((given ?? question.usual ?? '').trim()));
  }

  async function signIn(): Promise<{ token: string; look: Look | null }> {
    if (hasToken || person === null) {
      const value = await tokenIn(tokenFile);
      const client = flags.check ? await sign(url, value, `file ${tokenFile}`, version) : null;
      if (client !== null) say(await checkSignIn(client, url, signal));
      return { token: value, look: client };
    }
    for (let tries = 1; ; tries++) {
      const value = await person.ask({
        text: 'Personal access token (it is not shown)',
        usual: null,
        hidden: true,
        read: readToken,
      });
      if (!flags.check) return { token: value, look: null };
      const client = await sign(url, value, 'as it was typed', version);
      try {
        say(await checkSignIn(client, url, signal));
        return { token: value, look: client };
      } catch (error) {
        if (!(error instanceof OnejobError) || error.code !== 'E_CI_CREDENTIAL' || tries === mostTokens) throw error;
        output.say(error.message);
      }
    }
  }
}

/** @throws OnejobError E_USAGE where an option's value cannot be used */
function taken<T>(option: string, answer: Answer<T>): T {
  if ('value' in answer) return answer.value;
  throw new OnejobError('E_USAGE', `${option} cannot be used. ${answer.again}`, {
    hint: 'See "onejob init azure-pipelines --help".',
  });
}

function refuseWithout({ url, pool, agents, yes, tokenFile: given }: InitFlags, hasToken: boolean, tokenFile: string): void {
  const missing = [
    ...(url === null ? ['--url URL'] : []),
    ...(pool === null ? ['--pool NAME'] : []),
    ...(given === null && !hasToken ? ['--token-file FILE'] : []),
    ...(agents === null && !yes ? ['--agents N (or --yes for what is usual)'] : []),
  ];
  if (missing.length > 0) {
    throw new OnejobError('E_USAGE', `There is no terminal to ask on, so these are needed: ${missing.join(', ')}.`, {
      hint: 'Type them, or start it on a terminal.',
    });
  }
  if (hasToken) return;
  throw new OnejobError('E_SECRET', `The token file ${tokenFile} does not exist.`, {
    hint: `Put the personal access token into it first: install -D -m 600 /dev/stdin ${tokenFile}`,
  });
}

/** @throws OnejobError E_SECRET */
async function tokenIn(path: string): Promise<string> {
  const { problem } = await checkSecret({ kind: 'file', path, expires: null }, 0);
  const read = problem === null ? readToken(readFileSync(path, 'utf8').trim()) : { again: `${problem}.` };
  if ('value' in read) return read.value;
  throw new OnejobError('E_SECRET', `Cannot use the token file ${path}: ${read.again}`, {
    hint: `Put the personal access token into it, and nothing else: install -m 600 /dev/stdin ${path}`,
  });
}

async function tell({ context, output, flags }: Session, config: string, tokenFile: string | null, pool: string): Promise<number> {
  const { errors, warnings } = await checkConfig({ flags: { config }, env: context.environment, cwd: context.cwd });
  for (const problem of [...errors, ...warnings]) output.say(formatProblem(problem));
  const written = [config, ...(tokenFile === null ? [] : [tokenFile])];
  const named = flags.config === null ? '' : ` --config ${config}`;
  if (output.json) await output.value({ written });
  else {
    await output.print(
      `Written: ${written.join(', ')}.`,
      '',
      'Next:',
      `  onejob up${named}        lead this host; the first time it builds the image of the agents`,
      `  onejob doctor${named}    see whether anything is missing`,
      '',
      'In a pipeline:',
      '  pool:',
      `    name: ${/^[A-Za-z][A-Za-z0-9 ._-]*$/.test(pool) ? pool : JSON.stringify(pool)}`,
    );
  }
  return errors.length === 0 ? exitCodes.ok : exitCodes.failed;
}
