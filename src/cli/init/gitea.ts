/** `onejob init gitea`: asks for address, token and queue, and checks them at the server before it writes anything. */

import { OnejobError } from '../../base/errors.ts';
import { GiteaClient } from '../../ci/gitea/client.ts';
import { createPlaces } from '../../ci/gitea/registry.ts';
import { queueForm } from '../../ci/gitea/type.ts';
import type { Asked, Reply } from './ask.ts';
import { readCredential, serverUrl } from './kit.ts';
import type { InitFlags, OpenFrame } from './steps.ts';

const server = serverUrl('Gitea', 'https://git.example.org');
const whose: Asked<string> = {
  option: 'queue',
  needs: 'NAME',
  text: 'Whose jobs to run: an organisation, a repository such as acme/app, or * for the whole instance',
  usual: null,
  form: readQueue,
  read: readQueue,
};

export async function initGitea(flags: InitFlags, open: OpenFrame): Promise<number> {
  using frame = open(server, whose);
  const { calling, signal } = frame;
  const url = await frame.settle(server);
  const clientWith = (token: string) => new GiteaClient({ url, token: async () => token, ...calling });
  const { token } = await frame.signIn({
    text: 'Access token',
    read: readCredential('access token', 20),
    refusals: ['E_CI_CREDENTIAL', 'E_CI_DENIED'],
    see: (typed) =>
      frame.sayFound(async () => {
        const { version: theirs } = await clientWith(typed).version(signal);
        const user = await clientWith(typed).user(signal);
        return `${url} is Gitea ${theirs}${user === null ? '' : `, and the token is that of ${user}`}.`;
      }),
  });
  const client = clientWith(token);
  const places = createPlaces(client, url);
  const queue = await frame.settle({
    ...whose,
    async read(typed) {
      const answer = readQueue(typed);
      if (!('value' in answer) || !flags.check) return answer;
      try {
        await client.seesJobs(signal);
        const place = await places.find(answer.value, signal);
        const runners = await client.runners(place, signal);
        await client.registrationToken(place, signal);
        frame.say(`The token may manage the runners of ${places.titleOf(answer.value)}; there are ${runners.length}.`);
      } catch (error) {
        if (!(error instanceof OnejobError) || signal.aborted) throw error;
        if (!error.retry) return { again: `${error.message} ${error.hint ?? ''}`.trim() };
        frame.say(`${error.message} So onejob could not check the name; "onejob doctor" checks it when the service answers.`);
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
}

function readQueue(typed: string): Reply<string> {
  if (queueForm.test(typed)) return { value: typed };
  return { again: 'Type an organisation (acme), a repository (acme/app), or * for the whole instance.' };
}
