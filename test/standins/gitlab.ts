/** `npm run standin:gitlab`: the stand-in by hand, to see the whole flow without an account. */
import { join } from 'node:path';
import { memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { buildGitlabRunner } from '../support/gitlab-programs.ts';
import { playByHand, poolPlace, runtimeOption, runtimeUsage, trialConfig } from './kit/by-hand.ts';

const usage = `npm run standin:gitlab -- [--host ADDRESS] [--into FOLDER] [--runtime RUNTIME]

A local stand-in for GitLab. Containers must reach it, so it listens on an address of this host that is not 127.0.0.1, if there is one.
It needs a Docker Engine with the image debian:stable-slim, and Go, with which it builds the real gitlab-runner once.
--into FOLDER writes its config there as gitlab.yml, for another config to include.
${runtimeUsage}`;

const help = `queue [--branch NAME] [--image NAME] [-- COMMAND]   queue a job
jobs                                               its jobs
log JOB                                            what a job wrote so far
cancel JOB                                         cancel a job
help, quit`;

await playByHand({ usage, port: 0, options: runtimeOption }, async (where, stack) => {
  const place = poolPlace(where.more);
  const runner = await buildGitlabRunner();
  const gitlab = memoryGitlab({
    ended: ({ id, state, reason }) => console.log(`Job ${id}: ${state}${reason === null || reason === '' ? '' : ` (${reason})`}`),
  });
  stack.use(await gitlab.serve(where.host));
  const trial = stack.use(
    trialConfig(
      'gitlab',
      where.into,
      { 'gitlab.token': `${runnerToken}\n` },
      (dir) => `services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { file: "${join(dir, 'gitlab.token')}" }, agent: { from: "${runner}" } }
pools:
  ci: { service: lab, agents: 2, ${place}, network: default }
`,
    ),
  );

  const queue = (words: string): string => {
    const [said = '', command = 'echo hello'] = words.split(/(?:^|\s)--\s/);
    const { branch, image, ...rest } = Object.fromEntries(
      [...said.matchAll(/--(\S+)(?:\s+([^-\s]\S*))?/g)].map(([, name, value]) => [name, value ?? '']),
    );
    const [strange] = Object.keys(rest);
    if (strange !== undefined) return `There is no option "--${strange}". Type "help".`;
    const job = gitlab.queue({
      script: [command.trim()],
      // As GitLab says of a runner that is one of a project.
      runningOnInstance: '+Inf',
      ...(branch !== undefined && { ref: branch }),
      ...(image !== undefined && { image }),
    });
    return `Job ${job.id} waits for the runner.`;
  };
  const jobOf = (id: string) => gitlab.jobs.find((one) => String(one.id) === id);
  const none = 'There is no such job. Type "jobs".';
  return {
    greeting: `A stand-in for GitLab with one runner. It forgets everything when it ends.

${trial.way}

A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, cancel, help, quit.
`,
    async obey(line) {
      const [verb = '', ...words] = line.trim().split(/\s+/);
      const job = jobOf(words[0] ?? '');
      switch (verb) {
        case '':
          return '';
        case 'queue':
          return queue(line.trim().slice('queue'.length));
        case 'jobs':
          return gitlab.jobs.map(({ id, state: its, reason }) => `${id}  ${its}  ${reason ?? ''}`.trim()).join('\n');
        case 'log':
          return job?.trace.toString() ?? none;
        case 'cancel':
          if (job !== undefined) gitlab.cancel(job);
          return job === undefined ? none : `Job ${job.id} is being cancelled.`;
        default:
          return verb === 'help' ? help : `There is no "${verb}" here. Type "help".`;
      }
    },
    queueJobs(count) {
      for (let n = 1; n <= count; n++) queue(` -- echo "job ${n}"`);
    },
  };
});

// Connections of runners may still be open.
process.exit(0);
