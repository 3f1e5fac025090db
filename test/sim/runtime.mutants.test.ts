/**
 * The simulator itself must not lie: each way in which the simulated runtime could do so is tried here, and the runtime contract
 * finds it out. A mutant that lives on is a hole in the contract.
 */
import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import type { AgentId } from '../../src/core/slot.ts';
import { type LogChunk, type Runtime, type RuntimeEvent, type SandboxSeen, start } from '../../src/ports/runtime.ts';
import { readyMarker } from '../../src/runtimes/gate.ts';
import type { ContractTest } from '../kit/runtime-contract/bench.ts';
import { contractBench } from '../kit/runtime-contract/contract.ts';
import type { Sandbox } from './engine/sandbox.ts';
import type { SimEngine } from './runtime.ts';
import { type Mutate, simSubject } from './testing.ts';

/** A lie, and a test that does not believe it. `nth`: the how manieth manager of the same Engine it is, from 0. */
type Mutant = readonly [
  name: string,
  by: ContractTest,
  lie: (runtime: Runtime, engine: SimEngine, nth: number) => Partial<Runtime>,
];

async function* chosen<T>(all: AsyncIterable<T>, choose: (one: T, index: number) => T | null): AsyncGenerator<T, void> {
  let index = 0;
  for await (const one of all) {
    const kept = choose(one, index);
    index += 1;
    if (kept !== null) yield kept;
  }
}

/** A log each of whose chunks is told as `change` has it. */
const changedLog =
  (change: (chunk: LogChunk, index: number, agent: AgentId) => LogChunk | null) =>
  (runtime: Runtime): Partial<Runtime> => ({
    logs(agent, from, signal) {
      let index = 0;
      return chosen(runtime.logs(agent, from, signal), (chunks) => chunks.flatMap((chunk) => change(chunk, index++, agent) ?? []));
    },
  });

const changedEvents =
  (change: (event: RuntimeEvent) => RuntimeEvent | null) =>
  (runtime: Runtime): Partial<Runtime> => ({ events: (signal) => chosen(runtime.events(signal), change) });

const sandboxOf = (engine: SimEngine, agent: AgentId): Sandbox | undefined => engine.sandboxes.get(agent);

const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('latin1');

