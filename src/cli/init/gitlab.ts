/** `onejob init gitlab`: asks for address and token, and checks them at the server before it writes anything. */

import { GitlabClient } from '../../ci/gitlab/client.ts';
import { exampleUrl, pinnedRunner } from '../../ci/gitlab/schema.ts';
import type { Reply } from './ask.ts';
import { readCredential, serverUrl } from './kit.ts';
import type { InitFlags, OpenFrame } from './steps.ts';

const server = serverUrl('GitLab', exampleUrl);

export async function initGitlab(_: InitFlags, open: OpenFrame): Promise<number> {
  using frame = open(server);
  const url = await frame.settle(server);
  const { token } = await frame.signIn({
    text: "Runner's authentication token",
    read: readToken,
    refusals: ['E_CI_CREDENTIAL'],
    see: (typed) =>
      frame.sayFound(async () => {
        const client = new GitlabClient({ url, token: async () => typed, systemId: 's_onejobinit00', ...frame.calling });
        const { id } = await client.verify(pinnedRunner, frame.signal);
        return `${url} accepts the token${id === null ? '' : `, which is that of runner #${id}`}.`;
      }),
  });
  return await frame.finish({
    token,
    name: 'gitlab',
    queue: 'gitlab',
    keys: (reference) => ({ url, token: reference }),
    poolKeys: { image: 'auto' },
    inPipeline: ['tags: [the tags of the runner]'],
  });
}

function readToken(typed: string): Reply<string> {
  if (/^(glpat-|gldt-)/.test(typed))
    return { again: 'That is an access token. Type the authentication token of a runner (glrt-…).' };
  return readCredential('token', 10)(typed);
}
