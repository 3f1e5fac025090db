/** The figures that need the finished daemon: the real `bin/onejob`, spoken to over its own API. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { createClient } from '../src/api/client.ts';
import { machineSocket } from '../test/support/engine-http.ts';
import { type Home, onejob } from '../test/support/onejob.ts';
import { engineProxy } from './engine-proxy.ts';
import { done, firstByte, untilIdle, wall } from './jobs.ts';
import { rounded, type Stats, stats } from './stats.ts';

const bare = { pool: null } as const;

function config(pool: Record<string, unknown>): string {
  return JSON.stringify({ pools: { default: pool } });
}

export interface Gap {
  /** The last job's last instruction until the first byte of the next one is at a client. ms */
  readonly whole: Stats;
  /** Until the die event reaches the daemon: the Engine's share. ms */
  readonly engine: Stats;
  /** From there until the frame leaves the daemon: ours. ms */
  readonly ours: Stats;
  /** From there until the client has the first byte: the Engine's attach and log, the shell, and our way back. ms */
  readonly back: Stats;
}

/** A queue of jobs on one slot, each a second long, so that a standby is there when it ends. `engine`: socket. */
export async function gap(jobs: number, dir: string, engine = machineSocket): Promise<Gap> {
  await using proxy = await engineProxy(join(dir, 'p.sock'), engine);
  await using home = await onejob({
    config: config({ runtime: 'docker', agents: 1 }),
    env: { DOCKER_HOST: `unix://${proxy.socket}` },
    engine,
  });
  await home.up();
  await untilIdle(home.api);
  const said = await saying(home, null, jobs);
  const frames = proxy.passed.filter((one) => one.what === 'frame').map((one) => performance.timeOrigin + one.at);
  const deaths = proxy.passed.filter((one) => one.what === 'die').map((one) => performance.timeOrigin + one.at);
  const whole: number[] = [];
  const engines: number[] = [];
  const ours: number[] = [];
  const back: number[] = [];
  for (const [n, { last }] of said.slice(0, -1).entries()) {
    const next = said[n + 1];
    const died = deaths.find((at) => at > last);
    const frame = died === undefined ? undefined : frames.find((at) => at > died);
    if (next === undefined || died === undefined || frame === undefined || frame > next.first) continue;
    whole.push(next.first - last);
    engines.push(died - last);
    ours.push(frame - died);
    back.push(next.first - frame);
  }
  return { whole: stats(whole), engine: stats(engines), ours: stats(ours), back: stats(back) };
}

/** A queue of jobs of a second each: when the first byte of each was at a client, and its last instruction ran. ms */
export async function saying(home: Home, pool: string | null, jobs: number): Promise<readonly { first: number; last: number }[]> {
  // The last jobs say nothing for minutes, and their followers are there from the start.
  const follower = createClient({ socket: home.socket, version: 'bench', patience: 3_600_000 });
  // The first words and the last of each job are the time; nothing but builtins runs between the last and the end.
  const command = [pool === null ? 'bash' : 'sh', '-c', 'echo $EPOCHREALTIME; sleep 1; echo $EPOCHREALTIME'];
  const ids: string[] = [];
  for (let n = 0; n < jobs; n++) ids.push((await home.api.submit({ pool, command })).id);
  const said = await Promise.all(
    ids.map(async (id) => {
      let text = '';
      let at: number | null = null;
      for await (const piece of follower.logs({ job: id }, { follow: true })) {
        at ??= wall();
        text += Buffer.from(piece.bytes).toString();
      }
      const [, last] = text.trim().split('\n');
      return { first: at ?? Number.NaN, last: Number(last) * 1000 };
    }),
  );
  for (const id of ids) await done(home.api, id);
  return said;
}

