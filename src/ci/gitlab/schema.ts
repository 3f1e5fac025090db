/** How a service of type `gitlab` is written. */
import { key, token } from '../../schema/key.ts';
import { runnerKeysOf, webAddress } from '../../schema/program-keys.ts';

/** Version of the runner that this onejob was tried with. */
export const pinnedRunner = '19.4.0';

export const exampleUrl = 'https://gitlab.example.org';

export const runnerKeys = runnerKeysOf('GitLab', 'gitlab-runner', pinnedRunner);

export const gitlabKeys = {
  url: key(webAddress(exampleUrl), undefined, 'address', {
    description: 'Address of the server, as this host and the sandboxes reach it.',
    example: exampleUrl,
  }),
  token: token(
    'Authentication token of a runner (`glrt-…`), with which onejob takes its jobs. Tags, and whose jobs it runs, are settings of the runner at the server. It never enters a sandbox.',
  ),
  poll: key((v) => v.duration(1000, '1s'), 3_000, {
    description: 'How often onejob asks for a job while a slot is free and there was none.',
    example: '5s',
  }),
  images: key((v) => v.z.array(v.pattern('a pattern such as "debian:*"', 64)), [], 'list of patterns', {
    description:
      "Images that jobs may choose with `image:`. `*` stands for any text without a slash, `**` for any text. Other jobs run in the pool's image, and their log says so.",
    example: '["debian:*", "registry.example.org/ci/**"]',
  }),
  agent: key((v) => v.strict(runnerKeys), undefined, {
    description: 'The runner that runs the jobs in the sandboxes.',
    example: '{ from: /usr/local/bin/gitlab-runner }',
  }),
};
