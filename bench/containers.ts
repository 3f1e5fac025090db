/**
 * Agents with an engine of their own, beside those without in the same pools' daemon, and beside the raw Engine: all on one private Engine.
 */
import { execFileSync } from 'node:child_process';
import { type EventEmitter, once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import { pack } from 'tar-stream';
import { labels } from '../src/runtimes/docker/create.ts';
import { clientImage } from '../test/support/engine-base.ts';
import type { Engine } from '../test/support/engine-http.ts';
import { images } from '../test/support/images.ts';
import { engineForPools, makeBox, type PoolEngine } from '../test/support/job-containers.ts';
import type { Home } from '../test/support/onejob.ts';
import { saying } from './daemon.ts';
import { done, firstByte, untilIdle, wall } from './jobs.ts';
import { inTurn, type Ratio, type Stats, stats } from './stats.ts';

export interface ContainersFigures {
  /** `docker run -d`, and an agent until it waits. ms */
  readonly start: Stats;
  readonly agent: { readonly with: Stats; readonly without: Stats };
  /** MB of 10^6 bytes for each waiting agent: without what files in memory take. */
  readonly memory: { readonly with: number; readonly without: number };
  /** Submission on an open connection to the first byte at the client. ms */
  readonly release: { readonly with: Stats; readonly without: Stats };
  /** Last instruction of a job to the first byte of the next. ms */
  readonly gap: { readonly with: Stats; readonly without: Stats };
  /** First `docker` command of a job, which starts its engine. ms */
  readonly first: Stats;
  /** `docker run --rm IMAGE true` in a job, of the same command at the Engine. */
  readonly run: Ratio;
  /** Until an agent waits, with that much in the images of its pool. ms */
  readonly ready: { readonly gigabytes: number; readonly with: Stats };
}

export interface ContainersRounds {
  readonly rounds: number;
  readonly agents: number;
  readonly gigabytes: number;
}

const pool = (more: string): string => `{ image: "${clientImage}", network: default, stop_grace: 1s, ${more} }`;
const big = 'onejob-bench-big:1';

export async function containersFigures({ rounds, agents, gigabytes }: ContainersRounds): Promise<ContainersFigures> {
  await using engine = await engineForPools();
  await makeBig(engine.api, gigabytes);
  return {
    ...(await onePool(engine, rounds)),
    memory: await memory(engine, agents),
    ready: await ready(engine, rounds, gigabytes),
  };
}

async function onePool(engine: PoolEngine, rounds: number): Promise<Omit<ContainersFigures, 'memory' | 'ready'>> {
  await using home = await engine.home(`pools:\n  with: ${pool('agents: 1, containers: true')}\n  without: ${pool('agents: 1')}\n`);
  await home.up();
  await untilIdle(home.api, 300_000);
  const times = { start: [] as number[], with: [] as number[], without: [] as number[] };
  for (let n = 0; n < rounds; n++) {
    times.start.push(await startOne(engine.api));
    for (const name of ['with', 'without'] as const) times[name].push(await made(home, name));
  }
  const each = async <T>(measure: (name: 'with' | 'without') => Promise<T>) => ({
    with: await measure('with'),
    without: await measure('without'),
  });
  return {
    start: stats(times.start),
    agent: { with: stats(times.with), without: stats(times.without) },
    release: await each((name) => released(home, name, rounds)),
    gap: await each(async (name) => {
      const said = await saying(home, name, rounds + 1);
      return stats(said.slice(1).map(({ first }, at) => first - (said[at]?.last ?? Number.NaN)));
    }),
    first: await firstUse(home, rounds),
    run: await runs(engine, home, rounds),
  };
}

/** `docker run -d` of the image of the sandboxes, raw: until it has started. */
async function startOne(engine: Engine): Promise<number> {
  const began = performance.now();
  const body = { Image: clientImage, Cmd: ['sleep', '1000'], HostConfig: { Init: true, LogConfig: { Type: 'local' } } };
  const { Id } = (await engine.ok('POST', '/containers/create', body)) as { Id: string };
  await engine.ok('POST', `/containers/${Id}/start`);
  const took = performance.now() - began;
  await engine.ok('DELETE', `/containers/${Id}?force=1&v=1`);
  return took;
}

/** How long the next agent of a pool is prepared, while a job has the one that waited. */
async function made(home: Home, name: string): Promise<number> {
  await untilIdle(home.api);
  const { id } = await home.api.submit({ pool: name, command: ['sleep', '3'] });
  const is = async (wanted: string): Promise<void> => {
    for (const until = Date.now() + 60_000; Date.now() < until; ) {
      const found = (await home.api.status()).pools.find((one) => one.name === name)?.slots[0]?.standby.state;
      if (found === wanted) return;
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    throw new Error(`no agent of ${name} is ${wanted}`);
  };
  await is('preparing');
  const began = performance.now();
  await is('standby');
  const took = performance.now() - began;
  await done(home.api, id);
  return took;
}

async function released(home: Home, name: string, rounds: number): Promise<Stats> {
  const times: number[] = [];
  for (let n = 0; n < rounds; n++) {
    await untilIdle(home.api);
    const began = wall();
    const { id } = await home.api.submit({ pool: name, command: ['echo', 'x'] });
    times.push((await firstByte(home.api, id)).at - began);
    await done(home.api, id);
  }
  return stats(times);
}

/** What a job says about how long something took there, in ms. */
async function timesOf(home: Home, script: string): Promise<number[]> {
  const command = ['sh', '-ec', script];
  const { code, stdout, stderr } = await home.run('--no-workspace', '--pool', 'with', '--', ...command).ended;
  if (code !== 0) throw new Error(`a job failed: ${stderr}`);
  const at = stdout.trim().split(/\s+/).map(Number);
  return at.slice(1).map((one, n) => (one - (at[n] ?? Number.NaN)) * 1000);
}

async function firstUse(home: Home, rounds: number): Promise<Stats> {
  const times: number[] = [];
  for (let n = 0; n < rounds; n++) {
    await untilIdle(home.api);
    times.push(...(await timesOf(home, 'echo $EPOCHREALTIME; docker version >/dev/null; echo $EPOCHREALTIME')));
  }
  return stats(times);
}

async function runs(engine: PoolEngine, home: Home, pairs: number): Promise<Ratio> {
  const word = ['run', '--rm'];
  const atEngine = async (): Promise<number> => {
    const began = performance.now();
    execFileSync('docker', ['--host', `unix://${engine.socket}`, ...word, images.base, 'true'], { stdio: 'ignore' });
    return performance.now() - began;
  };
  const measured = `echo $EPOCHREALTIME; docker ${word.join(' ')} box:1 true; echo $EPOCHREALTIME`;
  // One before, since the first of an engine makes more.
  const inJob = async (): Promise<number> =>
    (await timesOf(home, `${makeBox}; docker run --rm box:1 true; ${measured}`))[0] ?? Number.NaN;
  return await inTurn(pairs, atEngine, inJob);
}

/** MB for each of many agents: anonymous memory and the kernel's, of their control groups. */
async function memory(engine: PoolEngine, agents: number): Promise<ContainersFigures['memory']> {
  const kinds = ['with', 'without'] as const;
  const pools = kinds.map((name) => `  ${name}: ${pool(`agents: ${agents}, containers: ${name === 'with'}`)}\n`);
  await using home = await engine.home(`pools:\n${pools.join('')}`);
  await home.up();
  await untilIdle(home.api, 900_000);
  const [withEngine = Number.NaN, without = Number.NaN] = await Promise.all(
    kinds.map(async (name) => {
      const filters = JSON.stringify({ label: [`${labels.pool}=${name}`] });
      const found = (await engine.api.ok('GET', `/containers/json?filters=${filters}`)) as { Id: string }[];
      if (found.length !== agents) throw new Error(`${found.length} containers of ${agents} agents`);
      const sum = found.reduce((bytes, { Id }) => bytes + memoryOf(Id), 0);
      return Math.round(sum / agents / 1e5) / 10;
    }),
  );
  return { with: withEngine, without };
}

/** Bytes. */
function memoryOf(container: string): number {
  const group = `/sys/fs/cgroup/memory/docker/${container}`;
  const rss = /^total_rss (\d+)$/m.exec(readFileSync(`${group}/memory.stat`, 'utf8'))?.[1];
  return Number(rss) + Number(readFileSync(`${group}/memory.kmem.usage_in_bytes`, 'utf8'));
}

async function ready(engine: PoolEngine, rounds: number, gigabytes: number): Promise<ContainersFigures['ready']> {
  await using home = await engine.home(`pools: { with: ${pool(`agents: 1, containers: { images: ["${big}"] }, pull: never`)} }\n`);
  await home.up();
  await untilIdle(home.api, 900_000);
  const times: number[] = [];
  for (let n = 0; n < rounds; n++) times.push(await made(home, 'with'));
  return { gigabytes, with: stats(times) };
}

/** An image of one file, which no compression of a file system makes small. */
async function makeBig(engine: Engine, gigabytes: number): Promise<void> {
  const size = Math.round(gigabytes * 1e9);
  const piece = Buffer.alloc(1_000_000);
  for (let at = 0; at < piece.length; at += 4) piece.writeUInt32LE((at * 2_654_435_761) % 2 ** 32, at);
  const tar = pack();
  const file = tar.entry({ name: 'big', size });
  const written = (async () => {
    for (let left = size; left > 0; left -= piece.length)
      if (!file.write(piece.subarray(0, Math.min(left, piece.length)))) await once(file as unknown as EventEmitter, 'drain');
    file.end(null);
    tar.finalize();
  })();
  const answer = await engine.stream('POST', '/images/create?fromSrc=-&repo=onejob-bench-big&tag=1', Readable.from(tar));
  for await (const _ of answer);
  await written;
}