/** Submit on an open connection until the first byte is here, warm agent, no workspace. ms. `engine`: socket. */
export async function submitToFirstByte(rounds: number, engine = machineSocket): Promise<Stats> {
  await using home = await onejob({
    engine,
    config: config({ runtime: 'docker', agents: 1 }),
    env: { DOCKER_HOST: `unix://${engine}` },
  });
  await home.up();
  const times: number[] = [];
  for (let n = 0; n < rounds; n++) {
    await untilIdle(home.api);
    const began = wall();
    const { id } = await home.api.submit({ ...bare, command: ['echo', 'x'] });
    times.push((await firstByte(home.api, id)).at - began);
    await done(home.api, id);
  }
  return stats(times);
}

export interface Throughput extends AsyncDisposable {
  /**
   * Jobs of `true` on four slots, per second: from the first submit until the last is settled and every slot has its standby
   * again, so that as many sandboxes are made as jobs are run.
   */
  measure(jobs: number): Promise<number>;
}

/** `engine`: socket. */
export async function throughput(engine = machineSocket): Promise<Throughput> {
  const home = await onejob({ engine, config: config({ runtime: 'docker', agents: 4 }), env: { DOCKER_HOST: `unix://${engine}` } });
  await home.up();
  return {
    async measure(jobs) {
      await untilIdle(home.api);
      const began = performance.now();
      const ids: string[] = [];
      for (let n = 0; n < jobs; n++) ids.push((await home.api.submit({ ...bare, command: ['true'] })).id);
      await Promise.all(ids.map((id) => done(home.api, id)));
      await untilIdle(home.api);
      return rounded(jobs / ((performance.now() - began) / 1000));
    },
    [Symbol.asyncDispose]: () => home.close(),
  };
}

export interface Idle {
  /** MB of 10^6 bytes */
  readonly rss: number;
  /** % of one core */
  readonly cpu: number;
}

/** Sixteen idle slots. */
export async function idle(seconds: number): Promise<Idle> {
  await using home = await onejob({ config: config({ runtime: 'docker', agents: 16 }) });
  const { pid } = await home.up();
  await untilIdle(home.api, 180_000);
  await pause(5_000);
  const before = cpuSeconds(pid).own;
  await pause(seconds * 1000);
  return { cpu: rounded(((cpuSeconds(pid).own - before) / seconds) * 100), rss: rss(pid) };
}

/** MB by which the daemon has grown over that many jobs, after a tenth of them to warm up. Process runtime. */
export async function growth(jobs: number): Promise<number> {
  await using home = await onejob({ config: config({ runtime: 'process', agents: 4 }) });
  const { pid } = await home.up();
  await runMany(home, Math.ceil(jobs / 10));
  const before = rss(pid);
  await runMany(home, jobs);
  return rounded(rss(pid) - before);
}

/** `onejob run -- true` with nothing there: no daemon, no state, no config but the runtime's name. ms wall */
export async function coldRun(rounds: number): Promise<Stats> {
  const times: number[] = [];
  for (let n = 0; n < rounds; n++) {
    await using home = await onejob({ config: config({ runtime: 'process' }) });
    const began = performance.now();
    const ended = await home.run('--', 'true').ended;
    times.push(performance.now() - began);
    if (ended.code !== 0) throw new Error(`onejob run ended with ${ended.code}: ${ended.stderr}`);
  }
  return stats(times);
}

async function runMany(home: Home, jobs: number): Promise<void> {
  let left = jobs;
  // A few clients at a time, as there would be: the queue must not be what grows.
  await Promise.all(
    Array.from({ length: 8 }, async () => {
      while (left-- > 0) await done(home.api, (await home.api.submit({ ...bare, command: ['true'] })).id);
    }),
  );
}

export function rss(pid: number): number {
  const kib = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  return rounded((Number(kib) * 1024) / 1e6);
}

/** Of the process, and of its children that have ended. */
export function cpuSeconds(pid: number): { readonly own: number; readonly children: number } {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  // In ticks of 1/100 s: utime, stime, cutime and cstime; proc_pid_stat(5).
  const [user = Number.NaN, system = Number.NaN, ofUser = Number.NaN, ofSystem = Number.NaN] = fields.slice(11, 15).map(Number);
  return { own: (user + system) / 100, children: (ofUser + ofSystem) / 100 };
}
