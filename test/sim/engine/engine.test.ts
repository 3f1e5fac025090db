/** Bad days of the simulated Engine: what it does to a manager beside what the contract asks for on a good day. */

import { expect, test } from 'vitest';
import { OnejobError } from '../../../src/base/errors.ts';
import {
  type LogChunk,
  type LogPosition,
  type Runtime,
  type RuntimeEvent,
  type SandboxSpec,
  start,
} from '../../../src/ports/runtime.ts';
import { frame } from '../../../src/runtimes/gate.ts';
import { specOf } from '../../kit/runtime-contract/contract.ts';
import { leased } from '../../kit/runtimes.ts';
import { seeded } from '../../support/seeded.ts';
import { type Act, SimEngine, type SimRuntimeOptions, scriptOfAct, simRuntime } from '../runtime.ts';
import { recipe } from '../testing.ts';
import { type ProcessClock, SimTime } from '../time.ts';
import type { EngineOptions } from './engine.ts';

const never = () => new AbortController().signal;
const quiet = () => {};

function world({ seed = 1, ...options }: EngineOptions & { readonly seed?: number } = {}) {
  const time = new SimTime(seeded(seed));
  const engine = new SimEngine(time, seeded(seed + 1), options);
  const manager = (more: SimRuntimeOptions = {}): { readonly process: ProcessClock; readonly runtime: Runtime } => {
    const process = time.process();
    return { process, runtime: simRuntime(engine, process, more) };
  };
  /** Runs virtual time until `work` is done. */
  async function within<T>(work: Promise<T>): Promise<T> {
    let isDone = false;
    work.then(
      () => (isDone = true),
      () => (isDone = true),
    );
    await time.run(() => isDone, 3_600_000);
    return work;
  }
  const pass = (ms: number) => within(new Promise<void>((resolve) => void time.after(ms, resolve)));
  async function standby(runtime: Runtime, changes: Partial<SandboxSpec> = {}): Promise<SandboxSpec> {
    const spec = specOf(recipe, changes);
    await within(runtime.prepare(spec, quiet, never()));
    return spec;
  }
  const release = (runtime: Runtime, { agent }: SandboxSpec, act: Act) =>
    within(runtime.release(agent, frame(agent, scriptOfAct(act)), never()));
  return { time, engine, manager, within, pass, standby, release };
}

function listen(runtime: Runtime): RuntimeEvent[] {
  const heard: RuntimeEvent[] = [];
  void (async () => {
    for await (const event of runtime.events(never())) heard.push(event);
  })();
  return heard;
}

async function read(runtime: Runtime, agent: string, from: LogPosition = start): Promise<LogChunk[]> {
  const chunks: LogChunk[] = [];
  for await (const some of runtime.logs(agent, from, never())) chunks.push(...some);
  return chunks;
}

const text = (chunks: readonly LogChunk[]) => Buffer.concat(chunks.map(({ bytes }) => bytes)).toString();

test('a manager that dies between create and start leaves a sandbox that was never started', async () => {
  const { engine, manager, within, pass } = world();
  const { process, runtime } = manager();
  const spec = specOf(recipe);
  runtime.prepare(spec, quiet, never()).catch(quiet);
  engine.watchers.add({ made: () => process.kill() });
  await pass(10_000);
  const { runtime: later } = manager();
  expect(await within(later.list(never()))).toMatchObject([{ agent: spec.agent, state: { kind: 'created' } }]);
  const released = within(later.release(spec.agent, frame(spec.agent, 'true'), never()));
  await expect(released).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true });
  await within(later.remove(spec.agent));
  expect(engine.left()).toEqual(['network default']);
  await within(later.sweep(never()));
  expect(engine.left()).toEqual([]);
});

test('what a manager asked for before it died comes about after its death, and it hears nothing of it', async () => {
  const { engine, manager, pass } = world();
  const { process, runtime } = manager();
  let isAnswered = false;
  void runtime.prepare(specOf(recipe), quiet, never()).then(() => (isAnswered = true));
  await pass(1);
  process.kill();
  expect(engine.sandboxes.size).toBe(0);
  await pass(10_000);
  expect(engine.sandboxes.size).toBe(1);
  expect(isAnswered).toBe(false);
});

