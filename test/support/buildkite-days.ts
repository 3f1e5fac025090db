/** What tests of Buildkite's bad days do and look at: kill the filter, kill a sandbox, read what a person would read. */
import { expect } from 'vitest';
import type { JobView } from '../standins/buildkite/standin.ts';
import { type BuildkiteBench, type BuildkiteConfig, buildkiteBench } from './buildkite.ts';
import { realAgent } from './buildkite-agent.ts';
import { processesOf } from './census-processes.ts';
import { untilGone } from './child.ts';
import { engineAt, machineSocket } from './engine-http.ts';
import { poolOf, slotOf } from './look.ts';
import { type Daemon, type Home, onejob } from './onejob.ts';

/** Path of the real agent; where it may be missing the whole suite is skipped by `lacks('buildkiteAgent')`. */
export function theAgent(): string {
  const agent = realAgent();
  if (agent === null) throw new Error('there is no real agent');
  return agent;
}

export interface Day extends AsyncDisposable {
  readonly bench: BuildkiteBench;
  readonly here: Home;
}

/** A stand-in, and a home whose config is for it: agents are lost at the service after 15 s without a heartbeat. */
export async function aDay(
  config: BuildkiteConfig = {},
  options: Parameters<typeof buildkiteBench>[1] = {},
  env: Readonly<Record<string, string>> = {},
): Promise<Day> {
  await using parts = new AsyncDisposableStack();
  const bench = parts.use(await buildkiteBench(theAgent(), { lostMs: 15_000, ...options }));
  const here = parts.use(await onejob({ config: bench.config(config), env }));
  const all = parts.move();
  return { bench, here, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

/** Pid of the filter that is there; null while there isn't one. */
export function filterPid({ stateDir }: Pick<Home, 'stateDir'>): number | null {
  // Those shown have the state directory among their arguments, but long commands are cut.
  const own = processesOf({ stateDir, owner: null }).find(({ command }) => command.includes(' filter --state-dir '));
  return own?.pid ?? null;
}

/** SIGKILL, and waits for its end; false when there was none. */
export async function killFilter(here: Pick<Home, 'stateDir'>): Promise<boolean> {
  const pid = filterPid(here);
  if (pid === null) return false;
  process.kill(pid, 'SIGKILL');
  await untilGone(pid);
  return true;
}

/** From another repository than its pipeline's: not trusted. */
export const fork = { pullRequest: 7, pullRequestRepo: 'https://git.example.org/stranger/demo.git' } as const;

export async function untilRunning(
  { buildkite }: Pick<BuildkiteBench, 'buildkite'>,
  id: string,
  timeout = 60_000,
): Promise<JobView> {
  await expect.poll(() => buildkite.job(id).state, { timeout, interval: 50 }).toBe('running');
  return buildkite.job(id);
}

/** Resolves once the job has said so. */
export async function untilSays(
  { buildkite }: Pick<BuildkiteBench, 'buildkite'>,
  id: string,
  what: string | RegExp,
): Promise<void> {
  await expect.poll(() => buildkite.job(id).log, { timeout: 60_000, interval: 50 }).toMatch(what);
}

/** Why the pool starts nothing, as a person reads it in `onejob status`; empty while nothing is wrong. */
export async function troubleOf(here: Home, name = 'ci'): Promise<string> {
  const { paused, backoff } = await poolOf(here, name);
  return [...paused, ...(backoff === null ? [] : [backoff.reason])].join('\n');
}

/** A trivial job ends well: the pool works. */
export async function works(bench: BuildkiteBench, spec: Parameters<BuildkiteBench['job']>[1] = {}): Promise<JobView> {
  const job = await bench.job('echo well', spec);
  expect({ exit: job.exit, log: job.log }).toEqual({ exit: 0, log: expect.stringContaining('\nwell\n') });
  return job;
}

export const laneOf = async (here: Home, key = 'ci/1') => (await slotOf(here, key)).agent.state;

/** Id of the container of a slot's agent. @throws Error when it has none */
export async function containerOf(here: Home, key = 'ci/1', socket = machineSocket): Promise<string> {
  const { agent } = (await slotOf(here, key)).agent;
  const { owner } = await here.api.status();
  const label = [`onejob.owner=${owner}`, `onejob.agent=${agent}`];
  using engine = engineAt(socket);
  const found = (await engine.ok('GET', `/containers/json?filters=${encodeURIComponent(JSON.stringify({ label }))}`)) as {
    readonly Id: string;
  }[];
  const [first] = found;
  if (first === undefined) throw new Error(`slot ${key} has no container`);
  return first.Id;
}

/** Agents that are connected at the service, by name. */
export function connected({ buildkite }: Pick<BuildkiteBench, 'buildkite'>): string[] {
  return buildkite
    .agents()
    .filter(({ state }) => state === 'idle' || state === 'busy')
    .map(({ name }) => name)
    .sort();
}

/** One job is cancelled while it runs, the next is lost with its sandbox: the service is told both, and the pool continues. */
export async function cancelledThenLost({ bench, here }: Day): Promise<void> {
  const { buildkite } = bench;
  const id = bench.hold('never');
  await untilSays(bench, id, 'began never');
  buildkite.cancel(id);
  expect(await buildkite.jobEnded(id)).toMatchObject({ state: 'canceled' });
  const lost = bench.hold('lost');
  await untilSays(bench, lost, 'began lost');
  using engine = engineAt(machineSocket);
  await engine.ok('POST', `/containers/${await containerOf(here)}/kill`);
  const job = await buildkite.jobEnded(lost);
  // Nobody but its agent could have written that into its log.
  expect(job).toMatchObject({ exit: -1, notifications: [expect.stringContaining('This job was lost')] });
  await works(bench);
}

/** A job continues while its manager dies four times. Answers with the last manager, and the job. */
export async function throughDeaths({ bench, here }: Day, first: Daemon): Promise<{ daemon: Daemon; job: JobView }> {
  let daemon = first;
  const id = bench.hold('through');
  await untilSays(bench, id, 'began through');
  for (let kills = 0; kills < 4; kills++) {
    await daemon.kill();
    daemon = await here.up();
  }
  bench.go('through');
  const job = await bench.buildkite.jobEnded(id);
  expectOnce(job, 'through');
  return { daemon, job };
}

export async function down(here: Home, ...flags: string[]): Promise<void> {
  const { code, stdout, stderr } = await here.cli(['down', ...flags]).ended;
  expect(code, stdout + stderr).toBe(0);
}

/** Ends the day: the daemon is stopped, and nothing is left on either side. */
export async function endOf({ bench, here }: Day, daemon: Daemon): Promise<void> {
  await daemon.stop();
  const { buildkite } = bench;
  await expect.poll(() => buildkite.census(), { timeout: 40_000 }).toEqual({ agents: [], jobs: [] });
  expect(buildkite.requests.filter(({ leaked }) => leaked)).toEqual([]);
  // One that an earlier manager started ends a moment after the last.
  await expect.poll(() => filterPid(here), { timeout: 20_000 }).toBe(null);
  expect((await here.census()).left).toEqual([]);
}

/** The job ran once: it was given out once, and said `began NAME` and `ended NAME` once each. */
export function expectOnce(job: JobView, name: string): void {
  const once = (what: string) => [...job.log.matchAll(new RegExp(`^${what} ${name}$`, 'gm'))].length;
  expect({ exit: job.exit, began: once('began'), ended: once('ended'), missing: job.logMissing }, job.log).toEqual({
    exit: 0,
    began: 1,
    ended: 1,
    missing: 0,
  });
}
