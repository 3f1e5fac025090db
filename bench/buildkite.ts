/**
 * Buildkite, on the real Engine with the real agent and the stand-in: from a job's acceptance to its command's first output, from
 * its end to the slot's next idle agent, and how often the service is asked. The floor, from the same minutes: the same agent
 * started by hand in a sandbox that stands ready, against the service itself.
 *
 * Everything is on one host and one clock: the stand-in runs in this process, a proxy sees the Engine, and the job and the program
 * before the agent's write down the time themselves.
 */
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { BrokerEvent, Phase } from '../src/ci/buildkite/broker/protocol.ts';
import { brokerCalls } from '../src/ci/buildkite/broker-calls.ts';
import { brokerPlace } from '../src/ci/buildkite/broker-process.ts';
import { type BuildkiteStandin, startBuildkite } from '../test/standins/buildkite/standin.ts';
import { lacksAgent, realAgent } from '../test/support/buildkite-agent.ts';
import { machineSocket } from '../test/support/engine-http.ts';
import { onejob } from '../test/support/onejob.ts';
import { type AgentByHand, agentByHand, byHandName } from './buildkite-floor.ts';
import { engineProxy } from './engine-proxy.ts';
import { wall } from './jobs.ts';
import { rounded, type Stats, stats } from './stats.ts';

export interface BuildkiteStart {
  /** The service's answer to accept has gone out, until the job's command prints. ms */
  readonly whole: Stats;
  /** Of it until the script is on its way to the gate: broker, decision, commit. ms */
  readonly decided: Stats;
  /** Until the sandbox's shell has become the agent's program. ms */
  readonly gate: Stats;
  /** Until the agent has registered and connected. ms */
  readonly called: Stats;
  /** Until the service hears that the job has started. ms */
  readonly started: Stats;
  /** Until the command prints. ms */
  readonly printed: Stats;
  readonly floor: BuildkiteFloor;
  /** What it takes more than by hand, each time against the one right after it, on the same machine at the same time. ms */
  readonly ours: Stats;
}

/** By hand, from the script's first byte until the command prints; its parts as in `BuildkiteStart`. ms */
export interface BuildkiteFloor {
  readonly whole: Stats;
  readonly gate: Stats;
  readonly started: Stats;
  readonly printed: Stats;
}

export interface BuildkiteGap {
  /** The die event until the slot's next agent is idle at the service. ms */
  readonly fromDie: Stats;
  /** The service has the job's result, until then. ms */
  readonly fromFinish: Stats;
  /** The service has the job's result, until the die event: the agent's own end, and the Engine. ms */
  readonly ending: Stats;
}

export interface BuildkiteRun {
  readonly start: BuildkiteStart;
  readonly gap: BuildkiteGap;
  /** Requests at the service for each job, pings and heartbeats left out, and by route. */
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
    ...{ dir: shared, program },
    began(job) {
      const line = readFileSync(notes, 'utf8')
        .split('\n')
        .find((one) => one.startsWith(job));
      return Number(line?.split(' ')[1] ?? Number.NaN) * 1000;
    },
  };
}

/** When what was seen of each job: wall, ms. */
type Times = Map<string, Partial<Record<'accepted' | 'connected' | 'started' | 'printed' | 'finished', number>>>;

