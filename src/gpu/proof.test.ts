import { describe, expect, test } from 'vitest';
import { dead, gpu, id, owner, process, scene, slice, verdict } from '../../test/kit/gpu.ts';
import type { Device, GpuFinding } from './inventory.ts';
import { baselineOf, pidsOn } from './proof.ts';

test('a device as it was before is clean, with evidence that can be stored', () => {
  for (const before of [gpu, slice]) {
    const found = verdict({ before, now: { memoryUsedMiB: 60 } });
    expect(found.kind).toBe('clean');
    expect(found.evidence.checks.every((check) => check.result === 'ok')).toBe(true);
    expect(JSON.parse(JSON.stringify(found.evidence))).toEqual(found.evidence);
  }
});

describe('who is on it', () => {
  const zombie = { now: { processes: [process(41)], memoryUsedMiB: 9_500 }, owners: [owner(41, { containers: [dead] })] };

  test("the dead agent's own processes are waited for, then named", () => {
    expect(verdict(zombie)).toMatchObject({ kind: 'wait', until: 1_030_000, message: expect.stringContaining('python (pid 41)') });
    expect(verdict(zombie, 29_999).kind).toBe('wait');
    const late = verdict(zombie, 30_000);
    expect(late).toMatchObject({ kind: 'dirty', code: 'leftover-process', remedy: 'look' });
    expect(late).toMatchObject({ message: expect.stringContaining('python (pid 41)'), hint: 'Type "kill -9 41".' });
    expect(verdict({}, 30_000).kind).toBe('clean');
  });

  test('stuck in the driver: no signal helps', () => {
    const owners = [owner(41, { containers: [dead], state: 'D' })];
    expect(verdict({ ...zombie, owners }, 31_000)).toMatchObject({
      message: expect.stringContaining('inside the driver'),
      hint: 'Reboot the host.',
    });
  });

  test('a leftover counts whatever it does there', () => {
    const now = { processes: [process(41, { type: 'G' })] };
    expect(verdict({ ...zombie, now }).kind).toBe('wait');
  });

  test('a person is not a fault: the slot waits, and says for whom', () => {
    const colleague = { now: { processes: [process(41)], memoryUsedMiB: 9_422 }, owners: [owner(41)] };
    for (const after of [0, 90_000]) {
      expect(verdict(colleague, after)).toMatchObject({ kind: 'occupied', message: 'held by alice: python, 9.2 GiB, since 14:02' });
    }
    expect(verdict({}, 90_000).kind).toBe('clean');
  });

  test('many people, a container, a process of unknown kind', () => {
    const processes = [1, 2, 3, 4, 5].map((pid) => process(pid, { type: null, memoryMiB: null }));
    const owners = [
      owner(1, { containers: [id('f')], user: 'root' }),
      owner(2, { user: null, uid: 5012 }),
      owner(3),
      owner(4),
      owner(5),
    ];
    const found = verdict({ now: { processes }, owners });
    expect(found).toMatchObject({
      kind: 'occupied',
      message: expect.stringMatching(
        /^held by root: python, container ffffffffffff, since 14:02; uid 5012: python, .* and 2 more$/,
      ),
    });
  });

  test('a living agent of ours that has no business there', () => {
    const other = { now: { processes: [process(41)] }, owners: [owner(41, { containers: [id('a')] })] };
    expect(verdict(other).kind).toBe('occupied');
    expect(verdict({ ...other, now: { ...other.now, memoryUsedMiB: 20_000 }, input: { shared: true } }).kind).toBe('clean');
  });

  test('what /proc does not show may be leaving, and holds the device as long as it does not', () => {
    const unseen = { now: { processes: [process(77, { name: '/usr/bin/blender' })] } };
    expect(verdict(unseen)).toMatchObject({ kind: 'wait', until: 1_030_000 });
    expect(verdict(unseen, 30_000)).toMatchObject({ kind: 'occupied', message: 'held by blender, 9.2 GiB' });
  });

  test('a desktop is resident: it fails nothing, and may take more memory than before', () => {
    const desktop = [process(7, { name: '/usr/lib/xorg/Xorg', type: 'G', memoryMiB: 300 })];
    const before = { ...gpu, processes: desktop, memoryUsedMiB: 420 };
    const browser = process(8, { name: 'firefox', type: 'C+G', memoryMiB: 900 });
    const now = { processes: [...desktop, browser], memoryUsedMiB: 1_330 };
    expect(verdict({ before, now, owners: [owner(7), owner(8)] }).kind).toBe('clean');
    // The tool does not list all of its memory per process.
    expect(verdict({ before, now: { ...now, memoryUsedMiB: 1_600 } }).kind).toBe('wait');
    expect(verdict({ before, now: { ...now, memoryUsedMiB: 1_600 } }, 60_000).kind).toBe('clean');
    expect(verdict({ before, now: { ...now, processes: [{ ...browser, memoryMiB: null }] } }).kind).toBe('clean');
  });

  test('the processes of another MIG instance say nothing of this one', () => {
    const processes = [process(41, { gpuInstance: 1 }), process(42, { gpuInstance: 2, computeInstance: 1 })];
    expect(verdict({ before: slice, now: { processes }, owners: [owner(41), owner(42)] }).kind).toBe('clean');
    const mine = [process(41, { gpuInstance: 2 })];
    expect(verdict({ before: slice, now: { processes: mine }, owners: [owner(41)] }).kind).toBe('occupied');
    expect(pidsOn(scene({ now: { processes } }).inventory)).toEqual([41, 42]);
  });

  test('a process of which the tool does not say on which MIG instance it is may be on each; a display is on none', () => {
    expect(verdict({ before: slice, now: { processes: [process(42)] }, owners: [owner(42)] }).kind).toBe('occupied');
    const screen = [process(7, { name: 'Xorg', type: 'G' })];
    expect(verdict({ before: slice, now: { processes: screen }, owners: [owner(7)] }).kind).toBe('clean');
  });
});

