/** `npm run standin:buildkite`: the stand-in by hand, to see the whole flow without an account. */
import { join } from 'node:path';
import { realAgent } from '../../support/buildkite-agent.ts';
import { playByHand, tellEvents, trialConfig } from '../kit/by-hand.ts';
import { obey, told } from './console.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

const USAGE = `npm run standin:buildkite -- [--host ADDRESS] [--port PORT] [--jobs N] [--into FOLDER]

A local stand-in for Buildkite. Containers must reach its artifact host, so it listens on an address of this host
that is not 127.0.0.1, if there is one; its port is 8991 unless you say otherwise.
--jobs N queues N jobs as soon as the first agent is connected.
--into FOLDER writes its config there as buildkite.yml, for another config to include.`;

await playByHand({ usage: USAGE, port: 8991 }, async (where, stack) => {
  const bk = stack.use(await startBuildkite({ host: where.host, port: where.port }));
  const program = realAgent();
  const agent = program === null ? '' : `, agent: { from: "${program}" }`;
  const trial = stack.use(
    trialConfig(
      'buildkite',
      where.into,
      { 'buildkite.token': `${bk.token}\n` },
      (dir) => `services:
  bk: { type: buildkite, endpoint: "${bk.endpoint}", token: { file: "${join(dir, 'buildkite.token')}" }${agent} }
pools:
  lab: { service: bk, queue: default, agents: 2, image: "debian:stable-slim", memory: 1GiB, env: { BUILDKITE_SKIP_CHECKOUT: "true" } }
`,
    ),
  );
  tellEvents(bk, told);
  return {
    greeting: greeting(bk, trial.way),
    obey: (line) => obey(bk, line),
    queueJobs: (count) =>
      void bk.next('agentConnected').then(() => {
        for (let i = 1; i <= count; i++) bk.queueJob({ command: `echo "job ${i} in $(pwd)"`, checkout: true });
      }),
  };
});

function greeting(bk: BuildkiteStandin, way: string): string {
  const build =
    realAgent() === null ? 'Without internet, first: npx node test/support/buildkite-agent.ts; then start this again.\n\n' : '';
  return `A stand-in for Buildkite. It knows one cluster, and forgets everything when it ends.

  endpoint  ${bk.endpoint}
  token     ${bk.token}
  counts    ${bk.metricsToken}   (a token that may read them and nothing else)

${build}${way}

A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, cancel, agents, fault, requests, help, quit.

An agent of your own instead:
  BUILDKITE_AGENT_TOKEN=${bk.token} BUILDKITE_SKIP_CHECKOUT=true buildkite-agent start \\
    --endpoint ${bk.endpoint} --build-path /tmp/builds --disconnect-after-job --ping-mode poll-only
`;
}