function watch(buildkite: BuildkiteStandin): {
  readonly times: Times;
  readonly idle: number[];
  readonly note: (event: BrokerEvent) => void;
} {
  const times: Times = new Map();
  const idle: number[] = [];
  const put = (job: string, what: 'accepted' | 'connected' | 'started' | 'finished'): void => {
    times.set(job, { [what]: wall(), ...times.get(job) });
  };
  buildkite.onRequest(({ route, params, status, agent }) => {
    if (status >= 300) return;
    const id = params.id ?? '';
    if (route === 'jobs/:id/accept' || route === 'jobs/:id/acquire') put(id, 'accepted');
    if (route === 'jobs/:id/start') put(id, 'started');
    if (route === 'jobs/:id/finish') put(id, 'finished');
    if (route === 'connect' && agent?.startsWith(byHandName) === false) idle.push(wall());
  });
  return {
    ...{ times, idle },
    note(event) {
      const phase: Phase | null = event.kind === 'agent' ? event.agent.phase : null;
      if (event.kind === 'agent' && phase === 'connected' && event.agent.job !== null) put(event.agent.job.id, 'connected');
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
  await using buildkite = await startBuildkite({ host: '0.0.0.0' });
  const { times, idle, note } = watch(buildkite);
  const tokenFile = join(dir, 'bk-token');
  writeFileSync(tokenFile, buildkite.token, { mode: 0o600 });
  await using home = await onejob({
    config: configOf(buildkite, { tokenFile, program, agents: 1, volumes: `["${shared}:${shared}:rw"]` }),
    env: { DOCKER_HOST: `unix://${proxy.socket}` },
  });
  const daemon = await home.up();
  const parting = new AbortController();
  const heard = brokerCalls(brokerPlace(home.stateDir).socket);
  const ours: string[] = [];
  const byHand: { readonly job: string; readonly at: number }[] = [];
  await using hand: AgentByHand = await agentByHand({ buildkite, shared, program });
  const isIdle = (but?: string): boolean =>
    buildkite.agents().some(({ id, state, queue }) => id !== but && state === 'idle' && queue === 'default');
  while (!isIdle()) await buildkite.next('agentConnected');
  const listening = heard.events(note, parting.signal).catch(() => {});
  let asked: string[] = [];
  for (let round = -2; round < rounds; round++) {
    const before = buildkite.requests.length;
    const job = buildkite.queueJob({ command });
    const { agent } = await buildkite.jobEnded(job);
    while (!isIdle(agent?.id)) await buildkite.next('agentConnected');
    const routes = buildkite.requests.slice(before).map(({ route }) => route);
    const one = await hand.run(command);
    if (round < 0) continue;
    ours.push(job);
    byHand.push(one);
    asked = asked.concat(routes);
  }
  parting.abort();
  await listening;
  await daemon.stop();

  const frames = proxy.passed.filter(({ what }) => what === 'frame').map(({ at }) => performance.timeOrigin + at);
  const deaths = proxy.passed.filter(({ what }) => what === 'die').map(({ at }) => performance.timeOrigin + at);
  const after = (list: readonly number[], from: number): number => list.find((at) => at > from) ?? Number.NaN;
  const rows = ours.map((job) => {
    const {
      accepted = Number.NaN,
      connected: called = Number.NaN,
      started = Number.NaN,
      finished = Number.NaN,
    } = times.get(job) ?? {};
    const died = after(deaths, finished);
    return {
      ...{
        accepted,
        called,
        started,
        finished,
        died,
        frame: after(frames, accepted),
        began: began(job),
        printed: printedAt(buildkite, job),
      },
      idle: after(idle, finished),
    };
  });
  const whole = spans(rows.map((row) => [row.accepted, row.printed]));
  const those = byHand.map(({ job, at }) => ({
    ...{ at, began: began(job), started: times.get(job)?.started ?? Number.NaN, printed: printedAt(buildkite, job) },
  }));
  const pairs = rows.map((row, at) => {
    const { at: told = Number.NaN, printed = Number.NaN } = those[at] ?? {};
    return [printed - told, row.printed - row.accepted] as const;
  });
  const floor: BuildkiteFloor = {
    whole: spans(those.map((row) => [row.at, row.printed])),
    gate: spans(those.map((row) => [row.at, row.began])),
    started: spans(those.map((row) => [row.began, row.started])),
    printed: spans(those.map((row) => [row.started, row.printed])),
  };
  const counted = asked.filter((route) => route !== 'ping' && route !== 'heartbeat');
  const routes: Record<string, number> = {};
  for (const route of counted) routes[route] = rounded((routes[route] ?? 0) + 1 / rounds);
  return {
    start: {
      ...{ whole, floor, ours: spans(pairs) },
      decided: spans(rows.map((row) => [row.accepted, row.frame])),
      gate: spans(rows.map((row) => [row.frame, row.began])),
      called: spans(rows.map((row) => [row.began, row.called])),
      started: spans(rows.map((row) => [row.called, row.started])),
      printed: spans(rows.map((row) => [row.started, row.printed])),
    },
    gap: {
      fromDie: spans(rows.map((row) => [row.died, row.idle])),
      fromFinish: spans(rows.map((row) => [row.finished, row.idle])),
      ending: spans(rows.map((row) => [row.finished, row.died])),
    },
    perJob: Math.round((counted.length / rounds) * 10) / 10,
    routes,
  };
}

/** Requests at the service in one idle minute, with so many agents and the service's own intervals. */
export async function buildkiteIdle(agents: number, seconds: number, dir: string): Promise<number> {
  const { program } = tools(join(dir, `idle-${agents}`));
  await using buildkite = await startBuildkite({ pingInterval: 10, heartbeatInterval: 60 });
  const tokenFile = join(dir, `bk-token-${agents}`);
  writeFileSync(tokenFile, buildkite.token, { mode: 0o600 });
  await using home = await onejob({ config: configOf(buildkite, { tokenFile, program, agents, volumes: '[]' }) });
  const daemon = await home.up();
  while (buildkite.agents().filter(({ state }) => state === 'idle').length < agents) await buildkite.next('agentConnected');
  // What is registered ahead for standbys is no poll.
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
