/** `npm run standin:gitea`: a real Gitea by hand, with an organisation, a repository and a token, to see the whole flow without a server. */
import { join } from 'node:path';
import { startGitea } from '../support/gitea.ts';
import { buildGitea, giteaPrograms } from '../support/gitea-programs.ts';
import { playByHand, poolPlace, runtimeOption, runtimeUsage, trialConfig } from './kit/by-hand.ts';

const usage = `npm run standin:gitea -- [--host ADDRESS] [--into FOLDER] [--runtime RUNTIME]

A real Gitea on this host, which forgets everything when it ends. Containers must reach it, so it listens on an address of this host
that is not 127.0.0.1, if there is one. It needs a Docker Engine with the image debian:stable-slim, git, and Go, with which it
builds Gitea and its runner once (about 7 minutes of processor time).
--into FOLDER writes its config there as gitea.yml, for another config to include.
${runtimeUsage}`;

const help = `queue [-- COMMAND]   push a workflow with one job
jobs                 its jobs
log JOB              what a job wrote
help, quit`;

const repository = 'acme/demo';
const workflow = (command: string) => `on: push
jobs:
  demo:
    runs-on: forge
    steps:
      - run: ${JSON.stringify(command)}
`;

await playByHand({ usage, port: 0, options: runtimeOption }, async (where, stack) => {
  await buildGitea();
  const gitea = stack.use(await startGitea({ address: where.host }));
  await gitea.repository(repository, { 'README.md': 'A repository to try onejob with.\n' });
  const token = await gitea.tokenFor('write:organization', 'read:repository');
  // A process does not reach this address of its own host, but the filter, and "trust" needs the job before there is an agent.
  const binding = where.more.runtime === 'process' ? ', binding: late' : '';
  const trial = stack.use(
    trialConfig(
      'gitea',
      where.into,
      { 'gitea.token': `${token}\n` },
      (dir) => `services:
  forge: { type: gitea, url: "${gitea.url}", token: { file: "${join(dir, 'gitea.token')}" }, agent: { from: "${giteaPrograms.runner}" }${binding} }
pools:
  forge: { service: forge, queue: acme, agents: 2, ${poolPlace(where.more)}, network: default }
`,
    ),
  );

  const queue = async (command: string): Promise<void> =>
    gitea.push(repository, { '.gitea/workflows/demo.yml': workflow(command) });
  return {
    greeting: `A real Gitea at ${gitea.url} with the organisation acme and the repository ${repository}. It forgets everything when it ends.

${trial.way}

A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, help, quit.
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
