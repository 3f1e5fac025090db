/** `onejob init gitlab`: asks for address and token, and checks them at the server before it writes anything. */

import { GitlabClient } from '../../ci/gitlab/client.ts';
import { exampleUrl, pinnedRunner } from '../../ci/gitlab/schema.ts';
import { createOutbound } from '../../http/outbound.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { Session } from '../session.ts';
import type { Reply } from './ask.ts';
import { readUrl as readUrlOf, sayFound } from './kit.ts';
import { type InitFlags, type OpenFrame, settle, taken } from './steps.ts';

const readUrl = readUrlOf(exampleUrl);

export async function initGitlab({ output, version, context }: Session, flags: InitFlags, open: OpenFrame): Promise<number> {
  const { url: givenUrl = null } = flags.own;
  if (givenUrl !== null) taken('gitlab', '--url', readUrl(givenUrl));
  using frame = open(givenUrl === null ? ['--url URL'] : []);
  const { settling, signal } = frame;
  const url = await settle(settling, givenUrl, '--url', { text: 'Address of the GitLab server', usual: null, read: readUrl });
  const outbound = createOutbound(context.environment.proxies);
  try {
    const { token } = await frame.signIn({
      text: "Runner's authentication token",
      read: readToken,
      refusals: ['E_CI_CREDENTIAL'],
      async see(typed) {
        if (!flags.check) return null;
        const parts = {
          url,
          token: async () => typed,
          systemId: 's_onejobinit00',
          clock: systemClock,
          fetch: outbound.fetch,
          version,
        };
        return sayFound(output, async () => {
          const { id } = await new GitlabClient(parts).verify(pinnedRunner, signal);
          return `${url} accepts the token${id === null ? '' : `, which is that of runner #${id}`}.`;
        });
      },
    });
    return await frame.finish({
      token,
      name: 'gitlab',
      queue: 'gitlab',
      keys: (reference) => ({ url, token: reference }),
      poolKeys: { image: 'auto' },
      inPipeline: ['tags: [the tags of the runner]'],
    });
  } finally {
    outbound.close();
  }
}

function readToken(typed: string): Reply<string> {
  if (/^(glpat-|gldt-)/.test(typed))
    return { again: 'That is an access token. Type the authentication token of a runner (glrt-…).' };
  if (/^[\x21-\x7e]{10,4096}$/.test(typed)) return { value: typed };
  return { again: typed === '' ? 'It is empty.' : 'The token is malformed: it is too short or contains whitespace.' };
}
