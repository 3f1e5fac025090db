/** `npm run standin:buildkite`: the stand-in by hand, to see the whole flow without an account. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { realAgent } from '../../support/buildkite-agent.ts';
import { playByHand, tellEvents, trialFolder } from '../kit/by-hand.ts';
import { obey, told } from './console.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

const USAGE = `npm run standin:buildkite -- [--host ADDRESS] [--port PORT] [--jobs N]

A local stand-in for Buildkite. Containers must reach its artifact host, so it listens on an address of this host
that is not 127.0.0.1, if there is one; its port is 8991 unless you say otherwise.
--jobs N queues N jobs as soon as the first agent is connected.`;

await playByHand({ usage: USAGE, port: 8991 }, async (where, stack) => {
  const bk = stack.use(await startBuildkite({ host: where.host, port: where.port }));
  const { dir, state } = stack.use(trialFolder('buildkite', 'state'));
  tellEvents(bk, told);
  return {
    greeting: greeting(bk, configFor(bk, dir, state)),
    obey: (line) => obey(bk, line),
    queueJobs: (count) =>
      void bk.next('agentConnected').then(() => {
        for (let i = 1; i <= count; i++) bk.queueJob({ command: `echo "job ${i} in $(pwd)"`, checkout: true });
      }),
  };
});

interface TrialConfig {
  readonly config: string;
  readonly text: string;
}

/** Writes a config for this stand-in, and its token. */
function configFor(bk: BuildkiteStandin, dir: string, state: string): TrialConfig {
  const [config, token] = [join(dir, 'try.yml'), join(dir, 'token')];
  const program = realAgent();
  const agent = program === null ? '' : `, agent: { from: "${program}" }`;
  const text = `state_dir: "${state}"
services:
  bk: { type: buildkite, endpoint: "${bk.endpoint}", token: { file: "${token}" }${agent} }
pools:
  lab: { service: bk, queue: default, agents: 2, image: "debian:stable-slim", env: { BUILDKITE_SKIP_CHECKOUT: "true" } }
`;
  writeFileSync(token, `${bk.token}\n`, { mode: 0o600 });
  writeFileSync(config, text);
  return { config, text };
}

function greeting(bk: BuildkiteStandin, { config, text }: TrialConfig): string {
  const build =
    realAgent() === null ? '\nWithout internet, first: npx node test/support/buildkite-agent.ts; then start this again.' : '';
  return `A stand-in for Buildkite. It knows one cluster, and forgets everything when it ends.

  endpoint  ${bk.endpoint}
  token     ${bk.token}
  counts    ${bk.metricsToken}   (a token that may read them and nothing else)

In another terminal, as it stands:${build}
  unset ONEJOB_STATE_DIR ONEJOB_SOCKET
  export ONEJOB_CONFIG=${config}
  bin/onejob up
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, cancel, agents, fault, requests, help, quit.

The config, with a state directory of its own:
  ${text.trimEnd().replaceAll('\n', '\n  ')}
An agent of your own instead:
  BUILDKITE_AGENT_TOKEN=${bk.token} BUILDKITE_SKIP_CHECKOUT=true buildkite-agent start \\
    --endpoint ${bk.endpoint} --build-path /tmp/builds --disconnect-after-job --ping-mode poll-only
`;
}
