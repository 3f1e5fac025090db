/** How a service of type `gitea` is written. */
import { key, token } from '../../schema/key.ts';
import { runnerKeysOf, webAddress } from '../../schema/program-keys.ts';

/** Version of the runner that this onejob was tried with. */
export const pinnedRunner = '1.0.8';

const example = 'https://git.example.org';

export const runnerKeys = runnerKeysOf('Gitea', 'gitea-runner', pinnedRunner);

export const giteaKeys = {
  url: key(webAddress(example), undefined, 'address', {
    description: 'Address of the server, as sandboxes reach it too.',
    example,
  }),
  token: token(
    'Access token that may manage the runners of each `queue`: scopes write:organization and read:repository for an organisation, write:repository for a repository, write:admin and read:repository for the whole instance. It never enters a sandbox.',
  ),
  poll: key((v) => v.duration(1000, '1s'), 5_000, {
    description:
      'How often onejob asks the server about runners and jobs; once for each queue, regardless of its number of agents.',
    example: '10s',
  }),
  boot_timeout: key((v) => v.duration(1000, '1s'), 60_000, {
    description: 'How long an agent may take to come online. onejob ends one that takes longer, and its pool backs off.',
    example: '2m',
  }),
  binding: key((v) => v.oneOf(['early', 'late']), 'early', {
    description:
      '`early`: a waiting sandbox is a runner of the server, which chooses its job. `late`: onejob takes the job first, and decides with `trust` of the pool whether and how it runs, before any of it is in a sandbox.',
    example: 'late',
  }),
  agent: key((v) => v.strict(runnerKeys), undefined, {
    description: 'The runner that runs the jobs in the sandboxes.',
    example: '{ from: /usr/local/bin/gitea-runner }',
  }),
};
