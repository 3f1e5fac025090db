import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { emptyHost, type FakeTools, fakeTools, hangs, plugIn } from '../../test/support/fake-tools/fake-tools.ts';
import type { Inventory } from './inventory.ts';
import { createProbe, type Probe, type ProbeOptions } from './probe.ts';
import type { ToolReply, ToolRunner } from './run.ts';

const fixtures = join(import.meta.dirname, '../../test/fixtures/gpu/nvidia-smi');
const fixture = (name: string) => join(fixtures, name);

const dir = eachScratch();
let tools: FakeTools;
let host: { readonly sys: string; readonly proc: string };
const probes: Probe[] = [];

beforeEach(() => {
  tools = fakeTools(dir.path);
  host = emptyHost(dir.path);
});
afterEach(() => {
  for (const probe of probes.splice(0)) probe[Symbol.dispose]();
});

function probe(options: Partial<ProbeOptions> = {}): Probe {
  const made = createProbe({ ...host, path: tools.path, folders: [], maxAge: 0, ...options });
  probes.push(made);
  return made;
}

const short = { limit: 400, firstLimit: 400 };
const codes = (inventory: Inventory) => inventory.findings.map(({ level, code }) => `${level} ${code}`);

describe('what is asked', () => {
  test('an empty host: no tool, no finding, and the set is whole', async () => {
    expect(await probe().look()).toEqual({ complete: true, driver: null, cuda: null, cudaFrom: null, devices: [], findings: [] });
  });

  test('no card and a tool that was left behind: nothing is wrong', async () => {
    tools.put('nvidia-smi', 'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9');
    const found = await probe().look();
    expect(found).toMatchObject({ complete: true, devices: [] });
    expect(codes(found).filter((code) => code.startsWith('error'))).toEqual([]);
  });

  test('one card: one call', async () => {
    plugIn(host.sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nvidia' });
    tools.prints('nvidia-smi', fixture('xml/r595-l40s.xml'));
    const found = await probe().look();
    expect(tools.calls('nvidia-smi')).toEqual(['-q -x']);
    expect(found).toMatchObject({ driver: '595.91.07', cuda: '13.2', cudaFrom: 'tool' });
    expect(found.devices).toMatchObject([{ model: 'NVIDIA L40S', computeCapability: '8.9' }]);
  });

  test('MIG instances get their UUIDs from -L', async () => {
    tools.put(
      'nvidia-smi',
      `case "$*" in -L) cat '${fixture('list/r590-h100-mig.txt')}';; *) cat '${fixture('xml/r510-a100-40gb-mig.xml')}';; esac`,
    );
    await probe().look();
    expect(tools.calls('nvidia-smi')).toEqual(['-q -x', '-L']);
  });

  test('a card that a virtual machine has is not asked for, and is not lost', async () => {
    plugIn(host.sys, '0000:01:00.0', { vendor: '0x10de', driver: 'vfio-pci' });
    tools.put('nvidia-smi', 'exit 9');
    const found = await probe().look();
    expect(found).toMatchObject({ complete: true, devices: [] });
    expect(codes(found)).toEqual(['warning held-by-another-driver']);
    expect(tools.calls('nvidia-smi')).toEqual([]);
  });

  test('nouveau is named with what helps', async () => {
    plugIn(host.sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nouveau' });
    const found = await probe().look();
    expect(found.findings).toMatchObject([{ code: 'nouveau-loaded', hint: expect.stringContaining('reboot') }]);
  });

  test('cards of three vendors are one inventory, by their addresses', async () => {
    plugIn(host.sys, '0000:4d:00.0', { vendor: '0x8086', driver: 'i915' });
    plugIn(host.sys, '0000:07:00.0', { vendor: '0x1002', driver: 'amdgpu' });
    tools.prints('nvidia-smi', fixture('xml/r595-l40s.xml'));
    tools.prints('rocm-smi', fixture('../rocm-smi/rx6700xt_rocm612.json'));
    const found = await probe().look();
    expect(found.devices.map(({ vendor }) => vendor).sort()).toEqual(['amd', 'intel', 'nvidia']);
    expect(found.devices.map(({ pciId }) => pciId)).toEqual(found.devices.map(({ pciId }) => pciId).sort());
    expect(found.driver).toBe('595.91.07');
  });
});

describe('tools that do not answer as they should', () => {
  beforeEach(() => plugIn(host.sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nvidia' }));

  test.each([
    ['exit 9', `cat '${fixture('errors/driver-not-loaded.txt')}'; exit 9`, 'driver-not-loaded'],
    ['exit 18', `cat '${fixture('errors/version-mismatch-new.txt')}'; exit 18`, 'library-mismatch'],
    ['exit 0 with an error text', `cat '${fixture('errors/gpu-is-lost.txt')}'; exit 0`, 'gpu-lost'],
    ['no device', `cat '${fixture('errors/no-devices.txt')}'; exit 6`, 'no-devices'],
    ['half an XML', `head -c 3000 '${fixture('xml/r595-l40s.xml')}'`, 'gpus-unseen'],
    ['nothing at all', 'true', 'gpus-unseen'],
    ['a crash', 'kill -SEGV $$', 'gpus-unseen'],
    ['20 MiB', "head -c 20971520 /dev/zero | tr '\\0' x; sleep 60", 'output-too-large'],
  ])('%s', async (_, body, code) => {
    tools.put('nvidia-smi', body);
    const found = await probe().look();
    expect(found).toMatchObject({ complete: false, devices: [] });
    expect(codes(found)).toContain(`error ${code}`);
  });

  test('a tool that is not there', async () => {
    const found = await probe().look();
    expect(found).toMatchObject({ complete: false, devices: [] });
    expect(codes(found)).toContain('error tool-missing');
  });

  const lost = 'echo "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error"; exit 255';
  /** The bus has the card of the recording, and others. */
  function recordedWith(...others: string[]): void {
    const xml = readFileSync(fixture('xml/r595-l40s.xml'), 'utf8');
    const address = /<gpu id="([^"]+)"/.exec(xml)?.[1] ?? '';
    rmSync(join(host.sys, 'bus/pci/devices/0000:01:00.0'), { recursive: true });
    for (const each of [address.slice(4).toLowerCase(), ...others]) plugIn(host.sys, each, { vendor: '0x10de', driver: 'nvidia' });
  }

  test('one card off the bus: the others are asked one by one', async () => {
    recordedWith('0000:0b:00.0');
    tools.put('nvidia-smi', `case "$*" in *-i\\ 0000:0b:*|"-q -x") ${lost};; *) cat '${fixture('xml/r595-l40s.xml')}';; esac`);
    const found = await probe().look();
    expect(found.devices).toMatchObject([{ model: 'NVIDIA L40S', health: { state: 'ok' } }]);
    expect(found.findings).toContainEqual(expect.objectContaining({ level: 'error', subject: '0000:0b:00.0' }));
    expect(tools.calls('nvidia-smi')).toHaveLength(3);
  });

  test.each([
    ['which the driver did not start', `cat '${fixture('errors/no-devices.txt')}'; exit 6`],
    ['of which the tool says nothing', 'true'],
    ['at which the tool crashes', 'echo "Segmentation fault"; exit 139'],
  ])('a card %s is that card, and not the host', async (_, body) => {
    recordedWith('0000:0b:00.0', '0000:0c:00.0');
    tools.put(
      'nvidia-smi',
      `case "$*" in *-i\\ 0000:0c:*) ${body};; *-i\\ 0000:0b:*|"-q -x") ${lost};; *) cat '${fixture('xml/r595-l40s.xml')}';; esac`,
    );
    const found = await probe().look();
    expect(found).toMatchObject({ complete: true, devices: [{ model: 'NVIDIA L40S', health: { state: 'ok' } }] });
    const errors = found.findings.filter(({ level }) => level === 'error').map(({ code, subject }) => `${code} ${subject}`);
    expect(errors.sort()).toEqual(['device-handle 0000:0b:00.0', 'gpu-lost 0000:0c:00.0']);
  });

  test('a tool that hangs: the devices are unknown, in bounded time, and twice in a row is said', async () => {
    tools.put('nvidia-smi', `[ -e '${dir.path}/well' ] && exec cat '${fixture('xml/r595-l40s.xml')}'\n${hangs}`);
    const here = probe({ limit: 20_000, firstLimit: 400 });
    const first = await here.look();
    expect(first).toMatchObject({ complete: false, devices: [] });
    expect(codes(first)).toContain('error tool-hung');
    expect(codes(first)).not.toContain('error tool-keeps-hanging');
    const second = await here.look();
    expect(codes(second)).toContain('error tool-keeps-hanging');
    expect(second.findings.at(-1)?.message).toContain('timed out 2 times in a row');
    writeFileSync(join(dir.path, 'well'), '');
    await expect.poll(async () => (await here.look()).devices.length, { timeout: 15_000 }).toBe(1);
    expect(codes(await here.look())).not.toContain('error tool-keeps-hanging');
  });

  test('a tool that is always slow is not one that hangs', async () => {
    tools.put('nvidia-smi', `sleep 2; cat '${fixture('xml/r595-l40s.xml')}'`);
    const here = probe({ limit: 100, firstLimit: 20_000 });
    expect((await here.look()).devices).toHaveLength(1);
    const second = await here.look();
    expect(second.devices).toHaveLength(1);
    expect(codes(second)).not.toContain('error tool-hung');
  });

  test('only the first call may take its time', async () => {
    tools.put('nvidia-smi', `[ -e '${dir.path}/slow' ] && sleep 60\ncat '${fixture('xml/r595-l40s.xml')}'`);
    const here = probe({ limit: 400, firstLimit: 20_000 });
    expect((await here.look()).devices).toHaveLength(1);
    writeFileSync(join(dir.path, 'slow'), '');
    expect(codes(await here.look())).toContain('error tool-hung');
  });
});

/** A tool whose answers come when the test says so. */
function slowTool() {
  const waiting: (() => void)[] = [];
  let calls = 0;
  const runner: ToolRunner = {
    find: async () => '/fake',
    run(tool, args) {
      calls += 1;
      const { promise, resolve } = Promise.withResolvers<ToolReply>();
      const output = readFileSync(fixture('xml/r595-l40s.xml'), 'utf8');
      waiting.push(() => resolve({ tool, args, output, code: 0, hung: false, missing: false, cut: false }));
      return promise;
    },
  };
  return {
    runner,
    get calls() {
      return calls;
    },
    async asked(times: number) {
      await expect.poll(() => calls, { timeout: 15_000 }).toBe(times);
    },
    answer: () => waiting.shift()?.(),
  };
}

describe('sharing', () => {
  const sees = (age?: number) => (here: Probe) => here.look(age === undefined ? {} : { maxAge: age });

  test('all who ask while one looks get the same look', async () => {
    const tool = slowTool();
    const here = probe({ runner: tool.runner, now: () => 0 });
    const asking = [1, 2, 3].map(() => sees(1_000)(here));
    await tool.asked(1);
    asking.push(sees(1_000)(here));
    tool.answer();
    const found = await Promise.all(asking);
    expect(new Set(found).size).toBe(1);
    expect(tool.calls).toBe(1);
  });

  test('who wants a look that begins now shares the next one with all who want that', async () => {
    const tool = slowTool();
    const here = probe({ runner: tool.runner, now: () => 0 });
    const first = sees(0)(here);
    await tool.asked(1);
    const later = [sees(0)(here), sees(0)(here), sees(0)(here)];
    tool.answer();
    await first;
    await tool.asked(2);
    tool.answer();
    const found = await Promise.all(later);
    expect(new Set(found).size).toBe(1);
    expect(found[0]).not.toBe(await first);
    expect(tool.calls).toBe(2);
  });

  test('a look is kept for as long as the caller accepts, from when it began', async () => {
    const tool = slowTool();
    let now = 0;
    const here = probe({ runner: tool.runner, now: () => now, maxAge: 1_000 });
    const first = here.look();
    await tool.asked(1);
    now = 600;
    tool.answer();
    await first;
    now = 1_000;
    expect(await here.look()).toBe(await first);
    now = 1_001;
    const second = here.look();
    await tool.asked(2);
    tool.answer();
    expect(await second).not.toBe(await first);
    now = 60_000;
    expect(await here.look({ maxAge: 60_000 })).toBe(await second);
    expect(tool.calls).toBe(2);
  });

  test('who gives up waiting leaves the look to the others', async () => {
    const tool = slowTool();
    const here = probe({ runner: tool.runner, now: () => 0 });
    const stop = new AbortController();
    const gone = here.look({ maxAge: 1_000, signal: stop.signal });
    const other = here.look({ maxAge: 1_000 });
    await tool.asked(1);
    stop.abort(new Error('enough'));
    await expect(gone).rejects.toThrow('enough');
    tool.answer();
    expect((await other).devices).toHaveLength(1);
    expect(tool.calls).toBe(1);
    await expect(here.look({ signal: AbortSignal.abort(new Error('before')) })).rejects.toThrow('before');
  });

  test('a closed probe ends the tool and looks no more', async () => {
    plugIn(host.sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nvidia' });
    tools.put('nvidia-smi', hangs);
    const here = probe();
    const asked = here.look();
    await expect.poll(() => tools.calls('nvidia-smi').length, { timeout: 15_000 }).toBe(1);
    here[Symbol.dispose]();
    expect(await asked).toMatchObject({ complete: false });
    await expect(here.look()).rejects.toThrow('closed');
  });
});

test('the kernel module tells its version where no tool does', async () => {
  plugIn(host.sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nvidia' });
  mkdirSync(join(host.proc, 'driver/nvidia'), { recursive: true });
  writeFileSync(
    join(host.proc, 'driver/nvidia/version'),
    'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version:  gcc version 12.3.0\n',
  );
  expect(await probe(short).look()).toMatchObject({ complete: false, driver: '550.54.14', cuda: '12.4', cudaFrom: 'driver' });
});
