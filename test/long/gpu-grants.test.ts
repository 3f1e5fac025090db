/**
 * Granting GPUs with a real Engine, whose cards do not exist: the hook that stands in for NVIDIA's makes their nodes, and
 * can do it wrong. What the sandboxes hold is asked of them, and what was granted of the hook's log.
 */
import { spawnSync } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { LeasedDevice, SandboxSpec } from '../../src/ports/runtime.ts';
import type { DockerOptions, DockerRuntime } from '../../src/runtimes/docker/docker.ts';
import { exitNoDevice, frame, MarkerFilter, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { leased } from '../kit/runtimes.ts';
import { type GpuEngine, gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { ensureImages, images } from '../support/images.ts';
import { lacks } from '../support/require.ts';

const never = new AbortController().signal;
const cards = [0, 1, 2, 3].map((minor) => leased({ minor, uuid: `GPU-${minor}-0000` }));
const [first, second, third] = cards as [LeasedDevice, LeasedDevice, LeasedDevice];
const limits = { soon: 30_000, late: 120_000, idle: 300_000, ping: 5_000 };
const everything = 'for n in /dev/nvidia*; do [ -e $n ] && echo $n; done';

/** An Engine with the stub in one of its three places, and a runtime over it. */
function bench(as: 'hook' | 'runtime' | 'default', options: Partial<DockerOptions> = {}) {
  let gpus: GpuEngine;
  let runtime: DockerRuntime;
  let events: ReturnType<typeof watch>;
  let owner: ReturnType<typeof anOwner>;

  beforeAll(async () => {
    gpus = await gpuEngine({ cards: cards.map(({ uuid, minor }) => ({ uuid, minor: minor ?? 0 })), as });
    await ensureImages(gpus.engine.socket);
    owner = anOwner(gpus.engine.socket);
    runtime = await owner.make(options);
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    gpus.mode('right');
    for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
    await runtime.sweep(never);
    expect(await owner.leftovers()).toEqual([]);
    await events.stop();
    runtime.close();
    await gpus[Symbol.asyncDispose]();
  });

  const standby = async (devices: readonly LeasedDevice[], changes: Partial<SandboxSpec['recipe']> = {}) => {
    const spec = specOf({ ...recipe, ...changes }, { devices });
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    return { agent: spec.agent, log };
  };
  const release = async ({ agent, log }: Awaited<ReturnType<typeof standby>>, script: string) => {
    await runtime.release(agent, frame(agent, script), never);
    const exit = await events.exit(agent);
    await log.ended;
    const filter = new MarkerFilter(agent);
    const kept = log.chunks.map(({ stream, bytes }) => (stream === 'stdout' ? filter.push(bytes) : bytes));
    await runtime.remove(agent);
    return { exit, output: Buffer.concat(kept).toString() };
  };
  return {
    standby,
    release,
    run: async (devices: readonly LeasedDevice[], script: string, changes: Partial<SandboxSpec['recipe']> = {}) =>
      (await release(await standby(devices, changes), script)).output,
    /** That a sandbox is refused and nothing of it is left. */
    refused: async (devices: readonly LeasedDevice[], how: object, changes: Partial<SandboxSpec['recipe']> = {}) => {
      const spec = specOf({ ...recipe, ...changes }, { devices });
      await expect(runtime.prepare(spec, () => {}, never)).rejects.toMatchObject(how);
      return spec.agent;
    },
    container: async (agent: string) => {
      const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.agent=${agent}`] }));
      const [found] = (await gpus.engine.api.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { Id: string }[];
      if (found === undefined) return null;
      return (await gpus.engine.api.ok('GET', `/containers/${found.Id}/json`)) as { Id: string; State: { Pid: number } };
    },
    get gpus() {
      return gpus;
    },
    get runtime() {
      return runtime;
    },
  };
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('an Engine with a hook on its PATH', { timeout: 60_000 }, () => {
  const here = bench('hook', { limits: { ...limits, late: 3_000 } });

  test('gives exactly the leased cards, which the log of the hook and the job agree on', async () => {
    const sandbox = await here.standby([third, first]);
    const { Id } = (await here.container(sandbox.agent)) ?? { Id: '' };
    const script = `${everything}; echo $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER; ulimit -n`;
    const { output } = await here.release(sandbox, script);
    const [order, files, ...nodes] = output.trim().split('\n').reverse();
    expect(nodes.sort()).toEqual(['/dev/nvidia-uvm', '/dev/nvidia0', '/dev/nvidia2', '/dev/nvidiactl']);
    expect([order, files].sort()[1]).toBe('GPU-2-0000,GPU-0-0000 GPU-2-0000,GPU-0-0000 PCI_BUS_ID');
    expect(here.gpus.granted().filter(({ id }) => id === Id)).toMatchObject([{ devices: ['GPU-2-0000', 'GPU-0-0000'] }]);
  });

  test.each(['wrong', 'many', 'none'] as const)(
    'that grants %s of them is caught before anything runs, and nothing is left',
    async (mode) => {
      here.gpus.mode(mode);
      const message = {
        wrong: /nvidia1 is missing, .*nvidia0 is not its own/,
        many: /: \/dev\/nvidia\d is not/,
        none: /nvidia1 is missing/,
      };
      const how = { code: 'E_DEVICES_GRANTED', retry: true, message: expect.stringMatching(message[mode]) };
      const agent = await here.refused([second], how);
      expect(await here.container(agent)).toBeNull();
      here.gpus.mode('right');
      expect(await here.run([second], everything)).toContain('/dev/nvidia1\n');
    },
  );

  test('that fails is told in its own words, and the next try works', async () => {
    here.gpus.mode('fail');
    const message =
      'Cannot start agent con.1: the Engine failed to give it GPU-0-0000: nvidia-container-cli: initialization error: driver rpc error: timed out.';
    const agent = await here.refused([first], { code: 'E_DEVICES_REFUSED', retry: true, message });
    await here.runtime.remove(agent);
    here.gpus.mode('right');
    expect(await here.run([first], 'echo ran')).toBe('ran\n');
  });

  test('that hangs holds up its own sandbox only, and that one can be removed when it continues', async () => {
    here.gpus.mode('hang');
    const spec = specOf(recipe, { devices: [first] });
    const hung = expect(here.runtime.prepare(spec, () => {}, never)).rejects.toMatchObject({
      code: 'E_ENGINE_SILENT',
      retry: true,
    });
    expect(await here.run([], 'echo beside')).toBe('beside\n');
    await hung;
    here.gpus.mode('right');
    await here.runtime.remove(spec.agent);
    expect(await here.container(spec.agent)).toBeNull();
  });

  test('gives none to a sandbox without devices, whatever its image and its owner ask for', async () => {
    const before = here.gpus.granted().length;
    const output = await here.run([], `${everything}; echo $NVIDIA_VISIBLE_DEVICES`, {
      image: images.gpuEnv,
      env: { NVIDIA_VISIBLE_DEVICES: 'all' },
    });
    expect(output).toBe('void\n');
    expect(here.gpus.granted()).toHaveLength(before);
  });

  test('a user who is not root can open them', async () => {
    expect(await here.run([first], ': </dev/nvidia0 && echo opened', { user: 'agent', readOnly: true })).toBe('opened\n');
  });

  test.each(['nvidiactl', 'nvidia1'])(
    'a standby that loses %s gives its script back with 97, and nothing has run',
    async (name) => {
      const sandbox = await here.standby([second]);
      const { State } = (await here.container(sandbox.agent)) ?? { State: { Pid: 0 } };
      // A node that may not be opened: anyone who reloads systemd takes the right to devices from containers that have them.
      const take = `rm /dev/${name} && mknod -m 666 /dev/${name} c 240 77`;
      expect(spawnSync('nsenter', ['-t', `${State.Pid}`, '-m', 'sh', '-c', take]).status).toBe(0);
      expect(await here.release(sandbox, 'echo ran')).toEqual({ exit: { kind: 'code', code: exitNoDevice }, output: '' });
    },
  );

  test('a sandbox that ends at once is not a matter of devices', async () => {
    const spec = specOf({ ...recipe, image: images.noShell }, { devices: [first] });
    await here.runtime.prepare(spec, () => {}, never);
    await here.runtime.remove(spec.agent);
  });
});

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('an Engine with the runtime nvidia alone', { timeout: 60_000 }, () => {
  const here = bench('runtime');

  test('is asked by it once it turned out to have no driver, without being told', async () => {
    expect(await here.run([second], `${everything}; echo $NVIDIA_DRIVER_CAPABILITIES`)).toBe(
      '/dev/nvidia-uvm\n/dev/nvidia1\n/dev/nvidiactl\ncompute,utility\n',
    );
    expect(here.gpus.granted().map(({ devices }) => devices)).toEqual([['GPU-1-0000']]);
  });

  test('that gives more than was leased is caught', async () => {
    here.gpus.mode('many');
    expect(await here.container(await here.refused([first], { code: 'E_DEVICES_GRANTED' }))).toBeNull();
    here.gpus.mode('right');
  });
});

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('an Engine whose every container gets what its image asks for', () => {
  const here = bench('default');

  test('gives none to a sandbox without devices', async () => {
    expect(await here.run([], `${everything}; echo $NVIDIA_VISIBLE_DEVICES`, { image: images.gpuEnv })).toBe('void\n');
    expect(here.gpus.granted()).toEqual([]);
    // The same image without onejob, to show that the Engine would have.
    const body = { Image: images.gpuEnv, Cmd: ['sh', '-c', everything], HostConfig: { NetworkMode: 'none' } };
    const { Id } = (await here.gpus.engine.api.ok('POST', '/containers/create', body)) as { Id: string };
    await here.gpus.engine.api.ok('POST', `/containers/${Id}/start`);
    await here.gpus.engine.api.ok('POST', `/containers/${Id}/wait`);
    expect(here.gpus.granted()).toMatchObject([{ id: Id, devices: ['all'] }]);
    await here.gpus.engine.api.ok('DELETE', `/containers/${Id}`);
  });
});
