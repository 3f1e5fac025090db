/** `onejob init gitea`: asks for address, token and queue, and checks them at the server before it writes anything. */

import { OnejobError } from '../../base/errors.ts';
import { GiteaClient } from '../../ci/gitea/client.ts';
import { Places } from '../../ci/gitea/registry.ts';
import { queueForm } from '../../ci/gitea/type.ts';
import { createOutbound } from '../../http/outbound.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { Session } from '../session.ts';
import type { Reply } from './ask.ts';
import { readUrl as readUrlOf, sayFound } from './kit.ts';
import { type InitFlags, type OpenFrame, settle, taken } from './steps.ts';

const readUrl = readUrlOf('https://git.example.org');

export async function initGitea({ output, version, context }: Session, flags: InitFlags, open: OpenFrame): Promise<number> {
  const { url: givenUrl = null, queue: givenQueue = null } = flags.own;
  if (givenUrl !== null) taken('gitea', '--url', readUrl(givenUrl));
  if (givenQueue !== null) taken('gitea', '--queue', readQueue(givenQueue.trim()));
  const missing = [...(givenUrl === null ? ['--url URL'] : []), ...(givenQueue === null ? ['--queue NAME'] : [])];
  using frame = open(missing);
  const { settling, signal } = frame;
  const url = await settle(settling, givenUrl, '--url', { text: 'Address of the Gitea server', usual: null, read: readUrl });

  const outbound = createOutbound(context.environment.proxies);
  const clientWith = (token: string) =>
    new GiteaClient({ url, token: async () => token, clock: systemClock, fetch: outbound.fetch, version });
  try {
    const { token } = await frame.signIn({
      text: 'Access token',
      read: readToken,
      refusals: ['E_CI_CREDENTIAL', 'E_CI_DENIED'],
      async see(typed) {
        if (!flags.check) return null;
        return sayFound(output, async () => {
          const { version: theirs } = await clientWith(typed).version(signal);
          const user = await clientWith(typed).user(signal);
          return `${url} is Gitea ${theirs}${user === null ? '' : `, and the token is that of ${user}`}.`;
        });
      },
    });
    const client = clientWith(token);
    const places = new Places(client, url);
    const queue = await settle(settling, givenQueue, '--queue', {
      text: 'Whose jobs to run: an organisation, a repository such as acme/app, or * for the whole instance',
      usual: null,
      async read(typed) {
        const answer = readQueue(typed);
        if (!('value' in answer) || !flags.check) return answer;
        try {
          await client.seesJobs(signal);
          const place = await places.find(answer.value, signal);
          const runners = await client.runners(place, signal);
          await client.registrationToken(place, signal);
          output.say(`The token may manage the runners of ${places.titleOf(answer.value)}; there are ${runners.length}.`);
        } catch (error) {
          if (!(error instanceof OnejobError) || signal.aborted) throw error;
          if (!error.retry) return { again: `${error.message} ${error.hint ?? ''}`.trim() };
          output.say(`${error.message} So onejob could not check the name; "onejob doctor" checks it when the service answers.`);
        }
        return answer;
      },
    });
    return await frame.finish({
      token,
      name: 'gitea',
      queue,
      keys: (reference) => ({ url, token: reference }),
      poolKeys: { image: 'auto' },
      inPipeline: ['runs-on: gitea'],
    });
  } finally {
    outbound.close();
  }
}

function readToken(typed: string): Reply<string> {
  if (typed === '') return { again: 'It is empty.' };
  if (/^[\x21-\x7e]{20,4096}$/.test(typed)) return { value: typed };
  return { again: 'The access token is malformed: it is too short or contains whitespace.' };
}

function readQueue(typed: string): Reply<string> {
  if (queueForm.test(typed)) return { value: typed };
  return { again: 'Type an organisation (acme), a repository (acme/app), or * for the whole instance.' };
}
