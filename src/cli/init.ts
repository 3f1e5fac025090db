/** `onejob init`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import { OnejobError } from '../errors.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { exitCodes } from './exit.ts';
import { checkPool, checkSignIn, type Look, lookWith } from './init-check.ts';
import { initFile, readToken, readUrl } from './init-config.ts';
import { type CommonFlags, openFrame } from './init-frame.ts';
import { type InitService, inYaml, settle, tokenIn } from './init-steps.ts';
import { lookAtCards } from './look-at-cards.ts';
import type { Session } from './session.ts';

/** Services that `init` knows, with what it does. */
const initServices = {
  'azure-pipelines': 'asks for organisation, token and pool, checks them, and writes config and token file',
  buildkite: 'asks for token and queue, checks them, and writes config and token file',
  'own-queue': 'looks at the cards of this host, and writes a config for jobs of "onejob run"',
} as const satisfies Record<InitService | 'own-queue', string>;

export async function listServices({ output }: Session): Promise<number> {
  const rows = Object.entries(initServices).map(([name, does]) => `  onejob init ${name}    ${does}`);
  if (output.json) await output.value(Object.keys(initServices));
  else await output.print('onejob can set itself up for:', ...rows, '', 'Without a config "onejob run -- COMMAND" works, too.');
  return exitCodes.ok;
}

/** null where nothing was said. */
export interface InitFlags extends CommonFlags {
  readonly url: string | null;
  readonly pool: string | null;
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
  const { output, version } = session;
  using frame = openFrame(session, flags, { service: 'azure-pipelines', tokenName: 'azure.pat', what, missing: missing(flags) });
  const { person, settling, tokenFile, hasToken, signal } = frame;
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

  return await frame.finish({
    ...{ token, cards },
    file: (answers, inventory) => initFile({ ...answers, url, pool }, inventory),
    inPipeline: ['pool:', `  name: ${inYaml(pool)}`],
  });

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

function missing({ url, pool }: InitFlags): string[] {
  return [...(url === null ? ['--url URL'] : []), ...(pool === null ? ['--pool NAME'] : [])];
}
