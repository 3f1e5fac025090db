/** `npm run standin:buildkite`: the stand-in by hand, to see the whole flow without an account. */
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { realAgent } from '../../support/buildkite-agent.ts';
import { conversation, ownAddress } from '../by-hand.ts';
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
  using home = homeFor(bk);
  console.log(greeting(bk, home));
  bk.on((event) => {
    const line = told(event);
    if (line !== null) console.log(line);
  });
  const jobs = Number(values.jobs ?? 0);
  if (jobs > 0) {
    void bk.next('agentConnected').then(() => {
      for (let i = 1; i <= jobs; i++) bk.queueJob({ command: `echo "job ${i} in $(pwd)"`, checkout: true });
    });
  }
  await conversation((line) => obey(bk, line));
}

interface TrialHome extends Disposable {
  readonly config: string;
  readonly text: string;
}

/** A config for this stand-in, its token, and a state directory: a onejob that leads this host already goes on beside it. */
function homeFor(bk: BuildkiteStandin): TrialHome {
  const dir = mkdtempSync(join(tmpdir(), 'onejob-buildkite-'));
  const [config, token, state] = [join(dir, 'try.yml'), join(dir, 'token'), join(dir, 'state')];
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
  return {
    ...{ config, text },
    [Symbol.dispose]() {
      // Whoever leads it still needs it to end its agents.
      if (existsSync(join(state, 'onejob.sock'))) console.log(`A onejob is still up; remove ${dir} once it is down.`);
      else rmSync(dir, { recursive: true, force: true });
    },
  };
}

function greeting(bk: BuildkiteStandin, { config, text }: TrialHome): string {
  const build =
    realAgent() === null ? '\nWithout internet, first: npx node test/support/buildkite-agent.ts; then start this again.' : '';
  return `A stand-in for Buildkite. It knows one cluster, and forgets everything when it ends.

  endpoint  ${bk.endpoint}
  token     ${bk.token}
  counts    ${bk.metricsToken}   (a token that may read them and nothing else)

In another terminal, as it stands:${build}
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
