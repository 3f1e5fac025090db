/** `onejob init buildkite`: asks for a token and queue, and checks them at the service before it writes anything. */

import { hasCode, OnejobError } from '../../base/errors.ts';
import { createServiceApi, type QueueCounts, type ServiceApi, type TokenIdentity } from '../../ci/buildkite/api.ts';
import { howManyWait, ofClock, whatIs } from '../../ci/buildkite/doctor/doctor.ts';
import { usualEndpoint } from '../../ci/buildkite/schema.ts';
import type { Asked, Reply } from './ask.ts';
import { notChecked, readCredential } from './kit.ts';
import { type InitFlags, inYaml, type OpenFrame } from './steps.ts';

const server: Asked<string> = { option: 'endpoint', text: '', usual: usualEndpoint, form: readEndpoint, read: readEndpoint };
const key: Asked<string> = {
  option: 'queue',
  needs: 'QUEUE',
  text: 'Queue that the agents take jobs from',
  usual: 'default',
  form: readQueue,
  read: readQueue,
};

export async function initBuildkite(flags: InitFlags, open: OpenFrame): Promise<number> {
  using frame = open(server, key);
  // Nobody is asked for it: almost all use the same.
  const endpoint = await frame.given(server);
  const api = createServiceApi({ endpoint, ...frame.calling });
  const { token, seen } = await frame.signIn({
    text: 'Agent token',
    read: readAgentToken,
    refusals: ['E_CI_CREDENTIAL', 'E_CI_DENIED'],
    async see(typed) {
      const found = await seeToken(api, endpoint, typed, frame.signal);
      for (const line of found.lines) frame.say(line);
      return found;
    },
  });
  const usual = seen?.identity?.queue ?? 'default';
  const isTyped = frame.asks({ ...key, usual });
  let doubted: string | null = null;
  const queue = await frame.settle({
    ...key,
    usual,
    read(typed) {
      const answer = readQueue(typed);
      if (!('value' in answer) || seen === null) return answer;
      try {
        const lines = seeQueue(seen, answer.value);
        if (isStrange(seen, answer.value) && !flags.force && answer.value !== doubted) {
          const said = lines.join(' ');
          const hint = 'Name an existing queue with --queue, or use it anyway with --force.';
          if (!isTyped) throw new OnejobError('E_USAGE', said, { hint });
          doubted = answer.value;
          return { again: `${said} Type it again to use it anyway.` };
        }
        for (const line of lines) frame.say(line);
        return answer;
      } catch (error) {
        if (!isTyped || !(error instanceof OnejobError) || error.code === 'E_USAGE') throw error;
        return { again: error.message };
      }
    },
  });
  return await frame.finish({
    token,
    name: 'buildkite',
    queue,
    keys: (reference) => ({ token: reference, ...(endpoint !== usualEndpoint && { endpoint }) }),
    // For repositories with SSH addresses; onejob adds what every checkout needs.
    poolKeys: { image: { base: 'auto', packages: ['openssh-client'] } },
    inPipeline: ['agents:', `  queue: ${inYaml(queue)}`],
  });
}

/** Other kinds of tokens, by their prefix (docs page `platform/security/tokens`). */
const others: readonly (readonly [string, string])[] = [
  ['bkua_', 'an API access token, which can do much more than onejob needs'],
  ['bkaa_', 'a token of one agent'],
  ['bkaj_', 'a token of one job'],
  ['bkjat_', "a token for one job's agent"],
];

function readAgentToken(typed: string): Reply<string> {
  const form = readCredential('agent token', 8)(typed);
  if (!('value' in form)) return form;
  const other = others.find(([prefix]) => typed.startsWith(prefix))?.[1];
  if (other === undefined) return form;
  return { again: `The token is ${other}; an agent token begins with bkct_ (Agents, the cluster, Agent Tokens).` };
}

function readQueue(typed: string): Reply<string> {
  if (typed !== '' && typed.length <= 128 && !/[,=\s]/.test(typed)) return { value: typed };
  return { again: 'Type the key of a queue, without spaces, commas or "=".' };
}

function readEndpoint(typed: string): Reply<string> {
  const good = /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(typed) && URL.canParse(typed);
  return good ? { value: typed.replace(/\/+$/, '') } : { again: `Expected an address such as ${usualEndpoint}.` };
}

/** What the service said with a token. */
interface Seen {
  /** null: the service was not reached, or does not say. */
  readonly identity: TokenIdentity | null;
  readonly counts: QueueCounts | null;
  readonly lines: readonly string[];
}

/** An unreachable service is not an error. @throws OnejobError E_CI_CREDENTIAL, E_CI_DENIED, E_CI_ANSWER */
async function seeToken(api: ServiceApi, endpoint: string, token: string, signal: AbortSignal): Promise<Seen> {
  const lines: string[] = [];
  let identity: TokenIdentity | null = null;
  try {
    const told = await api.identity(token, signal);
    if (told !== null) {
      identity = told.value;
      const ofSkew = ofClock('', told.skew).map(({ message, hint }) => `${message} ${hint}`);
      lines.push(`${endpoint} accepts the token${whatIs(identity)}.`, ...ofSkew);
    }
  } catch (error) {
    if (hasCode(error, 'E_CI_CREDENTIAL', 'E_CI_DENIED')) {
      const hint = 'Create an agent token on the website: Agents, the cluster, Agent Tokens. It begins with bkct_.';
      throw new OnejobError(error.code, `The service refuses the token. ${error.message}`, { hint, cause: error });
    }
    // A later try could help, so that the token may be good.
    return { identity: null, counts: null, lines: [notChecked(error, 'the token')] };
  }
  try {
    return { identity, counts: (await api.counts(token, signal)).value, lines };
  } catch (error) {
    if (!(error instanceof OnejobError)) throw error;
    return {
      identity,
      counts: null,
      lines: [...lines, `${error.message} onejob does not count queues then; everything else works.`],
    };
  }
}

/** Whether the service lists queues, but not this one. A new cluster lists none. */
function isStrange({ counts }: Seen, queue: string): boolean {
  return counts !== null && counts.known.size > 0 && !counts.known.has(queue);
}

/** @throws OnejobError E_CI_POOL when the token is for another queue */
function seeQueue({ identity, counts }: Seen, queue: string): string[] {
  const only = identity?.queue ?? null;
  if (only !== null && only !== queue) {
    throw new OnejobError('E_CI_POOL', `The token is only for queue ${JSON.stringify(only)}, not for ${JSON.stringify(queue)}.`, {
      hint: `Name ${JSON.stringify(only)}, or create a token for the whole cluster.`,
    });
  }
  if (counts === null) return [];
  if (counts.known.has(queue))
    return [`Queue ${JSON.stringify(queue)} exists; ${howManyWait(counts.scheduled.get(queue) ?? 0)} in it.`];
  const names = [...counts.known].toSorted().slice(0, 10);
  const seen = names.length === 0 ? '' : ` It lists: ${names.join(', ')}.`;
  return [
    `The service does not list queue ${JSON.stringify(queue)}: the queue has no agent and no job, or does not exist.${seen} In a cluster, create it on the website first.`,
  ];
}
