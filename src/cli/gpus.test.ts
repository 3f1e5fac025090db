/** `onejob gpus` as a person and a program meet it. */
import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { type Child, startChild } from '../../test/support/child.ts';
import { testContext } from '../../test/support/cli-context.ts';
import { fakeTools } from '../../test/support/fake-tools/fake-tools.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';
import { type Inventory, noGpus } from '../gpu/inventory.ts';
import type { Probe } from '../gpu/probe.ts';
import { showGpus } from './gpus.ts';
import { createOutput } from './output.ts';
import type { Session } from './session.ts';

const program = join(import.meta.dirname, '..', '..', 'test', 'support', 'fake-onejob.ts');
const recordings = join(import.meta.dirname, '..', '..', 'test', 'fixtures', 'gpu');
const nvidia = (name: string) => join(recordings, 'nvidia-smi', name);

let dir: Scratch;

beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const surroundings = (path = process.env.PATH ?? '') => ({
  cwd: dir.path,
  env: {
    PATH: path,
    HOME: dir.path,
    ONEJOB_STATE_DIR: join(dir.path, 'state'),
    NODE_COMPILE_CACHE: process.env.NODE_COMPILE_CACHE,
  },
});
const node = (args: readonly string[]) => ['--disable-warning=ExperimentalWarning', program, 'gpus', ...args];

interface Ended {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** The command without a process of its own. */
async function gpus(args: readonly string[]): Promise<Ended> {
  const { context, stdout, stderr } = testContext(['gpus', ...args], dir.path);
  const code = await runCli(context);
  await turn();
  return { code, stdout: stdout(), stderr: stderr() };
}

/** The command as a program starts it. */
function started(args: readonly string[], path?: string): Promise<Ended> {
  return new Promise((resolve) => {
    execFile(process.execPath, node(args), surroundings(path), (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr });
    });
  });
}

/** A folder with both outputs of a card that is split into instances. */
function mig(): string {
  const folder = join(dir.path, 'mig');
  mkdirSync(folder);
  copyFileSync(nvidia('xml/r510-a100-40gb-mig.xml'), join(folder, 'gpus.xml'));
  const instances = [1, 2].map((n) => `  MIG 3g.20gb Device ${n - 1}: (UUID: MIG-0000000${n}-0000-0000-0000-000000000000)\n`);
  const gpu = 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-27b94a00-ed54-5c24-b1fd-1054085de32a)';
  writeFileSync(join(folder, 'gpus.txt'), `${gpu}\n${instances.join('')}`);
  return folder;
}