test('an Engine that stops ends what runs, and says later that those ends are nobody’s own', async () => {
  const { engine, manager, within, pass, standby, release } = world();
  const { runtime } = manager();
  const heard = listen(runtime);
  const spec = await standby(runtime);
  await release(runtime, spec, { ms: 60_000, exit: 0 });
  engine.restart(5_000);
  await pass(1_000);
  await expect(within(runtime.list(never()))).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
  expect(heard.map(({ kind }) => kind)).toEqual(['connected', 'lost']);
  await pass(60_000);
  expect(heard.slice(2)).toMatchObject([{ kind: 'connected' }, { kind: 'exited', agent: spec.agent, exit: { kind: 'lost' } }]);
  expect(await within(runtime.list(never()))).toMatchObject([{ state: { kind: 'exited', exit: { kind: 'lost' } } }]);
});

test('an outage disturbs nothing that runs; logs continue where they were', async () => {
  const { engine, manager, within, pass, standby, release } = world();
  const { runtime } = manager();
  const spec = await standby(runtime);
  const reading = read(runtime, spec.agent);
  await release(runtime, spec, { ms: 10_000, exit: 3, says: 'words\n' });
  await pass(1_000);
  engine.outage(60_000);
  expect(text(await within(reading))).toMatch(/words\nwords\n$/);
  expect(await within(runtime.list(never()))).toMatchObject([{ state: { kind: 'exited', exit: { kind: 'code', code: 3 } } }]);
});

test('an event that is lost is announced, and one that is told twice is the same', async () => {
  const { engine, manager, pass, standby, release } = world();
  const { runtime } = manager();
  const heard = listen(runtime);
  const spec = await standby(runtime);
  engine.faults = { fails: 0, answerLost: 0, eventLost: 1 };
  await release(runtime, spec, { ms: 10, exit: 0 });
  await pass(5_000);
  expect(heard.map(({ kind }) => kind)).toEqual(['connected', 'lost', 'connected']);
  const other = await standby(runtime);
  engine.faults = { fails: 0, answerLost: 0, eventLost: 0, eventTwice: 1, eventLate: 1 };
  await release(runtime, other, { ms: 10, exit: 4 });
  await pass(100_000);
  const exited = { kind: 'exited', agent: other.agent, exit: { kind: 'code', code: 4 } };
  expect(heard.slice(3)).toEqual([exited, exited]);
});

test('a call that hangs is given up after a minute, whether it did what it should or not', async () => {
  const outcomes = new Set<string>();
  for (let seed = 1; seed < 12; seed++) {
    const { time, engine, manager, within } = world({ seed });
    const { runtime } = manager();
    engine.faults = { fails: 0, answerLost: 0, eventLost: 0, hung: 1 };
    const begun = time.now;
    await expect(within(runtime.prepare(specOf(recipe), quiet, never()))).rejects.toThrow(OnejobError);
    expect(time.now - begun).toBeGreaterThan(20_000);
    outcomes.add(engine.sandboxes.size === 0 ? 'not made' : 'made');
  }
  expect([...outcomes].sort()).toEqual(['made', 'not made']);
});

test('of output that was thrown away before it was read the log says how much', async () => {
  const { manager, within, pass, standby, release } = world({ keeps: 40_000 });
  const { runtime } = manager();
  const spec = await standby(runtime);
  const before = await within(
    (async () => {
      for await (const chunks of runtime.logs(spec.agent, start, never())) return chunks;
      return [];
    })(),
  );
  expect(text(before)).toContain('ready');
  const says = Array.from({ length: 20_000 }, (_, n) => `${n}\n`).join('');
  await release(runtime, spec, { ms: 10, exit: 0, says, complains: 'c'.repeat(50) });
  await pass(1_000);
  const chunks = await within(read(runtime, spec.agent));
  const sum = (stream: string) =>
    chunks.filter((one) => one.stream === stream).reduce((all, { bytes, missing = 0 }) => all + bytes.length + missing, 0);
  const first = chunks[0];
  expect(first).toMatchObject({ gap: true });
  expect(chunks.filter(({ gap }) => gap === true).length).toBeLessThanOrEqual(2);
  const printed = `\u001eonejob ready ${spec.agent}\n\u001eonejob released ${spec.agent}\n`.length + 2 * says.length;
  expect(sum('stdout')).toBe(printed);
});

