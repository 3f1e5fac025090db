/**
 * The floor: the Engine driven raw over its socket, as fast as it goes: create, start, wait for the die event, remove.
 * Nothing onejob does can be faster than this on the same Engine in the same minutes.
 */
import { createInterface } from 'node:readline';
import { type Engine, engineAt } from '../test/support/engine-http.ts';
import { rounded, type Stats, stats } from './stats.ts';

export interface Floor {
  /** How many cycles ran beside each other. */
  readonly concurrency: number;
  readonly cyclesPerSecond: number;
  /** ms */
  readonly create: Stats;
  readonly start: Stats;
  /** From the answer to `start` until the die event came. */
  readonly untilDie: Stats;
  readonly remove: Stats;
  readonly whole: Stats;
}

export interface FloorOptions {
  readonly socket: string;
  readonly image: string;
  readonly cycles: number;
  readonly concurrency: number;
  /** `plain`: as `docker run IMAGE true`. `alike`: with the init, log driver and network that onejob's sandboxes have. */
  readonly kind: 'plain' | 'alike';
}

const label = 'onejob-bench.floor';
const network = 'onejob-bench-floor';

/** Runs `cycles` cycles; leaves nothing. */
export async function floor(options: FloorOptions): Promise<Floor> {
  using engine = engineAt(options.socket);
  await using deaths = await followDeaths(engine);
  const hostConfig = options.kind === 'plain' ? {} : { Init: true, LogConfig: { Type: 'local' }, NetworkMode: network };
  if (options.kind === 'alike') await makeNetwork(engine);
  const times = { create: [], start: [], untilDie: [], remove: [], whole: [] } as Record<
    keyof Omit<Floor, 'concurrency' | 'cyclesPerSecond'>,
    number[]
  >;

  async function cycle(): Promise<void> {
    const body = { Image: options.image, Cmd: ['true'], Labels: { [label]: '1' }, HostConfig: hostConfig };
    const t0 = performance.now();
    const { Id } = (await engine.ok('POST', '/containers/create', body)) as { Id: string };
    const died = deaths.of(Id);
    const t1 = performance.now();
    await engine.ok('POST', `/containers/${Id}/start`);
    const t2 = performance.now();
    await died;
    const t3 = performance.now();
    await engine.ok('DELETE', `/containers/${Id}?v=1`);
    const t4 = performance.now();
    times.create.push(t1 - t0);
    times.start.push(t2 - t1);
    times.untilDie.push(t3 - t2);
    times.remove.push(t4 - t3);
    times.whole.push(t4 - t0);
  }

  try {
    let left = options.cycles;
    const began = performance.now();
    await Promise.all(
      Array.from({ length: options.concurrency }, async () => {
        while (left-- > 0) await cycle();
      }),
    );
    const seconds = (performance.now() - began) / 1000;
    return {
      concurrency: options.concurrency,
      cyclesPerSecond: rounded(options.cycles / seconds),
      create: stats(times.create),
      start: stats(times.start),
      untilDie: stats(times.untilDie),
      remove: stats(times.remove),
      whole: stats(times.whole),
    };
  } finally {
    await sweep(engine);
  }
}

interface Deaths extends AsyncDisposable {
  /** Resolves when the container has died; ask before starting it. */
  of(id: string): Promise<void>;
}

async function followDeaths(engine: Engine): Promise<Deaths> {
  const filters = encodeURIComponent(JSON.stringify({ type: ['container'], event: ['die'], label: [label] }));
  const answer = await engine.stream('GET', `/events?filters=${filters}`);
  const waiting = new Map<string, () => void>();
  const lines = createInterface({ input: answer });
  lines.on('line', (line) => {
    // The short `id` beside it is gone in Engine 29.
    const { Actor } = JSON.parse(line) as { Actor: { ID: string } };
    waiting.get(Actor.ID)?.();
    waiting.delete(Actor.ID);
  });
  return {
    of: (id) => new Promise((resolve) => waiting.set(id, resolve)),
    async [Symbol.asyncDispose]() {
      lines.close();
      answer.destroy();
    },
  };
}

async function makeNetwork(engine: Engine): Promise<void> {
  await engine.call('POST', '/networks/create', {
    Name: network,
    CheckDuplicate: true,
    Labels: { [label]: '1' },
    Options: { 'com.docker.network.bridge.enable_icc': 'false' },
  });
}

async function sweep(engine: Engine): Promise<void> {
  const filters = encodeURIComponent(JSON.stringify({ label: [label] }));
  const all = (await engine.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { Id: string }[];
  await Promise.all(all.map(({ Id }) => engine.call('DELETE', `/containers/${Id}?force=1&v=1`)));
  await engine.call('DELETE', `/networks/${network}`);
}