describe('recordings', () => {
  test('eight cards: the driver, and a line for each with its whole UUID', async () => {
    const { code, stdout, stderr } = await gpus(['--from', nvidia('xml/r580-h100-x8.xml')]);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    const lines = stdout.trimEnd().split('\n');
    expect(lines[0]).toBe('driver 580.105.08, CUDA up to 13.0');
    expect(lines[1]).toMatch(/^UUID +# +PCI +MODEL +MEMORY +CC +MIG +STATE +HELD BY$/);
    expect(lines).toHaveLength(10);
    for (const line of lines.slice(2))
      expect(line).toMatch(/^GPU-[0-9a-f-]{36} +\d +0000:\w\w:00\.0 +NVIDIA H100 80GB HBM3 .* 9\.0 +off +ok +/);
    expect(stdout).not.toContain('\u001b');
  });

  test('--json is the inventory, one object', async () => {
    const { code, stdout } = await started(['--json', '--from', mig()]);
    expect(code).toBe(0);
    expect(stdout.trimEnd().split('\n')).toHaveLength(1);
    const found: Inventory = JSON.parse(stdout);
    expect(Object.keys(found).sort()).toEqual(['complete', 'cuda', 'cudaFrom', 'devices', 'driver', 'findings']);
    expect(found).toMatchObject({ complete: true, driver: '510.47.03', cuda: '11.6' });
    const [gpu, ...instances] = found.devices;
    expect(gpu).toMatchObject({ kind: 'gpu', mig: { mode: 'enabled' } });
    expect(instances.length).toBeGreaterThan(0);
    for (const instance of instances)
      expect(instance).toMatchObject({ kind: 'mig', parent: gpu?.uuid, uuid: expect.stringMatching(/^MIG-/) });
  });

  test('MIG instances stand below their card, with profiles', async () => {
    const { stdout } = await gpus(['--from', mig()]);
    expect(stdout).toMatch(/^GPU-.* on +ok .*\n {2}MIG-[0-9a-f-]{36} +0 .*\dg\.\d+gb/m);
  });

  test.each([
    ['a card that is off the bus', 'errors/device-handle-unknown-new.txt'],
    ['no driver', 'errors/driver-not-loaded.txt'],
    ['fewer cards than announced', 'xml/r384-gtx1070x6-trimmed.xml'],
  ])('%s ends with 1 and says what is odd', async (_, name) => {
    const { code, stdout, stderr } = await gpus(['--from', nvidia(name)]);
    expect({ code, stderr }).toEqual({ code: 1, stderr: '' });
    expect(stdout).toMatch(/^! /m);
  });

  test('AMD and Intel are read the same way', async () => {
    expect((await gpus(['--from', join(recordings, 'rocm-smi/mi100_rocm602.json')])).stdout).toContain('GPU-79ccd55167a2124a');
    expect((await gpus(['--from', join(recordings, 'xpu-smi/discovery.json')])).stdout).toContain('intel-0000:4d:00.0');
  });

  test('a recording that is not there', async () => {
    const { code, stderr } = await gpus(['--from', 'nowhere']);
    expect(code).not.toBe(0);
    expect(stderr).toContain('nowhere');
  });
});

describe('this host', () => {
  test('the tools of the PATH are asked', async () => {
    mkdirSync(join(dir.path, 'fake'));
    const tools = fakeTools(join(dir.path, 'fake'));
    tools.prints('nvidia-smi', nvidia('xml/r595-l40s.xml'));
    const { stdout } = await started(['--json'], `${tools.path}:${process.env.PATH}`);
    expect(JSON.parse(stdout).devices).toContainEqual(expect.objectContaining({ model: 'NVIDIA L40S' }));
  });
});

describe('options', () => {
  test('--help has examples and the exit codes', async () => {
    const { code, stdout } = await gpus(['--help']);
    expect(code).toBe(0);
    for (const text of ['Examples:', '--from', 'Exit codes:']) expect(stdout).toContain(text);
  });

  test.each([['--every', '5'], ['--every', '10ms'], ['--bogus']])('%s %s is wrong usage', async (...args) => {
    expect(await gpus(args)).toMatchObject({ code: 2, stdout: '' });
  });
});

/** A session on a pipe, or on a terminal of 200 columns. */
function session(args: readonly string[], terminal = false): { readonly session: Session; readonly stdout: () => string } {
  const { context, stdout } = testContext(args, dir.path);
  if (terminal) Object.assign(context.stdout, { isTTY: true, columns: 200 });
  const output = createOutput(context, args.includes('--json'));
  const place = () => Promise.reject(new Error('no daemon is needed'));
  return { session: { context, output, flags: {}, version: '0', remote: null, place }, stdout };
}

/** Sees one inventory after the other, and has `stop` called when there are no more. */
function scripted(inventories: readonly Inventory[], stop: () => void): Probe {
  const left = [...inventories];
  return {
    near: () => 0,
    isLooking: false,
    async look() {
      const next = left.shift();
      if (left.length === 0) stop();
      return next ?? noGpus;
    },
    [Symbol.dispose]() {},
  };
}

describe('--watch', () => {
  const states = [noGpus, noGpus, { ...noGpus, driver: '1.0' }, { ...noGpus, driver: '1.0' }, { ...noGpus, driver: '2.0' }];
  const watched = async (terminal: boolean) => {
    const stop = new AbortController();
    const here = session([], terminal);
    const flags = { watch: true, every: 1, signal: stop.signal };
    const code = await showGpus(
      here.session,
      flags,
      scripted(states, () => stop.abort()),
    );
    return { code, stdout: here.stdout() };
  };

  test('a pipe gets one object per change', async () => {
    const { code, stdout } = await watched(false);
    expect(code).toBe(0);
    expect(
      stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line).driver),
    ).toEqual([null, '1.0', '2.0']);
  });

  test('a terminal is drawn over', async () => {
    const { stdout } = await watched(true);
    expect(stdout.split('\u001b[H').slice(1)).toEqual([
      expect.stringContaining('No GPUs: the PCI bus'),
      expect.stringContaining('driver 1.0'),
      expect.stringContaining('driver 2.0'),
    ]);
  });

  test('a recording that changes is shown again, until somebody interrupts', async () => {
    const file = join(dir.path, 'host.xml');
    copyFileSync(nvidia('xml/r595-l40s.xml'), file);
    const child: Child = startChild(process.execPath, node(['--watch', '--every', '100ms', '--from', 'host.xml']), surroundings());
    onTestFinished(() => void child.kill());
    await child.says(/"595\.91\.07"/);
    copyFileSync(nvidia('xml/r580-h100-x8.xml'), file);
    await child.says(/"580\.105\.08"/);
    expect(
      child.stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line).devices.length),
    ).toEqual([1, 8]);
    child.signal('SIGINT');
    expect(await child.ended).toMatchObject({ signal: 'SIGINT' });
  });
});

test('nothing found: one sentence that says what was looked for', async () => {
  const here = session([]);
  const code = await showGpus(
    here.session,
    { watch: false, every: 1 },
    scripted([noGpus], () => {}),
  );
  expect(code).toBe(0);
  expect(here.stdout()).toBe(
    'No GPUs: the PCI bus (/sys/bus/pci/devices) has no NVIDIA, AMD or Intel card, and no nvidia-smi on the PATH lists one.\n',
  );
});
