/** How a service of type `gitlab` is written. */
import { key, sha256, token } from '../../config/key.ts';
import { programFrom, webAddress } from '../kit/keys.ts';

/** Version of the runner that this onejob was tried with. */
export const pinnedRunner = '19.4.0';

export const exampleUrl = 'https://gitlab.example.org';

export const runnerKeys = {
  version: key((v) => v.text('a version such as "19.4.0"', /^\d{1,4}\.\d{1,5}\.\d{1,5}$/), undefined, 'version', {
    description: 'Version of the runner; onejob refuses any other.',
    example: pinnedRunner,
    shown: `\`${pinnedRunner}\`, or what the file at \`from\` reports`,
  }),
  from: key(programFrom, undefined, 'address or path', {
    description: 'Where onejob gets `gitlab-runner` from. It mounts the program read-only into the sandboxes.',
    example: '/usr/local/bin/gitlab-runner',
    shown: "GitLab's release of that version",
  }),
  sha256: sha256('Checksum that the file named by `from` must have.', "GitLab's own for its releases"),
};

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
