/** `onejob init azure-pipelines`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */
import type { Answer } from '../../cli/init-ask.ts';
import type { InitFlags, OpenFrame } from '../../cli/init-frame.ts';
import { inYaml, settle } from '../../cli/init-steps.ts';
import type { Session } from '../../cli/session.ts';
import { OnejobError } from '../../errors.ts';
import { checkPool, checkSignIn, lookWith } from './init-check.ts';
import { azureUrlToKeep, parseAzureUrl } from './url.ts';

export async function initAzure({ output, version }: Session, flags: InitFlags, open: OpenFrame): Promise<number> {
  const { url: givenUrl = null, pool: givenPool = null } = flags.own;
  using frame = open([...(givenUrl === null ? ['--url URL'] : []), ...(givenPool === null ? ['--pool NAME'] : [])]);
  const { settling, signal } = frame;
  const say = (lines: readonly string[]) => {
    for (const line of lines) output.say(line);
  };

  const url = await settle(settling, givenUrl, '--url', {
    text: 'Address of the organisation, such as https://dev.azure.com/acme',
    usual: null,
    read: readUrl,
  });
  if (givenUrl !== null && url !== givenUrl.replace(/\/+$/, '')) output.say(`what is used of the address is ${url}`);
  const { token, seen: look } = await frame.signIn({
    text: 'Personal access token',
    read: readToken,
    refusals: ['E_CI_CREDENTIAL'],
    async see(typed, from) {
      if (!flags.check) return null;
      const client = await lookWith(url, typed, from, version);
      say(await checkSignIn(client, url, signal));
      return client;
    },
  });

  const pool = await settle(settling, givenPool, '--pool', {
    text: 'Name of the agent pool',
    usual: null,
    read: async (name) => {
      if (look === null) return { value: name };
      try {
        say(await checkPool(look, name, signal));
        return { value: name };
      } catch (error) {
        if (settling.person === null || givenPool !== null || !(error instanceof OnejobError) || error.code !== 'E_CI_POOL')
          throw error;
        return { again: error.message };
      }
    },
  });

  return await frame.finish({
    token,
    name: 'azure',
    queue: pool,
    keys: (reference) => ({ url, token: reference }),
    inPipeline: ['pool:', `  name: ${inYaml(pool)}`],
  });
}

function readUrl(typed: string): Answer<string> {
  const parsed = parseAzureUrl(typed);
  if (parsed.ok) return { value: parsed.value };
  const kept = azureUrlToKeep(typed);
  return kept === null ? { again: `It ${parsed.why}.`.replace('It expected', 'Expected') } : { value: kept };
}

function readToken(typed: string): Answer<string> {
  if (typed === '') return { again: 'It is empty.' };
  return /\s/.test(typed) ? { again: 'It has blanks inside, so it is no personal access token.' } : { value: typed };
}
