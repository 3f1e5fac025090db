/**
 * Buildkite, on the real Engine with the real agent and the stand-in: from a job being scheduled to its command's first output, how
 * much of that is onejob's own, and how often the service is asked. The floor, from the same minutes: the same agent started by hand
 * in a sandbox that stands ready, against the service itself.
 *
 * Everything is on one host and one clock: the stand-in runs in this process, a proxy sees the Engine, and the job and the program
 * before the agent's write down the time themselves.
 */
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type BuildkiteStandin, startBuildkite } from '../test/standins/buildkite/standin.ts';
import { lacksAgent, realAgent } from '../test/support/buildkite-agent.ts';
import { bridgeAddress, untilAsking } from '../test/support/buildkite-host.ts';
import { machineSocket } from '../test/support/engine-http.ts';
import { standbyOf } from '../test/support/look.ts';
import { onejob } from '../test/support/onejob.ts';
import { type AgentByHand, agentByHand } from './buildkite-floor.ts';
import { engineProxy } from './engine-proxy.ts';
import { wall } from './jobs.ts';
import { rounded, type Stats, stats } from './stats.ts';

/** In ms. */
export interface BuildkiteStart {
  /** The job is scheduled, until its command prints. */
  readonly whole: Stats;
  /** Of it until the service lists the job: the poll. */
  readonly found: Stats;
  /** From there until the script is written to the gate: decision, calls (with the stand-in's answers), commits. */
  readonly ours: Stats;
  /** Until the sandbox's shell has become the agent's program. */
  readonly gate: Stats;
  /** From the agent's first instruction until the command prints; by hand. */
  readonly agent: Stats;
  readonly floor: Stats;
}

export interface BuildkiteRun {
  readonly start: BuildkiteStart;
  /** Requests at the service for each job, heartbeats and lists left out, and by route. */
  readonly perJob: number;
  readonly routes: Readonly<Record<string, number>>;
}

/** A folder that host and sandboxes have at the same place, with the agent and what notes when it begins. */
function tools(dir: string): { readonly dir: string; readonly program: string; readonly began: (job: string) => number } {
  const agent = realAgent();
  if (agent === null) throw new Error(`${lacksAgent()}`);
  const shared = join(dir, 'bk');
  mkdirSync(shared, { recursive: true, mode: 0o755 });
  chmodSync(dir, 0o755);
  chmodSync(shared, 0o777);
  copyFileSync(agent, join(shared, 'real-agent'));
  const notes = join(shared, 'began');
  writeFileSync(notes, '');
  // Root in a sandbox is not above what the host's files say.
  chmodSync(notes, 0o666);
  const program = join(shared, 'buildkite-agent');
  const note = `[ "$1" = start ] && echo "$BUILDKITE_AGENT_ACQUIRE_JOB $EPOCHREALTIME" >>${notes}`;
  writeFileSync(program, `#!/bin/bash\n${note}\nexec ${shared}/real-agent "$@"\n`, { mode: 0o755 });
  return {
    dir: shared,
    program,
    began(job) {
      const line = readFileSync(notes, 'utf8')
        .split('\n')
        .find((one) => one.startsWith(job));
      return Number(line?.split(' ')[1] ?? Number.NaN) * 1000;
    },
  };
}

const command = 'echo "at $EPOCHREALTIME"; sleep 1';

/** When the command printed, by its own clock. */
function printedAt(buildkite: BuildkiteStandin, job: string): number {
  const found = /^at (\d+\.\d+)$/m.exec(buildkite.job(job).log);
  return Number(found?.[1] ?? Number.NaN) * 1000;
}

function spans(rows: readonly (readonly [number, number])[]): Stats {
  return stats(rows.map(([from, to]) => to - from).filter((ms) => Number.isFinite(ms)));
}

