/** Cards of an agent with an engine of its own: the sandbox and all containers of its job have them, and no others. The cards are acted out. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { LeasedDevice } from '../../src/ports/runtime.ts';
import { WithEngines } from '../../src/runtimes/docker/with-engines.ts';
import { frame, MarkerFilter, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { leased } from '../kit/runtimes.ts';
import { clientImage, loadEngineBase, makeEngineImage } from '../support/engine-base.ts';
import { type GpuEngine, gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { ensureImages } from '../support/images.ts';
import { lacks } from '../support/require.ts';

const never = new AbortController().signal;
const cards = [0, 1, 2].map((minor) => leased({ minor, uuid: `GPU-${minor}-0000` }));
const [zero, one, two] = cards as [LeasedDevice, LeasedDevice, LeasedDevice];
/** The job's engine reaches no registry, so its image is made of the sandbox itself. */
const makeImage = 'tar -C / -c bin etc tmp | docker import - box:1 >/dev/null';
const list = 'for n in /dev/nvidia*; do [ -c $n ] && echo ${n#/dev/}; done';

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('cards of an agent with an engine', () => {
  let gpus: GpuEngine;
  let image = '';
  let dir = '';
  let runtime: WithEngines;
  let events: ReturnType<typeof watch>;
  let owner: ReturnType<typeof anOwner>;

  beforeAll(async () => {
    const libraries = { 'libcuda.so.580.1': 'driver\n' };
    gpus = await gpuEngine({ cards: cards.map(({ uuid, minor }) => ({ uuid, minor: minor ?? 0 })), libraries });
    await ensureImages(gpus.engine.socket);
    await loadEngineBase(gpus.engine.api);
    image = await makeEngineImage(gpus.engine.api);
    dir = await mkdtemp(join(tmpdir(), 'oje-'));
    owner = anOwner(gpus.engine.socket);
    runtime = new WithEngines(await owner.make(), dir, true);
    events = watch(runtime);
    await events.connected();
  }, 300_000);
  afterAll(async () => {
    for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
    await runtime.sweep(never);
    expect(await owner.leftovers()).toEqual([]);
    await events.stop();
    runtime.close();
    await rm(dir, { recursive: true, force: true });
    await gpus[Symbol.asyncDispose]();
  }, 120_000);

  /** Runs a script in an agent with these cards; what it printed. */
  async function run(devices: readonly LeasedDevice[], ...lines: readonly string[]): Promise<string> {
    const spec = specOf({ ...recipe, image: clientImage, containers: { image } }, { devices });
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    await runtime.release(spec.agent, frame(spec.agent, lines.join('\n')), never);
    await events.exit(spec.agent);
    await log.ended;
    const filter = new MarkerFilter(spec.agent);
    const kept = log.chunks.map(({ stream, bytes }) => (stream === 'stdout' ? filter.push(bytes) : bytes));
    await runtime.remove(spec.agent);
    return Buffer.concat(kept).toString();
  }

  test('the sandbox has those that were leased, with their names', async () => {
    const said = await run([two, zero], list, 'echo $NVIDIA_VISIBLE_DEVICES');
    expect(said).toBe('nvidia-uvm\nnvidia0\nnvidia2\nnvidiactl\nGPU-2-0000,GPU-0-0000\n');
  }, 120_000);

  test('containers have what they ask for, in each way to ask', async () => {
    const ask = (words: string) => `echo "${words.replaceAll('"', '')}:" $(docker run --rm ${words} box:1 sh -c '${list}')`;
    const ways = [
      '',
      '--gpus all',
      '--gpus 1',
      `--gpus '"device=1"'`,
      '--gpus device=GPU-0-0000',
      '--device nvidia.com/gpu=all',
      '--device nvidia.com/gpu=GPU-2-0000',
      '--device /dev/nvidia2',
    ];
    const said = await run([two, zero], makeImage, ...ways.map(ask));
    const nodes = (...minors: readonly number[]) =>
      ['nvidia-uvm', ...minors.map((minor) => `nvidia${minor}`), 'nvidiactl'].join(' ');
    expect(said.split('\n').map((line) => line.trim())).toEqual([
      ':',
      `--gpus all: ${nodes(0, 2)}`,
      `--gpus 1: ${nodes(2)}`,
      `--gpus 'device=1': ${nodes(0)}`,
      `--gpus device=GPU-0-0000: ${nodes(0)}`,
      `--device nvidia.com/gpu=all: ${nodes(0, 2)}`,
      `--device nvidia.com/gpu=GPU-2-0000: ${nodes(2)}`,
      '--device /dev/nvidia2: nvidia2',
      '',
    ]);
  }, 180_000);

  test('the libraries of the driver go along, under the names that programs look for', async () => {
    const look = 'cat /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.580.1';
    const ask = (words: string) => `docker run --rm ${words} box:1 sh -c '${look}'`;
    const said = await run([one], look, makeImage, ask('--gpus all'), ask('--device nvidia.com/gpu=0'), ask('-e NONE=1 2>&1'));
    expect(said).toMatch(/^(driver\n){6}cat: can't open/);
  }, 120_000);

  test('a card that was not leased is named, and with all rights there is no way to it', async () => {
    const said = await run(
      [zero],
      makeImage,
      'docker run --rm --gpus device=GPU-1-0000 box:1 true 2>&1 | grep -o "this job has no card.*" | head -n 1',
      `docker run --rm --privileged box:1 sh -c '${list}; mknod /dev/nvidia1 c 195 1 2>/dev/null && echo made; echo end'`,
    );
    expect(said).toMatch(/^this job has no card GPU-1-0000, but these: 0 GPU-0-0000 all/);
    expect(said).not.toMatch(/nvidia1|made/);
    expect(said).toMatch(/end\n$/);
  }, 120_000);

  test('an engine that cannot start says why', async () => {
    const spec = specOf({ ...recipe, image: clientImage, containers: { image: 'debian:trixie-slim' } });
    const message = 'Cannot start agent con.1: the engine for its containers ended at once: the image has no user for the engine.';
    await expect(runtime.prepare(spec, () => {}, never)).rejects.toMatchObject({ code: 'E_ENGINE_FAILED', message });
  }, 120_000);

  test('an agent without cards has none, and an Engine that gives wrong ones starts none', async () => {
    expect(await run([], list, 'echo end')).toBe('end\n');
    gpus.mode('wrong');
    await expect(run([one], list)).rejects.toMatchObject({ code: 'E_DEVICES_GRANTED' });
    gpus.mode('right');
    expect(await run([one], list)).toContain('nvidia1\n');
  }, 180_000);
});
