/** `npm run standin:gitlab`: the stand-in by hand, to see the whole flow without an account. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { buildGitlabRunner } from '../support/gitlab-programs.ts';
import { playByHand, trialFolder } from './kit/by-hand.ts';

const usage = `npm run standin:gitlab -- [--host ADDRESS]

A local stand-in for GitLab. Containers must reach it, so it listens on an address of this host that is not 127.0.0.1, if there is one.
It needs a Docker Engine with the image debian:stable-slim, and Go, with which it builds the real gitlab-runner once.`;

const help = `queue [--branch NAME] [--image NAME] [-- COMMAND]   queue a job
jobs                                               its jobs
log JOB                                            what a job wrote so far
cancel JOB                                         cancel a job
help, quit`;

await playByHand({ usage, port: 0 }, async (where, stack) => {
  const runner = await buildGitlabRunner();
  const gitlab = memoryGitlab();
  stack.use(await gitlab.serve(where.host));
  const { dir, state } = stack.use(trialFolder('gitlab', 'state'));
  const [config, token] = [join(dir, 'try.yml'), join(dir, 'token')];
  const text = `state_dir: "${state}"
services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { file: "${token}" }, agent: { from: "${runner}" } }
pools:
  ci: { service: lab, agents: 2, image: "debian:stable-slim", network: default }
`;
  writeFileSync(token, `${runnerToken}\n`, { mode: 0o600 });
  writeFileSync(config, text);

  const queue = (words: string): string => {
    const [said = '', command = 'echo hello'] = words.split(/(?:^|\s)--\s/);
    const { branch, image, ...rest } = Object.fromEntries(
      [...said.matchAll(/--(\S+)(?:\s+([^-\s]\S*))?/g)].map(([, name, value]) => [name, value ?? '']),
    );
    const [strange] = Object.keys(rest);
    if (strange !== undefined) return `There is no option "--${strange}". Type "help".`;
    const job = gitlab.queue({
      script: [command.trim()],
      ...(branch !== undefined && { ref: branch }),
      ...(image !== undefined && { image }),
    });
    return `Job ${job.id} waits for the runner.`;
  };
  const jobOf = (id: string) => gitlab.jobs.find((one) => String(one.id) === id);
  const none = 'There is no such job. Type "jobs".';
  return {
    greeting: `A stand-in for GitLab with one runner. It forgets everything when it ends.

In another terminal, as it stands:
  unset ONEJOB_STATE_DIR ONEJOB_SOCKET
  export ONEJOB_CONFIG=${config}
  bin/onejob up
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, cancel, help, quit.

The config, with a state directory of its own:
  ${text.trimEnd().replaceAll('\n', '\n  ')}
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