/** `rounds` jobs each way, taking turns, so that both see the same machine. */
export async function buildkiteRun(rounds: number, dir: string): Promise<BuildkiteRun> {
  const { dir: shared, program, began } = tools(dir);
  await using proxy = await engineProxy(join(dir, 'bk.sock'), machineSocket);
  await using buildkite = await startBuildkite({ host: '0.0.0.0', publicHost: bridgeAddress() });
  const tokenFile = join(dir, 'bk-token');
  writeFileSync(tokenFile, buildkite.token, { mode: 0o600 });
  await using home = await onejob({
    config: configOf(buildkite, { tokenFile, program, agents: 1, volumes: `["${shared}:${shared}:rw"]` }),
    env: { DOCKER_HOST: `unix://${proxy.socket}` },
  });
  const daemon = await home.up();
  await untilAsking({ buildkite });
  const ours: { readonly job: string; readonly queued: number; readonly from: number; readonly to: number }[] = [];
  const byHand: { readonly job: string; readonly at: number }[] = [];
  await using hand: AgentByHand = await agentByHand({ buildkite, shared, program });
  for (let round = -2; round < rounds; round++) {
    while ((await standbyOf(home, 'ci/1')) === null) await new Promise((resolve) => setTimeout(resolve, 50));
    // At any moment between two lists.
    await new Promise((resolve) => setTimeout(resolve, ((round + 2) * 137) % 1_000));
    const from = buildkite.requests.length;
    const queued = wall();
    const job = buildkite.queueJob({ command });
    await buildkite.jobEnded(job);
    const to = buildkite.requests.length;
    const one = await hand.run(command);
    if (round < 0) continue;
    ours.push({ job, queued, from, to });
    byHand.push(one);
  }
  await daemon.stop();

  const frames = proxy.passed.filter(({ what }) => what === 'frame').map(({ at }) => performance.timeOrigin + at);
  const rows = ours.map(({ job, queued, from, to }) => {
    const asked = buildkite.requests.slice(from, to);
    const reserve = asked.findIndex(({ route }) => route.endsWith('batch-reserve'));
    const listed = asked.slice(0, reserve).findLast(({ route }) => route === 'stacks/:key/scheduled-jobs')?.at ?? Number.NaN;
    const frame = frames.find((at) => at > listed) ?? Number.NaN;
    return { queued, listed, frame, began: began(job), printed: printedAt(buildkite, job) };
  });
  const asked = ours.flatMap(({ from, to }) => buildkite.requests.slice(from, to).map(({ route }) => route));
  const counted = asked.filter((route) => route !== 'heartbeat' && route !== 'stacks/:key/scheduled-jobs' && route !== 'metrics');
  const routes: Record<string, number> = {};
  for (const route of counted) routes[route] = rounded((routes[route] ?? 0) + 1 / rounds);
  return {
    start: {
      whole: spans(rows.map((row) => [row.queued, row.printed])),
      found: spans(rows.map((row) => [row.queued, row.listed])),
      ours: spans(rows.map((row) => [row.listed, row.frame])),
      gate: spans(rows.map((row) => [row.frame, row.began])),
      agent: spans(rows.map((row) => [row.began, row.printed])),
      floor: spans(byHand.map(({ job }) => [began(job), printedAt(buildkite, job)])),
    },
    perJob: Math.round((counted.length / rounds) * 10) / 10,
    routes,
  };
}

/** Requests at the service in one idle minute, with so many free slots. */
export async function buildkiteIdle(agents: number, seconds: number, dir: string): Promise<number> {
  const { program } = tools(join(dir, `idle-${agents}`));
  await using buildkite = await startBuildkite();
  const tokenFile = join(dir, `bk-token-${agents}`);
  writeFileSync(tokenFile, buildkite.token, { mode: 0o600 });
  await using home = await onejob({ config: configOf(buildkite, { tokenFile, program, agents, volumes: '[]' }) });
  const daemon = await home.up();
  await untilAsking({ buildkite });
  // What is asked while standbys are made is not a poll.
  await new Promise((resolve) => setTimeout(resolve, 5_000));
  const before = buildkite.requests.length;
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const asked = buildkite.requests.length - before;
  await daemon.stop();
  return (asked / seconds) * 60;
}

interface ConfigParts {
  readonly tokenFile: string;
  readonly program: string;
  readonly agents: number;
  /** YAML. */
  readonly volumes: string;
}

function configOf({ endpoint }: BuildkiteStandin, { tokenFile, program, agents, volumes }: ConfigParts): string {
  return `
services:
  bk: { type: buildkite, endpoint: "${endpoint}", token: { file: ${tokenFile} }, agent: { from: ${program} } }
pools:
  ci: { service: bk, queue: default, agents: ${agents}, image: "debian:stable-slim", volumes: ${volumes} }
`;
}