describe('memory', () => {
  test('without a process it is waited for, then it is a fault', () => {
    const now = { memoryUsedMiB: 500 };
    expect(verdict({ now })).toMatchObject({ kind: 'wait', until: 1_060_000, message: expect.stringContaining('500 MiB') });
    expect(verdict({ now }, 60_000)).toMatchObject({ kind: 'dirty', code: 'memory-held', remedy: 'look' });
  });

  test('what an idle MIG instance holds is not zero', () => {
    const before = { ...slice, memoryUsedMiB: 26 };
    expect(verdict({ before, now: { memoryUsedMiB: 26 + 64 } }).kind).toBe('clean');
    expect(verdict({ before, now: { memoryUsedMiB: 26 + 65 } }).kind).toBe('wait');
  });

  test('a leak at each job does not creep into the baseline', () => {
    const at = { boot: 'b1', driver: '550', mark: { seq: 1, at: 1 } };
    let before = baselineOf(gpu, { ...at, before: null });
    for (const memoryUsedMiB of [40, 80, 120]) before = baselineOf({ ...gpu, memoryUsedMiB }, { ...at, before });
    expect(before.memoryMiB).toBe(1);
    expect(baselineOf({ ...gpu, memoryUsedMiB: 120 }, { ...at, boot: 'b2', before }).memoryMiB).toBe(120);
  });
});

