/** `onejob init`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import { existsSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { countCards } from './azure-cards.ts';
import { exitCodes } from './exit.ts';
import { openPerson } from './init-ask.ts';
import { checkPool, checkSignIn, type Look, lookWith } from './init-check.ts';
import { type Answers, initFile, readAgents, readDay, readToken, readUrl } from './init-config.ts';
import { configPlace, refuseToOverwrite, writePrivate } from './init-files.ts';
import {
  type InitService,
  inYaml,
  isWanted,
  refuseWithout,
  type Settling,
  settle,
  taken,
  tellWritten,
  tokenIn,
} from './init-steps.ts';
import { lookAtCards } from './look-at-cards.ts';
import type { Session } from './session.ts';

/** Services that `init` knows, with what it does. */
export const initServices = {
  'azure-pipelines': 'asks for organisation, token and pool, checks them, and writes config and token file',
  buildkite: 'asks for token and queue, checks them, and writes config and token file',
} as const satisfies Record<InitService, string>;

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
const what = 'the personal access token';

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
  if (!isThere) refuseWithout(missing(flags, hasToken), hasToken, tokenFile, what);
  using person = isThere ? openPerson(stdin, context.stderr) : null;
  const settling: Settling = { service: 'azure-pipelines', person, yes: flags.yes };
  // What can be judged at once is not refused after a token was typed and the service was asked.
  if (flags.agents !== null) taken('azure-pipelines', '--agents', readAgents(flags.agents.trim()));
  if (flags.expires !== null) taken('azure-pipelines', '--expires', readDay(flags.expires.trim()));
  const signal = person?.left ?? new AbortController().signal;
  const say = (lines: readonly string[]) => {
    for (const line of lines) output.say(line);
  };

  const url = await settle(settling, flags.url, '--url', {
    text: 'Address of the organisation, such as https://dev.azure.com/acme',
    usual: null,
    read: readUrl,
  });
  if (flags.url !== null && url !== flags.url.replace(/\/+$/, '')) output.say(`what is used of the address is ${url}`);
  if (hasToken) output.say(`the token in ${tokenFile} is used`);
  const { token, look } = await signIn();

  const pool = await settle(settling, flags.pool, '--pool', {
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
  const agents = await settle(settling, flags.agents, '--agents', {
    text: count === 0 ? 'Number of agents' : `Number of agents, or per-device (this host has ${count} for jobs)`,
    usual: count === 0 ? '2' : 'per-device',
    read: readAgents,
  });
  if (agents === 'per-device' && count === 0)
    output.say('this host has no card for jobs now: there will be no agent until it has one');
  const expires = await settle(settling, flags.expires, '--expires', {
    text: 'Last day of the token, such as 2027-05-01, to be warned in time (empty: unknown)',
    usual: '',
    read: readDay,
  });

  const answers: Answers = { url, pool, agents, tokenFile, expires };
  const files = hasToken ? config : `${config} and ${tokenFile}`;
  if (!(await isWanted(settling, files))) {
    output.say('nothing was written');
    return exitCodes.failed;
  }
  const file = initFile(answers, inventory);
  if (!hasToken) writePrivate(tokenFile, `${token}\n`);
  writePrivate(config, file);
  return tellWritten(session, config, hasToken ? null : tokenFile, ['pool:', `  name: ${inYaml(pool)}`]);

  async function signIn(): Promise<{ token: string; look: Look | null }> {
    if (hasToken || person === null) {
      const value = await tokenIn(tokenFile, readToken, what);
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

function missing({ url, pool, agents, yes, tokenFile }: InitFlags, hasToken: boolean): string[] {
  return [
    ...(url === null ? ['--url URL'] : []),
    ...(pool === null ? ['--pool NAME'] : []),
    ...(tokenFile === null && !hasToken ? ['--token-file FILE'] : []),
    ...(agents === null && !yes ? ['--agents N (or --yes for what is usual)'] : []),
  ];
}
