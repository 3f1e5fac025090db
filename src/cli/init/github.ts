/** `onejob init github`: asks for whose jobs to run and a credential, and checks them at GitHub before it writes anything. */

import { apiOf, GithubClient } from '../../ci/github/client.ts';
import type { GithubCredential } from '../../ci/github/config.ts';
import { githubPlace, queueForm } from '../../ci/github/type.ts';
import { wrongUsage } from '../exit.ts';
import type { Asked, Reply } from './ask.ts';
import { readCredential, readUrl } from './kit.ts';
import type { InitFlags, OpenFrame } from './steps.ts';

const server: Asked<string> = { option: 'url', text: '', usual: 'https://github.com', form: readServer, read: readServer };
const appId: Asked<number | null> = {
  option: 'app',
  text: 'Id of a GitHub App, which outlives people and whose tokens live for an hour (empty: an access token)',
  usual: '',
  form: readApp,
  read: (typed) => (typed === '' ? { value: null } : readApp(typed)),
};
const whose: Asked<string> = {
  option: 'queue',
  needs: 'NAME',
  text: 'Whose jobs to run: an organisation (acme), a repository (acme/app), or enterprises/acme',
  usual: null,
  form: readQueue,
  read: readQueue,
};

export async function initGithub({ own, tokenFile }: InitFlags, open: OpenFrame): Promise<number> {
  if (own.app !== undefined && 'value' in readApp(own.app.trim()) && tokenFile === null)
    throw wrongUsage('The private key of the App is missing.', 'Give its file, as GitHub generates it: --token-file KEY.pem.');
  using frame = open(server, appId, whose);
  // Nobody is asked for it: almost all use the same.
  const url = await frame.given(server);
  const queue = await frame.settle(whose);
  const place = githubPlace(queue);
  const isEnterprise = place.startsWith('enterprises/');
  if (own.app !== undefined && isEnterprise)
    throw wrongUsage('An App cannot manage the runners of an enterprise.', 'Use a token: leave --app out.');
  const app = own.app !== undefined || (frame.needsToken && !isEnterprise) ? await frame.settle(appId) : null;
  if (app !== null && own.app === undefined) await frame.askForFile('File with the private key of the App, as GitHub generates it');
  const { token } = await frame.signIn({
    text: 'Access token',
    read: app === null ? readCredential('access token', 20) : readKey,
    refusals: ['E_CI_CREDENTIAL', 'E_CI_DENIED', 'E_SECRET'],
    see: (typed, from) => {
      const reference = { kind: 'memory', name: from, expires: null, read: () => typed } as const;
      const credential: GithubCredential =
        app === null ? { kind: 'token', token: reference } : { kind: 'app', id: app, privateKey: reference, installation: null };
      const client = new GithubClient({ base: apiOf(url), credential, secret: async () => typed, ...frame.calling });
      return frame.sayFound(async () => {
        const runners = await client.runners(place, frame.signal);
        const repository = place.startsWith('repos/') ? await client.repository(place.slice('repos/'.length), frame.signal) : null;
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
      ...(own.url !== undefined && { url }),
      ...(app === null ? { token: reference } : { app: { id: app, private_key: reference } }),
    }),
    poolKeys: { image: 'auto' },
    inPipeline: ['runs-on: github'],
  });
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

function readKey(typed: string): Reply<string> {
  if (typed === '') return { again: 'It is empty.' };
  if (/-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(typed)) return { value: typed };
  return { again: 'Expected a private key in PEM format, which begins with "-----BEGIN".' };
}