describe('what the driver says', () => {
  test.each<[string, Partial<Device>, string, string]>([
    ['compute mode', { computeMode: 'Exclusive_Process' }, 'compute-mode', 'look'],
    ['persistence', { persistence: false }, 'persistence-mode', 'look'],
    ['clocks', { settings: '1410/2619 MHz, 700 W' }, 'settings', 'look'],
    ['power limit', { settings: '1980/2619 MHz, 400 W' }, 'settings', 'look'],
    ['MIG switched on', { mig: { mode: 'enabled', pending: null } }, 'mig-layout', 'look'],
    ['MIG about to be switched on', { mig: { mode: 'disabled', pending: 'enabled' } }, 'mig-layout', 'look'],
    ['ECC about to be switched off', { ecc: { current: true, pending: false } }, 'ecc-mode-pending', 'reset'],
    ['memory errors', { health: { ...gpu.health, uncorrectedErrors: 2 } }, 'ecc-errors', 'reset'],
    ['recovery action', { health: { ...gpu.health, recoveryAction: 'Drain and Reset' } }, 'recovery-action', 'reset'],
    ['recovery action: reboot', { health: { ...gpu.health, recoveryAction: 'Reboot' } }, 'recovery-action', 'reboot'],
    ['health', { health: { ...gpu.health, state: 'failed', reasons: ['has a fever'] } }, 'unhealthy', 'look'],
  ])('%s', (_, now, code, remedy) => {
    expect(verdict({ now })).toMatchObject({
      kind: 'dirty',
      code,
      remedy,
      hint: expect.any(String),
      message: expect.stringContaining('GPU-1'),
    });
  });

  test('what the inventory found wrong with it says what may lift it', () => {
    const now = { health: { ...gpu.health, state: 'failed', reasons: ['is lost: it has fallen off the bus'] } } as const;
    const about = (code: string, subject: string): GpuFinding => ({
      level: 'error',
      code,
      subject,
      message: 'It is bad.',
      hint: 'Do this.',
    });
    const findings = [about('fabric', 'GPU-1'), about('gpu-lost', 'GPU-1'), about('row-remap-failed', 'GPU-2')];
    expect(verdict({ now, inventory: { findings } })).toMatchObject({
      kind: 'dirty',
      code: 'gpu-lost',
      remedy: 'reboot',
      message: 'GPU-1 is lost: it has fallen off the bus.',
      hint: 'Do this.',
    });
    expect(verdict({ before: slice, now, inventory: { findings } })).toMatchObject({ code: 'gpu-lost' });
  });

  test('settings that are not a fault', () => {
    expect(verdict({ before: { ...gpu, persistence: false }, now: { persistence: true } }).kind).toBe('clean');
    expect(verdict({ now: { health: { ...gpu.health, recoveryAction: null } } }).kind).toBe('clean');
    const renamed = { profile: '3g.19gb', gpuInstance: 5, computeInstance: 0 };
    expect(verdict({ before: slice, now: { mig: renamed } }).kind).toBe('clean');
  });

  test('another profile under the same UUID', () => {
    const now = { mig: { profile: '4g.20gb', gpuInstance: 2, computeInstance: 0 } };
    expect(verdict({ before: slice, now })).toMatchObject({
      kind: 'dirty',
      code: 'mig-layout',
      message: 'MIG-1 was a 3g.20gb and is a 4g.20gb.',
    });
  });

  test('after a reboot the driver counts anew, and may be another one', () => {
    const before = { ...gpu, health: { ...gpu.health, uncorrectedErrors: 3 } };
    const rebooted = { boot: 'b2' };
    expect(verdict({ before, now: { health: gpu.health }, input: rebooted, inventory: { driver: '560.35.03' } }).kind).toBe(
      'clean',
    );
    const worse = { health: { ...gpu.health, uncorrectedErrors: 1 } };
    expect(verdict({ before, now: worse, input: rebooted })).toMatchObject({ code: 'ecc-errors' });
    expect(verdict({ before, now: worse }).kind).toBe('clean');
  });

  test('device nodes that a grant would need', () => {
    expect(verdict({ input: { missingNodes: ['/dev/nvidia0'] } })).toMatchObject({ kind: 'dirty', code: 'node-missing' });
  });

  test('the worst of several faults decides what may lift them', () => {
    const now = { computeMode: 'Prohibited', health: { ...gpu.health, uncorrectedErrors: 1 } };
    expect(verdict({ now })).toMatchObject({ kind: 'dirty', code: 'ecc-errors', remedy: 'reset' });
  });

  test('a fault outweighs waiting and a person', () => {
    const now = { processes: [process(41)], computeMode: 'Prohibited' };
    expect(verdict({ now, owners: [owner(41)] })).toMatchObject({ code: 'compute-mode' });
    expect(verdict({ now, owners: [owner(41, { containers: [dead] })] })).toMatchObject({ code: 'compute-mode' });
  });
});
