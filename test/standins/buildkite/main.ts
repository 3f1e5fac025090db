/** `npm run standin:buildkite`: the stand-in by hand, to see the whole flow without an account. */
import { networkInterfaces } from 'node:os';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { realAgent } from '../../support/buildkite-agent.ts';
import { obey, told } from './console.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

const USAGE = `npm run standin:buildkite -- [--host ADDRESS] [--port PORT] [--jobs N]

A local stand-in for Buildkite. Containers must reach its artifact host, so it listens on an address of this host
that is not 127.0.0.1, if there is one; its port is 8991 unless you say otherwise.
--jobs N queues N jobs as soon as the first agent is connected.`;

const { values } = parseArgs({
  options: { host: { type: 'string' }, port: { type: 'string' }, jobs: { type: 'string' }, help: { type: 'boolean' } },
});
if (values.help === true) console.log(USAGE);
else await main();

async function main(): Promise<void> {
  await using bk = await startBuildkite({ host: values.host ?? ownAddress(), port: Number(values.port ?? 8991) });
  console.log(greeting(bk));
  bk.on((event) => {
    const line = told(event);
    if (line !== null) console.log(line);
  });
  const jobs = Number(values.jobs ?? 0);
  if (jobs > 0) {
    void bk.next('agentConnected').then(() => {
      for (let i = 1; i <= jobs; i++) bk.queueJob({ command: `echo "job ${i} in $(pwd)"` });
    });
  }
  await conversation(bk);
}

/** Until `quit`, which waits for what was typed before, or a signal; the end of the input changes nothing, so that it can run in the background. */
function conversation(bk: BuildkiteStandin): Promise<unknown> {
  return new Promise<unknown>((resolve) => {
    const lines = createInterface({ input: process.stdin });
    let before: Promise<unknown> = Promise.resolve();
    const stay = setInterval(() => undefined, 60_000);
    const end = (): void => {
      clearInterval(stay);
      lines.close();
      process.stdin.destroy();
      // An "up" that is under way would open the door again behind whoever closes it.
      void before.then(resolve);
    };
    process.once('SIGINT', end);
    process.once('SIGTERM', end);
    lines.on('line', (line) => {
      if (line.trim() === 'quit') return end();
      // One after the other: "down" and "up" take a moment.
      before = before
        .then(() => obey(bk, line))
        .then(
          (answer) => answer !== '' && console.log(answer),
          (error: unknown) => console.log(error instanceof Error ? error.message : error),
        );
    });
  });
}

/** The address of a bridge for containers, else the first that is reachable from one. */
function ownAddress(): string {
  const all = Object.entries(networkInterfaces()).flatMap(([name, addresses]) =>
    (addresses ?? []).map((each) => ({ name, ...each })),
  );
  const outward = all.filter((each) => each.family === 'IPv4' && !each.internal);
  return (outward.find(({ name }) => name.startsWith('docker')) ?? outward[0])?.address ?? '127.0.0.1';
}

function greeting(bk: BuildkiteStandin): string {
  const program = realAgent();
  const agent = program === null ? '' : `, agent: { from: ${program} }`;
  const build =
    program === null ? '\nWithout internet, first: npx node test/support/buildkite-agent.ts; then start this again.' : '';
  return `A stand-in for Buildkite. It knows one cluster, and forgets everything when it ends.

  endpoint  ${bk.endpoint}
  token     ${bk.token}
  counts    ${bk.metricsToken}   (a token that may read them and nothing else)

A config for it, as bk.yml:
  services:
    bk: { type: buildkite, endpoint: "${bk.endpoint}", token: { file: /tmp/bk.token }${agent} }
  pools:
    lab: { service: bk, queue: default, agents: 2, image: "debian:stable-slim" }
the token in its file, and a daemon with both, in another terminal:${build}
  (umask 077; echo ${bk.token} > /tmp/bk.token)
  npx onejob up --config bk.yml --state-dir /tmp/bk.state --socket /tmp/bk.sock
Or an agent of your own, in another terminal:
  BUILDKITE_AGENT_TOKEN=${bk.token} buildkite-agent start \\
    --endpoint ${bk.endpoint} --build-path /tmp/builds --disconnect-after-job --ping-mode poll-only
A job, here:
  queue -- echo hello; sleep 5; echo done
Also: jobs, log, cancel, agents, fault, requests, help, quit.
`;
}
