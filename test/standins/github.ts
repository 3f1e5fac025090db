/** `npm run standin:github`: the stand-in by hand, to see the whole flow without an account. */
import { randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { freePort } from '../support/free-port.ts';
import { ensureGithubBase, writeRunnerPackage } from '../support/github-image.ts';
import { buildGitHub } from '../support/github-programs.ts';
import { startGitHub } from '../support/github-server.ts';
import { playByHand, trialFolder } from './kit/by-hand.ts';

const usage = `npm run standin:github -- [--host ADDRESS]

A local stand-in for a GitHub Enterprise Server. Containers must reach it, so it listens on an address of this host that is not
127.0.0.1, if there is one. It needs a Docker Engine, and Go, with which it builds an independent runner once.`;

const help = `queue [-- COMMAND]                       queue a job
jobs                                     its jobs
log JOB                                  what a job wrote; a running job's log comes at its end
cancel JOB                               cancel a job
runners                                  registered runners
help, quit`;

await playByHand({ usage, port: 0 }, async (where, stack) => {
  await buildGitHub();
  const base = await ensureGithubBase();
  const github = stack.use(await startGitHub({ address: where.host }));
  const { dir, state } = stack.use(trialFolder('github', 'state'));
  const [config, key, hookKey] = [join(dir, 'try.yml'), join(dir, 'app.pem'), join(dir, 'webhook.secret')];
  const [port, secret] = [await freePort(), randomUUID()];
  // An organisation's runner that runs no script in front of its job tells nobody which job that is: the webhook does.
  const actions = { queued: 'queued', assigned: null, started: 'in_progress', completed: 'completed' } as const;
  github.watch((what, job) => {
    const action = actions[what];
    // As at GitHub, each event is sent once, whether or not somebody listens.
    if (action !== null) fetch(`http://127.0.0.1:${port}/`, github.webhook(action, job, secret)).catch(() => {});
  });
  const runner = await writeRunnerPackage(dir);
  const text = `state_dir: "${state}"
services:
  hub:
    type: github
    url: "${github.origin}"
    app: { id: ${github.app.id}, private_key: { file: "${key}" } }
    poll: 5s
    webhook: { listen: "127.0.0.1:${port}", secret: { file: "${hookKey}" } }
    agent: { from: "${runner}" }
pools:
  lab: { service: hub, queue: acme, agents: 2, image: { base: "${base}" }, tags: gpu, network: default }
`;
  writeFileSync(key, github.app.pem, { mode: 0o600 });
  writeFileSync(hookKey, secret, { mode: 0o600 });
  writeFileSync(config, text);

  const queue = (words: string): string => {
    const [flags = '', command = 'echo hello'] = words.split(/(?:^|\s)--\s/);
    if (flags.trim() !== '') return `There is no option "${flags.trim()}". Type "help".`;
    const job = github.queue({ labels: ['gpu'], steps: [[command.trim()]] });
    return `Job ${job.id} waits for a runner with the label gpu.`;
  };
  const jobOf = (id: string) => github.jobs.find((one) => String(one.id) === id);
  return {
    greeting: `A stand-in for a GitHub Enterprise Server, with the organisation "acme" and its repository "demo". It forgets everything when
it ends.

In another terminal, as it stands:
  unset ONEJOB_STATE_DIR ONEJOB_SOCKET
  export ONEJOB_CONFIG=${config}
  bin/onejob up
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, cancel, runners, help, quit.

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
          return github.jobs
            .map(({ id, status, conclusion, ranOn }) => `${id}  ${conclusion ?? status}  ${ranOn?.name ?? ''}`)
            .join('\n');
        case 'log':
          return job?.log ?? 'There is no such job. Type "jobs".';
        case 'cancel':
          if (job !== undefined) github.cancel(job);
          return job === undefined ? 'There is no such job. Type "jobs".' : `Job ${job.id} is being cancelled.`;
        case 'runners':
          return [...github.runners.values()].map(({ name, job: its }) => `${name}  ${its === null ? 'idle' : 'busy'}`).join('\n');
        default:
          return verb === 'help' ? help : `There is no "${verb}" here. Type "help".`;
      }
    },
    queueJobs(count) {
      void (async () => {
        while (github.runners.size === 0) await after(100);
        for (let n = 1; n <= count; n++) queue(` -- echo "job ${n}"`);
      })();
    },
  };
});

// Jobs of the stand-in have leases that nobody waits for.
process.exit(0);