const mutants: readonly Mutant[] = [
  [
    'ready is never printed',
    'ready',
    changedLog((chunk, _, agent) => (text(chunk.bytes) === `${readyMarker(agent)}\n` ? null : chunk)),
  ],
  [
    'the gate runs before it is released',
    'ready',
    changedLog((chunk) => ({ ...chunk, bytes: Buffer.concat([chunk.bytes, Buffer.from('ran')]) })),
  ],
  ['an exit is never reported', 'once', changedEvents((event) => (event.kind === 'exited' ? null : event))],
  ['the stream of events never stands', 'once', changedEvents((event) => (event.kind === 'connected' ? null : event))],
  [
    'every job ends well',
    'once',
    changedEvents((event) => (event.kind === 'exited' ? { ...event, exit: { kind: 'code', code: 0 } } : event)),
  ],
  [
    'a second frame runs again',
    'once',
    (runtime, engine) => ({
      async release(agent, frame, signal) {
        const sandbox = sandboxOf(engine, agent);
        if (sandbox !== undefined) sandbox.released = false;
        await runtime.release(agent, frame, signal);
      },
    }),
  ],
  [
    'TERM is ignored',
    'once',
    (runtime) => ({ signal: async (agent, signal) => (signal === 'KILL' ? runtime.signal(agent, signal) : undefined) }),
  ],
  ['TERM kills', 'once', (runtime) => ({ signal: (agent) => runtime.signal(agent, 'KILL') })],
  [
    'the log ends with a job that was told to end, and not with its last words',
    'term',
    changedLog((chunk) => (text(chunk.bytes).includes('last') ? null : chunk)),
  ],
  [
    'a frame of another agent is taken',
    'frame',
    (runtime) => ({
      release: (agent, frame, signal) =>
        runtime.release(
          agent,
          Buffer.from(
            text(frame)
              .replace(/^\n\S+ /, `\n${agent} `)
              .replace(/ \S+\n$/, ` ${agent}\n`),
            'latin1',
          ),
          signal,
        ),
    }),
  ],
  [
    'a torn frame is taken',
    'frame',
    (runtime) => ({
      release(agent, frame, signal) {
        const end = ` ${agent}\n`;
        const [whole = ''] = /^\n\S+ \d+ .*(?= )/s.exec(text(frame)) ?? [];
        return runtime.release(agent, text(frame).endsWith(end) ? frame : Buffer.from(`${whole}${end}`, 'latin1'), signal);
      },
    }),
  ],
  [
    'one sandbox is listed twice',
    'twice',
    (runtime) => ({ list: async (signal) => [...(await runtime.list(signal)), ...(await runtime.list(signal))] }),
  ],
  [
    'a killed job counts as one that ended well',
    'killed-script',
    changedEvents((event) =>
      event.kind === 'exited' && event.exit.kind === 'code' && event.exit.code === 137
        ? { ...event, exit: { kind: 'code', code: 0 } }
        : event,
    ),
  ],
  ['files do not come back', 'files', () => ({ getFiles: async () => Readable.from([Buffer.alloc(1024)], { objectMode: false }) })],
  ['files put in are forgotten', 'files', () => ({ putFiles: async (_, files) => void files.resume() })],
  [
    'files put in belong to root',
    'files',
    (runtime, engine) => ({
      async putFiles(agent, files, signal) {
        await runtime.putFiles(agent, files, signal);
        const into = sandboxOf(engine, agent)?.files;
        for (const path of ['hello.txt', 'deep']) {
          const entry = into?.get(path);
          if (entry !== undefined && entry.kind !== 'link') into?.set(path, { ...entry, uid: 4711 });
        }
      },
    }),
  ],
  [
    'files are gone with the exit',
    'files-after-exit',
    (runtime, engine) => ({
      getFiles: async (agent, ...rest) =>
        sandboxOf(engine, agent)?.exit === null
          ? runtime.getFiles(agent, ...rest)
          : Readable.from([Buffer.alloc(1024)], { objectMode: false }),
    }),
  ],
  [
    'what is asked for beside others is left out',
    'files-some',
    (runtime) => ({ getFiles: (agent, signal, only) => runtime.getFiles(agent, signal, only?.slice(0, 1)) }),
  ],
  ['there is never a folder', 'folder', () => ({ getFolder: async () => null })],
  [
    'a link to a folder is followed',
    'folder',
    (runtime) => ({ getFolder: (agent, folder, signal) => runtime.getFolder(agent, folder === 'near' ? 'real' : folder, signal) }),
  ],
  [
    'who has ended is not listed',
    'list',
    (runtime) => ({ list: async (signal) => (await runtime.list(signal)).filter(({ state }) => state.kind !== 'exited') }),
  ],
  [
    'who has ended is listed as running',
    'list',
    (runtime) => ({ list: async (signal) => (await runtime.list(signal)).map((one) => ({ ...one, state: { kind: 'running' } })) }),
  ],
  [
    'every slot is listed as the same',
    'list',
    (runtime) => ({ list: async (signal) => (await runtime.list(signal)).map((one) => ({ ...one, slot: 'contract/1' })) }),
  ],
  [
    'the environment is left out',
    'environment',
    (runtime) => ({ prepare: (spec, ...rest) => runtime.prepare({ ...spec, recipe: { ...spec.recipe, env: {} } }, ...rest) }),
  ],
  ['standard error is told as standard output', 'streams', changedLog((chunk) => ({ ...chunk, stream: 'stdout' }))],
  ['the log loses a chunk', 'streams', changedLog((chunk) => (text(chunk.bytes).includes('after exact') ? null : chunk))],
  [
    'the log tells a chunk twice',
    'streams',
    (runtime) => ({
      logs: (agent, from, signal) =>
        chosen(runtime.logs(agent, from, signal), (chunks) =>
          chunks.flatMap((chunk) => (chunk.bytes.length > 10_000 ? [chunk, chunk] : [chunk])),
        ),
    }),
  ],
  [
    'the log begins anew, wherever one stands',
    'resume',
    (runtime) => ({ logs: (agent, _, signal) => runtime.logs(agent, start, signal) }),
  ],
  [
    'of the chunks of one moment all count as kept',
    'resume',
    (runtime) => ({
      logs: (agent, from, signal) =>
        runtime.logs(agent, from.atTime === 0 ? from : { ...from, atTime: 0, time: from.time + 1n }, signal),
    }),
  ],
  [
    'of the chunks of one moment none counts as kept',
    'resume',
    (runtime) => ({ logs: (agent, from, signal) => runtime.logs(agent, { ...from, atTime: 0 }, signal) }),
  ],
  [
    'a log that is joined while the job runs begins with what comes 30 ms later',
    'resume-live',
    (runtime, engine) => ({
      logs(agent, from, signal) {
        const isLive = sandboxOf(engine, agent)?.exit === null && from !== start;
        const since = isLive ? engine.time.stamp + 30_000_000n : 0n;
        return chosen(runtime.logs(agent, from, signal), (chunks) => chunks.filter(({ time }) => time >= since));
      },
    }),
  ],
  ['nothing is removed', 'remove', () => ({ remove: async () => {} })],
  [
    'what is removed is still listed',
    'remove',
    (runtime) => {
      const seen = new Map<AgentId, SandboxSeen>();
      return {
        async list(signal) {
          for (const one of await runtime.list(signal)) seen.set(one.agent, one);
          return [...seen.values()];
        },
        async remove(agent) {
          await this.list?.(new AbortController().signal);
          await runtime.remove(agent);
        },
      };
    },
  ],
  [
    'the log of somebody unknown never ends',
    'unknown',
    (runtime, engine) => ({
      async *logs(agent, from, signal) {
        if (sandboxOf(engine, agent) === undefined) await new Promise<never>(() => {});
        yield* runtime.logs(agent, from, signal);
      },
    }),
  ],
  ['a script for nobody is taken', 'unknown', (runtime) => ({ release: (...args) => runtime.release(...args).catch(() => {}) })],
  [
    "another owner's sandboxes are listed",
    'stranger',
    (runtime, engine) => ({
      list: async (signal) => [
        ...(await runtime.list(signal)),
        ...[...engine.of('somebody-else').values()].map(({ spec: { agent, pool, slot } }) => ({
          agent,
          pool,
          slot,
          state: { kind: 'running' } as const,
        })),
      ],
    }),
  ],
  [
    "another owner's sandbox is removed",
    'stranger',
    (runtime, engine) => ({
      async remove(agent) {
        await runtime.remove(agent);
        engine.remove(agent, 'somebody-else');
      },
    }),
  ],
  [
    "another owner's sandbox is killed",
    'stranger',
    (runtime, engine) => ({
      async signal(agent, signal) {
        await runtime.signal(agent, signal);
        engine.signal(agent, signal, 'somebody-else');
      },
    }),
  ],
  [
    'a gate that has ended seems to take a script',
    'ended-gate',
    (runtime, engine) => ({
      release: async (agent, frame, signal) =>
        sandboxOf(engine, agent)?.exit == null ? runtime.release(agent, frame, signal) : undefined,
    }),
  ],
  [
    'a manager of later sees nothing of what was printed before it',
    'manager-death',
    (runtime, engine, nth) =>
      nth === 0 ? {} : { logs: (agent, from, signal) => runtime.logs(agent, { ...from, time: engine.time.stamp + 1n }, signal) },
  ],
  [
    'a manager of later does not know how jobs have ended',
    'manager-death',
    (runtime, _, nth) =>
      nth === 0
        ? {}
        : {
            list: async (signal) =>
              (await runtime.list(signal)).map((one) => ({
                ...one,
                state: { kind: 'exited', exit: { kind: 'lost', reason: '?' } },
              })),
          },
  ],
  ['only who made a standby can release it', 'adopt-standby', (_, __, nth) => (nth === 0 ? {} : { release: async () => {} })],
  ['every fingerprint is the same', 'fingerprint', () => ({ fingerprint: async () => 'same' })],
  [
    'a standby is not made from what its fingerprint says',
    'fingerprint',
    (runtime) => ({ fingerprint: async (recipe, signal) => `${await runtime.fingerprint(recipe, signal)}?` }),
  ],
  [
    'an image that is named by its id need not be there',
    'image-id',
    (runtime) => ({ imageId: async (recipe, signal) => recipe.imageId ?? (await runtime.imageId?.(recipe, signal)) ?? null }),
  ],
  [
    'following continues although it was stopped',
    'aborted',
    (runtime) => ({ logs: (agent, from) => runtime.logs(agent, from, new AbortController().signal) }),
  ],
  ['files take no room', 'usage', () => ({ usage: async () => 0 })],
  ['there is always a door', 'door', () => ({ hostAddress: async () => '127.0.0.1' })],
  [
    'a door leads elsewhere',
    'door',
    (runtime) => ({ hostAddress: async (...args) => (await runtime.hostAddress(...args)).replace('127', '203') }),
  ],
  ['the disk has more than all', 'check', () => ({ disk: async () => ({ path: '/', free: 1.5 }) })],
  ['networks stay', 'leftovers', () => ({ sweep: async () => {} })],
];

/** Tests of the contract that fail, of those that are called so, or of all. */
async function failing(lie: Mutant[2], only: readonly ContractTest[] | null = null): Promise<ContractTest[]> {
  let nth = 0;
  const mutate: Mutate = (engine, runtime, owner) =>
    owner === undefined ? { ...runtime, ...lie(runtime, engine, nth++) } : runtime;
  const bench = contractBench(simSubject({ images: true }, mutate));
  const failed: ContractTest[] = [];
  // Without events nothing ends, so no test begins.
  let isOpen = true;
  await bench.open().catch(() => {
    isOpen = false;
  });
  for (const { key, body } of bench.cases) {
    if (bench.subject.exceptions[key] !== undefined || only?.includes(key) === false) continue;
    if (
      !isOpen ||
      !(await body().then(
        () => true,
        () => false,
      ))
    )
      failed.push(key);
  }
  return failed;
}

test('what does not lie is believed', async () => {
  expect(await failing(() => ({}))).toEqual([]);
});

test.each(mutants)('%s: "%s" finds it out', async (_, by, lie) => {
  expect(await failing(lie, ['ready', by])).toContain(by);
});
