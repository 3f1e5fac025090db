/**
 * Azure Pipelines: from the end of one agent to the next one online at the service, on the real Engine, against the stand-in with
 * its scripted agent. The stand-in is told of both ends, so no clock but this process' own is in the figures.
 */
import { join } from 'node:path';
import { azureBench } from '../test/support/azure.ts';
import { machineSocket } from '../test/support/engine-http.ts';
import { onejob } from '../test/support/onejob.ts';
import { engineProxy } from './engine-proxy.ts';
import { wall } from './jobs.ts';
import { type Stats, stats } from './stats.ts';

export interface AzureGap {
  /** The agent has closed its session, the last thing it does, until the next one has opened its own. ms */
  readonly whole: Stats;
  /** Until the die event reaches the daemon: the agent's own end, the init and the Engine. ms */
  readonly engine: Stats;
  /** From there until the frame leaves the daemon: ours. ms */
  readonly ours: Stats;
  /** Within ours, the manager's calls to the service that were answered meanwhile: number. */
  readonly calls: Stats;
  /** From the frame until the session is open: the gate, the agent's start and its sign-in. ms */
  readonly start: Stats;
  /** Requests of the manager for each job, polls left out. */
  readonly perJob: number;
}

export async function azureGap(jobs: number, dir: string): Promise<AzureGap> {
  await using proxy = await engineProxy(join(dir, 'az.sock'), machineSocket);
  await using bench = await azureBench({ pollHoldMs: 5_000 });
  const { azure, pool } = bench;
  const ends: number[] = [];
  const begins: number[] = [];
  azure.on((event) => {
    if (event.kind === 'sessionOpened') begins.push(wall());
    if (event.kind === 'sessionClosed' && event.why === 'left') ends.push(wall());
  });
  await using home = await onejob({ config: bench.config(), env: { DOCKER_HOST: `unix://${proxy.socket}` } });
  await home.up();
  await azure.next('sessionOpened');
  const before = azure.log.length;
  for (let n = 0; n < jobs; n++) await azure.queue(pool, { script: 'sleep 2' }).finished;
  const managers = azure.log.slice(before).filter(({ identity }) => identity === 'pat');
  const deaths = proxy.passed.filter((one) => one.what === 'die').map((one) => performance.timeOrigin + one.at);
  const frames = proxy.passed.filter((one) => one.what === 'frame').map((one) => performance.timeOrigin + one.at);
  const parts = {
    whole: [] as number[],
    engine: [] as number[],
    ours: [] as number[],
    calls: [] as number[],
    start: [] as number[],
  };
  for (const end of ends) {
    const died = deaths.find((at) => at > end);
    const frame = died === undefined ? undefined : frames.find((at) => at > died);
    const begun = frame === undefined ? undefined : begins.find((at) => at > frame);
    if (died === undefined || frame === undefined || begun === undefined) continue;
    parts.whole.push(begun - end);
    parts.engine.push(died - end);
    parts.ours.push(frame - died);
    parts.calls.push(managers.filter(({ at }) => at >= died && at <= frame).length);
    parts.start.push(begun - frame);
  }
  const isPoll = ({ method, path }: (typeof managers)[number]): boolean =>
    method === 'GET' && (path.includes('includeAssignedRequest=true') || path.includes('completedRequestCount=0'));
  return {
    whole: stats(parts.whole),
    engine: stats(parts.engine),
    ours: stats(parts.ours),
    calls: stats(parts.calls),
    start: stats(parts.start),
    perJob: Math.round((managers.filter((one) => !isPoll(one)).length / jobs) * 10) / 10,
  };
}

/** The manager's requests to the service in one idle minute, with so many agents. */
export async function azurePolls(agents: number, seconds: number): Promise<number> {
  await using bench = await azureBench();
  const { azure, pool } = bench;
  await using home = await onejob({ config: bench.config({ agents, service: 'poll: 10s' }).replace('poll: 2s, ', '') });
  await home.up();
  while (azure.agents(pool).filter(({ online }) => online).length < agents) await azure.next('sessionOpened');
  // Standbys are registered ahead: what is left to be done at the start is not a poll.
  await new Promise((resolve) => setTimeout(resolve, 10_000));
  const before = azure.log.length;
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  return (azure.log.slice(before).filter(({ identity }) => identity === 'pat').length / seconds) * 60;
}
