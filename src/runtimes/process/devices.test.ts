/** Devices of process sandboxes, with nodes that are /dev/null under another name. Creating them needs root. */
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import { amd, leased, slice } from '../../../test/kit/runtimes.ts';
import { lacks } from '../../../test/support/require.ts';
import type { LeasedDevice, Runtime } from '../../ports/runtime.ts';
import { mountOf } from '../../system/mountinfo.ts';
import { exitNoDevice, frame, MarkerFilter, readyMarker } from '../gate.ts';
import type { ProcessHost } from './host.ts';
import { deviceArgs, grantDevices } from './prepare.ts';
import { createProcessRuntime } from './process.ts';

const never = new AbortController().signal;
const cards = [leased({ minor: 0 }), leased({ minor: 1 })];
const everything = 'for n in /dev/nvidia* /dev/kfd /dev/dri/*; do [ -e $n ] && echo $n; done';
/** What only a group's members may open. */
const group = 4711;

/** Where device nodes may be used: Debian 13 mounts /tmp with `nodev`. */
function folder(): string {
  const mounts = readFileSync('/proc/self/mountinfo', 'utf8');
  return mountOf(tmpdir(), mounts)?.options.includes('nodev') === true ? '/var/tmp' : tmpdir();
}

function makeNodes(): string {
  const dir = mkdtempSync(join(folder(), 'onejob-dev-'));
  mkdirSync(join(dir, 'dri'));
  for (const name of ['nvidiactl', 'nvidia-uvm', 'nvidia0', 'nvidia1', 'kfd', 'dri/renderD128', 'dri/renderD129']) {
    if (spawnSync('mknod', ['-m', '666', join(dir, name), 'c', '1', '3']).status !== 0) throw new Error(`cannot make ${name}`);
  }
  for (const name of ['kfd', 'dri/renderD128', 'dri/renderD129']) {
    chownSync(join(dir, name), 0, group);
    chmodSync(join(dir, name), 0o660);
  }
  chmodSync(dir, 0o755);
  return dir;
}

