/** `onejob init github`: asks for whose jobs to run and a credential, and checks them at GitHub before it writes anything. */

import { apiOf, GithubClient } from '../../ci/github/client.ts';
import type { GithubCredential } from '../../ci/github/config.ts';
import { githubPlace, queueForm } from '../../ci/github/type.ts';
import { createOutbound } from '../../http/outbound.ts';
import { systemClock } from '../../system/system-clock.ts';
import { wrongUsage } from '../exit.ts';
import type { Session } from '../session.ts';
import type { Reply } from './ask.ts';
import { readUrl, sayFound } from './kit.ts';
import { type InitFlags, type OpenFrame, settle, taken } from './steps.ts';

export async function initGithub({ output, version, context }: Session, flags: InitFlags, open: OpenFrame): Promise<number> {
  const { url: givenUrl = null, queue: givenQueue = null, app: givenApp = null } = flags.own;
  const url = givenUrl === null ? 'https://github.com' : taken('github', '--url', readServer(givenUrl));
  let app = givenApp === null ? null : taken('github', '--app', readApp(givenApp.trim()));
  if (givenQueue !== null) taken('github', '--queue', readQueue(givenQueue.trim()));
  if (app !== null && flags.tokenFile === null)
    throw wrongUsage('The private key of the App is missing.', 'Give its file, as GitHub generates it: --token-file KEY.pem.');
  using frame = open(givenQueue === null ? ['--queue NAME'] : []);
  const { settling, signal } = frame;
  const queue = await settle(settling, givenQueue, '--queue', {
    text: 'Whose jobs to run: an organisation (acme), a repository (acme/app), or enterprises/acme',
    usual: null,
    read: readQueue,
  });
  const place = githubPlace(queue);
  if (app !== null && place.startsWith('enterprises/'))
    throw wrongUsage('An App cannot manage the runners of an enterprise.', 'Use a token: leave --app out.');
  if (app === null && frame.needsToken && !place.startsWith('enterprises/')) {
    app = await settle<number | null>(settling, null, '--app', {
      text: 'Id of a GitHub App, which outlives people and whose tokens live for an hour (empty: an access token)',
      usual: '',
      read: (typed) => (typed === '' ? { value: null } : readApp(typed)),
    });
    if (app !== null) await frame.askForFile('File with the private key of the App, as GitHub generates it');
  }
  const outbound = createOutbound(context.environment.proxies);
  try {
    const { token } = await frame.signIn({
      text: 'Access token',
      read: (typed) => readSecret(typed, app !== null),
      refusals: ['E_CI_CREDENTIAL', 'E_CI_DENIED', 'E_SECRET'],
      async see(typed, from) {
        if (!flags.check) return;
        const reference = { kind: 'memory', name: from, expires: null, read: () => typed } as const;
        const credential: GithubCredential =
          app === null ? { kind: 'token', token: reference } : { kind: 'app', id: app, privateKey: reference, installation: null };
        const secret = async () => typed;
        const client = new GithubClient({
          base: apiOf(url),
          credential,
          secret,
          clock: systemClock,
          fetch: outbound.fetch,
          version,
        });
        await sayFound(output, async () => {
          const runners = await client.runners(place, signal);
          const repository = place.startsWith('repos/') ? await client.repository(place.slice('repos/'.length), signal) : null;
          const open = repository?.private === false ? ` It is public: its jobs are refused until you write "public: run".` : '';
          return `${url} lets onejob manage the runners of ${queue}; there are ${runners.length}.${open}`;
        });
      },
    });
    return await frame.finish({
      token,
      name: 'github',
      queue,
      keys: (reference) => ({
        ...(givenUrl !== null && { url }),
        ...(app === null ? { token: reference } : { app: { id: app, private_key: reference } }),
      }),
      poolKeys: { image: 'auto' },
      inPipeline: ['runs-on: github'],
    });
  } finally {
    outbound.close();
  }
}

function readServer(typed: string): Reply<string> {
  const found = readUrl('https://github.example.org')(typed);
  if (!('value' in found) || new URL(found.value).pathname === '/') return found;
  return { again: 'Expected the address of the server alone, such as https://github.example.org; --queue says whose jobs to run.' };
}

function readApp(typed: string): Reply<number> {
  return /^[1-9]\d{0,14}$/.test(typed) ? { value: Number(typed) } : { again: 'Expected the id of the App, a number.' };
}

function readQueue(typed: string): Reply<string> {
  if (queueForm.test(typed)) return { value: typed };
  return { again: 'Type an organisation (acme), a repository (acme/app), or enterprises/acme.' };
}

function readSecret(typed: string, isKey: boolean): Reply<string> {
  if (typed === '') return { again: 'It is empty.' };
  if (isKey) {
    if (/-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(typed)) return { value: typed };
    return { again: 'Expected a private key in PEM format, which begins with "-----BEGIN".' };
  }
  if (/^[\x21-\x7e]{20,4096}$/.test(typed)) return { value: typed };
  return { again: 'The access token is malformed: it is too short or contains whitespace.' };
}
