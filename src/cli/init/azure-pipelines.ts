/** `onejob init azure-pipelines`: from nothing to a config file and a token file, asked for on a terminal and checked at the service. */

import { hasCode, OnejobError } from '../../base/errors.ts';
import { AzureClient } from '../../ci/azure-pipelines/client.ts';
import { createCredential } from '../../ci/azure-pipelines/credential.ts';
import { ofClock } from '../../ci/azure-pipelines/doctor.ts';
import { azureUrlToKeep, parseAzureUrl } from '../../ci/azure-pipelines/url.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { Asked, Reply } from './ask.ts';
import { notChecked } from './kit.ts';
import { type InitFlags, inYaml, type OpenFrame } from './steps.ts';

const organisation: Asked<string> = {
  option: 'url',
  needs: 'URL',
  text: 'Address of the organisation, such as https://dev.azure.com/acme',
  usual: null,
  read: readUrl,
};
const agentPool: Asked<string> = {
  option: 'pool',
  needs: 'NAME',
  text: 'Name of the agent pool',
  usual: null,
  read: (name) => ({ value: name }),
};

export async function initAzure({ own }: InitFlags, open: OpenFrame): Promise<number> {
  using frame = open(organisation, agentPool);
  const { signal, calling } = frame;
  const url = await frame.settle(organisation);
  if (own.url !== undefined && url !== own.url.replace(/\/+$/, '')) frame.say(`onejob uses ${url} from the address`);
  const { token, seen: look } = await frame.signIn({
    text: 'Personal access token',
    read: readToken,
    refusals: ['E_CI_CREDENTIAL'],
    async see(typed, from) {
      const client = lookWith(url, typed, from, calling.version);
      try {
        const { user, skew } = await client.connection(signal);
        frame.say(`${url} accepts the token${user === null ? '' : ` of ${user}`}.`);
        for (const { message, hint } of ofClock('', skew)) frame.say(`${message} ${hint}`);
        return client;
      } catch (error) {
        frame.say(notChecked(error, 'the token'));
        return null;
      }
    },
  });

  const pool = await frame.settle({
    ...agentPool,
    read: async (name) => {
      if (look === null) return { value: name };
      try {
        for (const line of await checkPool(look, name, signal)) frame.say(line);
      } catch (error) {
        if (!hasCode(error, 'E_CI_POOL')) frame.say(notChecked(error, 'the pool'));
        else if (frame.asks(agentPool)) return { again: error.message };
        else throw error;
      }
      return { value: name };
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