test('devices that are not the leased ones are found out before anybody is released', async () => {
  const { engine, manager, within } = world();
  const { runtime } = manager();
  engine.grants = () => ['GPU-7'];
  const spec = specOf(recipe, { devices: [leased({ minor: 1 })], cpuset: '0-3' });
  const preparing = within(runtime.prepare(spec, quiet, never()));
  await expect(preparing).rejects.toMatchObject({ code: 'E_DEVICES_GRANTED', retry: true });
  expect(engine.sandboxes.size).toBe(0);
});

test('granted devices and CPUs are known to the world; a gate whose devices are lost ends with 97 and runs nothing', async () => {
  const { engine, manager, within, pass, standby, release } = world();
  const { runtime } = manager();
  const spec = await standby(runtime, { devices: [leased({ minor: 1 })], cpuset: '0-3' });
  const sandbox = engine.sandboxes.get(spec.agent);
  expect(sandbox).toMatchObject({ granted: ['GPU-1'], cpuset: '0-3' });
  if (sandbox !== undefined) sandbox.hasLostDevices = true;
  await release(runtime, spec, { ms: 10, exit: 0, says: 'ran' });
  await pass(100);
  expect(sandbox?.exit).toEqual({ kind: 'code', code: 97 });
  expect(text(await within(read(runtime, spec.agent)))).not.toContain('released');
});

test('images are pulled when they are missing, and trouble with that is told', async () => {
  const { time, engine, manager, within } = world();
  const { runtime } = manager({ name: 'docker', images: true });
  engine.images.set('box', { id: 'sha256:1', isHere: false, pull: 30_000, trouble: null });
  expect(await within(runtime.fingerprint(recipe, never()))).toBe(null);
  const lines: string[] = [];
  const begun = time.now;
  const { fingerprint } = await within(runtime.prepare(specOf(recipe), (line) => lines.push(line), never()));
  expect(lines).toEqual(['pulling box', 'pulled box']);
  expect(time.now - begun).toBeGreaterThan(15_000);
  expect(await within(runtime.fingerprint(recipe, never()))).toBe(fingerprint);
  engine.image('box').id = 'sha256:2';
  expect(await within(runtime.fingerprint(recipe, never()))).not.toBe(fingerprint);
  const trouble = new OnejobError('E_PULL_FAILED', 'The registry is away.', { retry: true });
  engine.images.set('box', { id: 'sha256:3', isHere: false, pull: 1, trouble });
  await expect(within(runtime.prepare(specOf(recipe), quiet, never()))).rejects.toBe(trouble);
  expect(await within(runtime.imageTrouble?.(recipe, never()) ?? Promise.resolve(null))).toBe('The registry is away.');
});

test('a gate that ends before it is ready, and an Engine that refuses, are told apart from a job’s end', async () => {
  const { engine, manager, within, standby } = world();
  const { runtime } = manager();
  engine.gate = () => 127;
  const spec = await standby(runtime);
  expect(await within(read(runtime, spec.agent))).toEqual([]);
  expect(engine.sandboxes.get(spec.agent)?.exit).toEqual({ kind: 'code', code: 127 });
  const full = new OnejobError('E_DISK_FULL', 'The disk is full.', { retry: true });
  engine.refusal = () => full;
  await expect(within(runtime.prepare(specOf(recipe), quiet, never()))).rejects.toBe(full);
});

test('a signal’s end is told as the runtime tells it', async () => {
  for (const endsBy of ['code', 'signal'] as const) {
    const { engine, manager, within, pass, standby, release } = world({ endsBy });
    const { runtime } = manager();
    const spec = await standby(runtime);
    await release(runtime, spec, { ms: 60_000, exit: 0, term: 500 });
    await within(runtime.signal(spec.agent, 'TERM'));
    await pass(1_000);
    const expected = endsBy === 'code' ? { kind: 'code', code: 143 } : { kind: 'signal', signal: 'SIGTERM' };
    expect(engine.sandboxes.get(spec.agent)?.exit).toEqual(expected);
  }
});
