/** `onejob init azure-pipelines`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */

import { hasCode, OnejobError } from '../../base/errors.ts';
import { AzureClient } from '../../ci/azure-pipelines/client.ts';
import { createCredential } from '../../ci/azure-pipelines/credential.ts';
import { ofClock } from '../../ci/azure-pipelines/doctor.ts';
import { azureUrlToKeep, parseAzureUrl } from '../../ci/azure-pipelines/url.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { Session } from '../session.ts';
import type { Reply } from './ask.ts';
import { notChecked } from './kit.ts';
import { type InitFlags, inYaml, type OpenFrame, settle } from './steps.ts';

export async function initAzure({ output, version }: Session, flags: InitFlags, open: OpenFrame): Promise<number> {
  const { url: givenUrl = null, pool: givenPool = null } = flags.own;
  using frame = open([...(givenUrl === null ? ['--url URL'] : []), ...(givenPool === null ? ['--pool NAME'] : [])]);
  const { settling, signal } = frame;

  const url = await settle(settling, givenUrl, '--url', {
    text: 'Address of the organisation, such as https://dev.azure.com/acme',
    usual: null,
    read: readUrl,
  });
  if (givenUrl !== null && url !== givenUrl.replace(/\/+$/, '')) output.say(`onejob uses ${url} from the address`);
  const { token, seen: look } = await frame.signIn({
    text: 'Personal access token',
    read: readToken,
    refusals: ['E_CI_CREDENTIAL'],
    async see(typed, from) {
      if (!flags.check) return null;
      const client = lookWith(url, typed, from, version);
      try {
        const { user, skew } = await client.connection(signal);
        output.say(`${url} accepts the token${user === null ? '' : ` of ${user}`}.`);
        for (const { message, hint } of ofClock('', skew)) output.say(`${message} ${hint}`);
        return client;
      } catch (error) {
        output.say(notChecked(error, 'the token'));
        return null;
      }
    },
  });

  const pool = await settle(settling, givenPool, '--pool', {
    text: 'Name of the agent pool',
    usual: null,
    read: async (name) => {
      if (look === null) return { value: name };
      try {
        for (const line of await checkPool(look, name, signal)) output.say(line);
        return { value: name };
      } catch (error) {
        if (!hasCode(error, 'E_CI_POOL')) {
          output.say(notChecked(error, 'the pool'));
          return { value: name };
        }
        if (settling.person === null || givenPool !== null) throw error;
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

function readUrl(typed: string): Reply<string> {
  const parsed = parseAzureUrl(typed);
  if (parsed.ok) return { value: parsed.value };
  const kept = azureUrlToKeep(typed);
  return kept === null ? { again: `It ${parsed.why}.`.replace('It expected', 'Expected') } : { value: kept };
}

function readToken(typed: string): Reply<string> {
  if (typed === '') return { again: 'It is empty.' };
  return /\s/.test(typed) ? { again: 'The personal access token is malformed: it contains whitespace.' } : { value: typed };
}

type Look = Pick<AzureClient, 'connection' | 'findPool' | 'pools'>;

/** `from`: where the token came from, for messages. */
function lookWith(url: string, token: string, from: string, version: string): Look {
  const reference = { kind: 'memory', name: from, expires: null, read: () => token } as const;
  const credential = createCredential({ kind: 'pat', token: reference }, { clock: systemClock, url });
  return new AzureClient({ url, credential, clock: systemClock, version });
}

/** @throws OnejobError E_CI_POOL with the pools that there are, E_CI_* */
async function checkPool(look: Look, pool: string, signal: AbortSignal): Promise<string[]> {
  const found = await look.findPool(pool, signal);
  if (found !== null) {
    const advice =
      'It updates its agents automatically, which does not work well with single-use agents: turn that off in its settings.';
    return [`There is an agent pool ${JSON.stringify(pool)}.`, ...(found.autoUpdate === true ? [advice] : [])];
  }
  const names = (await look.pools(signal)).filter(({ isHosted }) => !isHosted).map(({ name }) => name);
  const seen = names.length === 0 ? 'It shows no agent pools to this token.' : `It has: ${names.join(', ')}.`;
  const hint = 'Create it on the website (Organization settings, Agent pools), or type the name of another one.';
  throw new OnejobError('E_CI_POOL', `The service has no agent pool ${JSON.stringify(pool)}. ${seen}`, { hint });
}
