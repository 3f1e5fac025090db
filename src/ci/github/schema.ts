/** How a service of type `github` is written. */
import { key, sha256, token } from '../../schema/key.ts';
import { packageFrom, webAddress } from '../../schema/program-keys.ts';
import type { Kinds } from '../../schema/strict.ts';

const number = (what: string) => (v: Kinds) =>
  v.value((found) => {
    const good = /^\d{1,15}$/.test(String(found)) && Number(found) > 0;
    return good ? v.yes(Number(found)) : v.no(`expected ${what}, a number such as 123456`);
  });

export const appKeys = {
  id: key(number('the id of the App'), undefined, 'number', {
    description: 'App id, as the settings of the App show it.',
    example: '123456',
  }),
  private_key: token('Private key of the App, as the file that GitHub generates (PEM). It never leaves the daemon.'),
  installation: key(number('the id of an installation'), undefined, 'number', {
    description: 'Installation of the App.',
    example: '7890123',
    shown: 'that of the account in `queue`',
  }),
};

export const githubPackageKeys = {
  version: key(
    (v) => v.text('a version such as "2.336.0", or "latest"', /^(latest|\d{1,4}\.\d{1,5}\.\d{1,5})$/),
    'latest',
    'version or `latest`',
    {
      description:
        'Version of the runner. `latest`: the one that GitHub offers; onejob rebuilds images when that changes, because GitHub refuses a runner 30 days after the next release.',
      example: '2.336.0',
    },
  ),
  from: key(packageFrom, undefined, 'address or path', {
    description: 'Where onejob gets its package from.',
    example: '/srv/actions-runner-linux-x64-2.336.0.tar.gz',
    shown: "GitHub's own",
  }),
  sha256: sha256('Checksum that the package must have.', "GitHub's own"),
  folder: key((v) => v.absolute, undefined, {
    description:
      'Folder of this host with an unpacked runner, instead of a package: images need none. Sandboxes have it read-only, and run from a copy of its programs. Renewing it is up to you.',
    example: '/srv/actions-runner-2.336.0',
    shown: 'the runner is part of the image',
  }),
};

export const webhookKeys = {
  listen: key((v) => v.listen, undefined, '`ADDRESS:PORT`', {
    description: 'Where onejob takes the webhooks that your proxy or relay forwards, at any path.',
    example: '"127.0.0.1:8787"',
  }),
  secret: token('Secret of the webhook, as it is written at GitHub too. What is not signed with it is refused.'),
};

export const dockerKeys = {
  socket: key((v) => v.absolute, undefined, {
    description:
      'Socket of an Engine on this host. Best that of a rootless Engine: every job has all rights of its user, whose number `user` of the pools must be. With that of root, every job is root on this host.',
    example: '/run/user/1000/docker.sock',
  }),
  folder: key((v) => v.absolute, undefined, {
    description:
      'Folder of this host in which agents keep the files of their jobs, because the Engine must find them at the same path. Each agent has its own in it, which onejob removes afterwards, with the rights of the user of that Engine; all jobs can see it. Best on a file system that is mounted `nosuid`.',
    example: '/srv/onejob-jobs',
  }),
};

export const githubKeys = {
  url: key(webAddress('https://github.example.org'), 'https://github.com', 'address', {
    description: 'Address of GitHub, or of a GitHub Enterprise Server, as sandboxes reach it too.',
    example: 'https://github.example.org',
  }),
  app: key((v) => v.strict(appKeys), undefined, {
    description: 'The GitHub App that onejob signs in as. It has a short-lived token for each account that installed it.',
    example: '{ id: 123456, private_key: { file: /etc/onejob/github.pem } }',
  }),
  token: token(
    'Access token instead of an App: fine-grained with Self-hosted runners (organisation) or Administration (repository), read and write; or classic with admin:org, repo, or manage_runners:enterprise. It never enters a sandbox.',
  ),
  group: key((v) => v.text('the name of a runner group', /^\S(.{0,98}\S)?$/), 'Default', 'name', {
    description: 'Runner group that agents join. It decides which repositories may use them; a repository has only `Default`.',
    example: 'gpu',
  }),
  mode: key((v) => v.oneOf(['jit', 'scale-set']), 'jit', {
    description:
      '`jit`: each agent is a runner with labels. `scale-set`: each pool is a runner scale set, whose name jobs write in `runs-on`; GitHub tells how many jobs wait for it.',
    example: 'scale-set',
  }),
  webhook: key((v) => v.strict(webhookKeys), undefined, {
    description:
      'Takes `workflow_job` webhooks of GitHub, so that onejob hears of jobs at once, and of those that wait in an organisation. Without it, or when it fails, onejob polls.',
    example: '{ listen: "127.0.0.1:8787", secret: { file: /etc/onejob/github-webhook.secret } }',
  }),
  docker: key((v) => v.strict(dockerKeys), undefined, {
    description:
      'Gives jobs an Engine, for `container:`, `services:` and actions that are images. Only for jobs of people whom you trust: anyone who reaches the Engine has all rights of its user on this host.',
    example: '{ socket: /run/user/1000/docker.sock, folder: /srv/onejob-jobs }',
    shown: 'jobs have no Engine',
  }),
  forks: key((v) => v.oneOf(['refuse', 'run']), 'refuse', {
    description: 'Jobs of pull requests from forks. `refuse`: each fails before its first step, with the reason in its log.',
    example: 'run',
  }),
  public: key((v) => v.oneOf(['refuse', 'run']), 'refuse', {
    description: 'Jobs of public repositories. `refuse`: each fails before its first step, with the reason in its log.',
    example: 'run',
  }),
  poll: key((v) => v.duration(5000, '5s'), 10_000, {
    description:
      'How often onejob asks for the list of runners; once for each queue, regardless of its number of agents. An unchanged list costs nothing of the rate limit.',
    example: '30s',
  }),
  boot_timeout: key((v) => v.duration(1000, '1s'), 120_000, {
    description: 'How long an agent may take to come online. onejob ends one that takes longer, and its pool backs off.',
    example: '5m',
  }),
  agent: key((v) => v.strict(githubPackageKeys), undefined, {
    description: 'The runner that onejob puts into the images it builds.',
    example: '{ version: 2.336.0 }',
  }),
};
