/** `npm run standin:gitea`: a real Gitea by hand, with an organisation, a repository and a token, to see the whole flow without a server. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { startGitea } from '../support/gitea.ts';
import { buildGitea, giteaPrograms } from '../support/gitea-programs.ts';
import { playByHand, trialFolder } from './kit/by-hand.ts';

const usage = `npm run standin:gitea -- [--host ADDRESS]

A real Gitea on this host, which forgets everything when it ends. Containers must reach it, so it listens on an address of this host
that is not 127.0.0.1, if there is one. It needs a Docker Engine with the image debian:stable-slim, git, and Go, with which it
builds Gitea and its runner once (about 7 minutes of processor time).`;

const help = `queue [-- COMMAND]   push a workflow with one job
jobs                 its jobs
log JOB              what a job wrote
help, quit`;

const repository = 'acme/demo';
const workflow = (command: string) => `on: push
jobs:
  demo:
    runs-on: ci
    steps:
      - run: ${JSON.stringify(command)}
`;

await playByHand({ usage, port: 0 }, async (where, stack) => {
  await buildGitea();
  const gitea = stack.use(await startGitea({ address: where.host }));
  await gitea.repository(repository, { 'README.md': 'A repository to try onejob with.\n' });
  const { dir, state } = stack.use(trialFolder('gitea', 'state'));
  const [config, token] = [join(dir, 'try.yml'), join(dir, 'token')];
  const text = `state_dir: "${state}"
services:
  forge: { type: gitea, url: "${gitea.url}", token: { file: "${token}" }, agent: { from: "${giteaPrograms.runner}" } }
pools:
  ci: { service: forge, queue: acme, agents: 2, image: "debian:stable-slim", memory: 1GiB, network: default }
`;
  writeFileSync(token, `${await gitea.tokenFor('write:organization', 'read:repository')}\n`, { mode: 0o600 });
  writeFileSync(config, text);

  const queue = async (command: string): Promise<void> =>
    gitea.push(repository, { '.gitea/workflows/demo.yml': workflow(command) });
  return {
    greeting: `A real Gitea at ${gitea.url} with the organisation acme and the repository ${repository}. It forgets everything when it ends.

In another terminal, as it stands:
  unset ONEJOB_STATE_DIR ONEJOB_SOCKET
  export ONEJOB_CONFIG=${config}
  bin/onejob up
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, help, quit.

The config, with a state directory of its own:
  ${text.trimEnd().replaceAll('\n', '\n  ')}
`,
    async obey(line) {
      const [verb = '', id = ''] = line.trim().split(/\s+/);
      switch (verb) {
        case '':
          return '';
        case 'queue':
          await queue(/(?:^|\s)--\s+(.*)$/.exec(line)?.[1] ?? 'echo hello');
          return 'Pushed a workflow with one job; "jobs" shows it.';
        case 'jobs':
          return (await gitea.jobs(`/repos/${repository}`))
            .map((job) => `${job.id}  ${job.conclusion || job.status}  ${job.name}`)
            .join('\n');
        case 'log':
          return /^\d+$/.test(id) ? await gitea.log(repository, Number(id)) : 'There is no such job. Type "jobs".';
        default:
          return verb === 'help' ? help : `There is no "${verb}" here. Type "help".`;
      }
    },
    queueJobs(count) {
      void (async () => {
        for (let n = 1; n <= count; n++) await queue(`echo "job ${n}"`);
      })();
    },
  };
});

// Connections of runners may still be open.
process.exit(0);