describe.skipIf(lacks('root', 'bubblewrap')).each(['auto', 'off'] as const)('devices with bubblewrap %s', (bubblewrap) => {
  const owner = `devices-${process.pid}-${bubblewrap}`;
  let dir: string;
  let deviceDir: string;
  let runtime: Runtime;
  let events: ReturnType<typeof watch>;

  beforeAll(async () => {
    dir = mkdtempSync(join(folder(), 'onejob-process-'));
    deviceDir = makeNodes();
    runtime = await createProcessRuntime({ owner, dir, bubblewrap, deviceDir });
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
    await runtime.sweep(never);
    await events.stop();
    expect(leftoversOf(dir, owner)).toEqual([]);
    for (const path of [dir, deviceDir]) rmSync(path, { recursive: true });
  });

  const standby = async (devices: readonly LeasedDevice[], env: Record<string, string> = {}) => {
    const spec = specOf({ ...plainRecipe, env }, { devices });
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(`${readyMarker(spec.agent)}\n`);
    return { agent: spec.agent, log };
  };
  const run = async (devices: readonly LeasedDevice[], script: string, env: Record<string, string> = {}): Promise<string> => {
    const { agent, log } = await standby(devices, env);
    await runtime.release(agent, frame(agent, script), never);
    await events.exit(agent);
    await log.ended;
    const filter = new MarkerFilter(agent);
    const out = log.chunks.map((chunk) => (chunk.stream === 'stdout' ? filter.push(chunk.bytes) : chunk.bytes));
    return Buffer.concat(out).toString();
  };

  test('variables name the leased devices, whatever the owner sets', async () => {
    const script = 'echo "$NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $MINE"';
    const env = { CUDA_VISIBLE_DEVICES: '0', NVIDIA_VISIBLE_DEVICES: 'all', MINE: 'yes' };
    expect(await run([...cards].reverse(), script, env)).toBe('GPU-1,GPU-0 GPU-1,GPU-0 PCI_BUS_ID yes\n');
    expect(await run([], 'echo "$NVIDIA_VISIBLE_DEVICES"', env)).toBe('void\n');
  });

  test('a sandbox gets only the CPUs near its devices if its pool asks for that', async () => {
    const spec = specOf(plainRecipe, { devices: cards, cpuset: '0' });
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(`${readyMarker(spec.agent)}\n`);
    await runtime.release(spec.agent, frame(spec.agent, "sed -n 's/^Cpus_allowed_list:\t/cpus /p' /proc/self/status"), never);
    await events.exit(spec.agent);
    await log.ended;
    expect(log.text()).toContain('cpus 0\n');
  });

  test('open files are limited', async () => {
    expect(Number(await run(cards, 'ulimit -n'))).toBeLessThanOrEqual(65_536);
  });

  test('a standby whose device is gone at its release exits with 97, and nothing has run', async () => {
    const path = join(deviceDir, 'nvidia1');
    const { agent, log } = await standby([leased({ minor: 1 })]);
    // What is mounted in a sandbox stays there when it is removed outside; the right to open it does not.
    if (bubblewrap === 'off') rmSync(path);
    else chmodSync(path, 0);
    await runtime.release(agent, frame(agent, 'echo ran'), never);
    const exit = await events.exit(agent);
    rmSync(path, { force: true });
    spawnSync('mknod', ['-m', '666', path, 'c', '1', '3']);
    expect(exit).toEqual({ kind: 'code', code: exitNoDevice });
    await log.ended;
    expect(log.text()).not.toContain('ran\n');
  });

  test('a device without its node is refused by name, and nothing is created', async () => {
    const spec = specOf(plainRecipe, { devices: [leased({ minor: 7 })] });
    await expect(runtime.prepare(spec, () => {}, never)).rejects.toMatchObject({
      code: 'E_DEVICES_GRANTED',
      retry: true,
      message: `Cannot start agent con.1: it was leased GPU-7, and there is no ${deviceDir}/nvidia7 on this host.`,
    });
    expect((await runtime.list(never)).map(({ agent }) => agent)).not.toContain(spec.agent);
  });

  if (bubblewrap === 'off') {
    test('without isolation that is reported, and a job without devices is shown none', async () => {
      expect(runtime.capabilities.weaker).toContain('every GPU');
      expect((await runtime.check(never)).find(({ subject }) => subject === 'devices')).toMatchObject({
        level: 'warning',
        message: expect.stringContaining('do not restrict them'),
      });
      expect(await run([], 'echo "<$CUDA_VISIBLE_DEVICES>"')).toBe('<>\n');
    });
    return;
  }

  test('exactly the leased nodes exist, and can be opened', async () => {
    expect(await run([leased({ minor: 1 })], `${everything}; : </dev/nvidia1 && echo opened`)).toBe(
      '/dev/nvidia-uvm\n/dev/nvidia1\n/dev/nvidiactl\nopened\n',
    );
    expect(await run([], everything)).toBe('');
  });

  test("AMD's nodes are opened through their groups, and a job without devices has no additional group", async () => {
    const script = `${everything}; : </dev/dri/renderD129 && : </dev/kfd && echo opened; echo $ROCR_VISIBLE_DEVICES; ls /sys`;
    expect(await run([amd(129)], script)).toBe('/dev/kfd\n/dev/dri/renderD129\nopened\n0\nbus\nclass\ndev\ndevices\n');
    expect((await run([], 'id -G; ls /sys 2>/dev/null')).trim()).toMatch(/^\d+$/);
  });
});

describe('what a sandbox is granted', () => {
  const host = { mode: 'bubblewrap', deviceDir: '/no/such' } as ProcessHost;

  test('nothing without devices', () => {
    const grant = grantDevices(host, { name: 'x', devices: [] });
    expect(grant).toEqual({ env: { NVIDIA_VISIBLE_DEVICES: 'void' }, nodes: [], groups: [], gate: [] });
    expect(deviceArgs(grant)).toEqual([]);
  });

  test('is refused if the node of a device is unknown', () => {
    const told = () => grantDevices(host, { name: 'x', devices: [leased({ minor: null, uuid: 'GPU-j' })] });
    expect(told).toThrow(
      'Cannot start agent x: it was leased GPU-j, and onejob does not know which nodes of /no/such belong to GPU-j.',
    );
    expect(() => grantDevices(host, { name: 'x', devices: [slice(0, 1)] })).toThrow('there is no /no/such/nvidiactl');
  });

  test('does not need a node with an unknown number without bubblewrap', () => {
    const grant = grantDevices({ ...host, mode: 'plain' }, { name: 'x', devices: [leased({ minor: null, uuid: 'GPU-j' })] });
    expect(grant).toMatchObject({ env: { CUDA_VISIBLE_DEVICES: 'GPU-j' }, gate: [] });
  });
});
