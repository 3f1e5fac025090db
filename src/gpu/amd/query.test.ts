import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { emptyHost, type FakeTools, fakeTools, hangs, plugIn } from '../../../test/support/fake-tools/fake-tools.ts';
import { readPci } from '../pci.ts';
import type { ProbeContext } from '../probe-context.ts';
import { createRunner } from '../run.ts';
import { type AmdNames, queryAmd } from './query.ts';

const recording = join(import.meta.dirname, '../../../test/fixtures/gpu/rocm-smi/mi100_rocm602.json');
const addresses = ['0000:83:00.0', '0000:a3:00.0', '0000:c3:00.0', '0000:e3:00.0'];

const dir = eachScratch();
let tools: FakeTools;
let host: { readonly sys: string; readonly proc: string };

beforeEach(() => {
  tools = fakeTools(dir.path);
  host = emptyHost(dir.path);
});

let names: AmdNames;
beforeEach(() => {
  names = new Map();
});

async function ask(limit = 20_000) {
  const runner = createRunner(tools);
  const context: ProbeContext = {
    ...host,
    pci: await readPci(host.sys),
    has: async (tool) => (await runner.find(tool)) !== null,
    run: (tool, ...args) => runner.run(tool, args, { limit }),
  };
  return queryAmd(context, names);
}

function cards(driver: string | null = 'amdgpu'): void {
  for (const [at, address] of addresses.entries())
    plugIn(host.sys, address, {
      vendor: '0x1002',
      class: '0x038000',
      chip: '0x738c',
      render: 128 + at,
      ...(driver === null ? {} : { driver }),
    });
}

/** A node of the kernel's compute driver, as Linux 6 shows an MI100; its first node is the CPU. */
function kfd(nodes: readonly { readonly bus: number; readonly id: bigint; readonly gpu: number; readonly render: number }[]): void {
  const put = (file: string, text: string) => {
    mkdirSync(join(host.sys, 'class/kfd/kfd', file, '..'), { recursive: true });
    writeFileSync(join(host.sys, 'class/kfd/kfd', file), `${text}\n`);
  };
  put('topology/nodes/0/properties', 'cpu_cores_count 64\nsimd_count 0\nlocation_id 0\nunique_id 0');
  put('topology/nodes/0/gpu_id', '0');
  for (const [at, { bus, id, gpu, render }] of nodes.entries()) {
    const node = `topology/nodes/${at + 1}`;
    put(
      `${node}/properties`,
      `cpu_cores_count 0\nsimd_count 480\ngfx_target_version 90008\nlocation_id ${bus << 8}\ndomain 0\ndrm_render_minor ${render}\nunique_id ${id}`,
    );
    put(`${node}/gpu_id`, String(gpu));
    put(`${node}/name`, 'arcturus');
    put(`${node}/mem_banks/0/properties`, 'heap_type 1\nsize_in_bytes 34342961152\nflags 0');
  }
}

const process = (pid: number, files: Readonly<Record<string, string>>) => {
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(join(host.sys, 'class/kfd/kfd/proc', String(pid), file, '..'), { recursive: true });
    writeFileSync(join(host.sys, 'class/kfd/kfd/proc', String(pid), file), `${text}\n`);
  }
  mkdirSync(join(host.proc, String(pid)));
  writeFileSync(join(host.proc, String(pid), 'comm'), 'python3\n');
};

test('no card: no tool is asked, and nothing is wrong', async () => {
  tools.put('rocm-smi', 'exit 1');
  expect(await ask()).toMatchObject({ complete: true, devices: [], findings: [] });
  expect(tools.calls('rocm-smi')).toEqual([]);
});

test('rocm-smi where there is no amd-smi; the render node comes from the bus', async () => {
  cards();
  tools.prints('rocm-smi', recording);
  const found = await ask();
  expect(found).toMatchObject({ complete: true, driver: '6.3.6', findings: [] });
  expect(found.devices.map(({ pciId, minor }) => [pciId, minor])).toEqual(addresses.map((address, at) => [address, 128 + at]));
  expect(tools.calls('rocm-smi')).toHaveLength(1);
});

test('amd-smi that does not know the card yields to rocm-smi, which says so', async () => {
  cards();
  tools.put('amd-smi', 'echo "AMDSMI_STATUS_NOT_SUPPORTED" >&2; exit 3');
  tools.prints('rocm-smi', recording);
  const found = await ask();
  expect(found.devices).toHaveLength(4);
  expect(found).toMatchObject({ complete: true, findings: [{ level: 'warning', code: 'tool-failed' }] });
});

test('amd-smi: what does not exist in its release is done without', async () => {
  cards();
  const list = addresses.map((bdf, gpu) => ({ gpu, bdf, uuid: 'x' }));
  const fixed = {
    gpu_data: addresses.map((_, gpu) => ({
      gpu,
      asic: { market_name: 'AMD Instinct MI100', asic_serial: `0x123456789012345${gpu}` },
    })),
  };
  tools.put(
    'amd-smi',
    `case $1 in list) echo '${JSON.stringify(list)}';; static) echo '${JSON.stringify(fixed)}';; *) echo 'unrecognized arguments' >&2; exit 2;; esac`,
  );
  const found = await ask();
  expect(found).toMatchObject({ complete: true, findings: [] });
  expect(found.devices[3]).toMatchObject({ uuid: 'GPU-1234567890123453', pciId: '0000:e3:00.0', model: 'AMD Instinct MI100' });
});

test('a tool that hangs: what the kernel knows is there, the set is not whole', async () => {
  cards();
  kfd([{ bus: 0x83, id: 0x79ccd55167a2124an, gpu: 4711, render: 128 }]);
  tools.put('amd-smi', hangs);
  tools.prints('rocm-smi', recording);
  const found = await ask(3_000);
  expect(found.complete).toBe(false);
  expect(found.devices).toMatchObject([{ uuid: 'GPU-79ccd55167a2124a' }]);
  expect(found.findings).toContainEqual(expect.objectContaining({ level: 'error', code: 'tool-hung' }));
  expect(tools.calls('amd-smi')).toHaveLength(1);
  expect(tools.calls('rocm-smi')).toHaveLength(0);
});

test('without any tool the kernel is enough, down to who holds which card', async () => {
  cards();
  kfd([
    { bus: 0x83, id: 0x79ccd55167a2124an, gpu: 4711, render: 128 },
    { bus: 0xa3, id: 0x04edfb117a17a07dn, gpu: 4712, render: 129 },
    { bus: 0xc3, id: 0xd4a9ec48d03d261dn, gpu: 4713, render: 130 },
    { bus: 0xe3, id: 0x1b9dd972253c3736n, gpu: 4714, render: 131 },
  ]);
  writeFileSync(join(host.sys, 'bus/pci/devices', addresses[0] ?? '', 'mem_info_vram_used'), '6750208\n');
  process(42, { vram_4711: '0', vram_4712: '1073741824', vram_4713: '0', vram_4714: '0', 'queues/0/gpuid': '4714' });
  const found = await ask();
  expect(found).toMatchObject({ complete: true, findings: [] });
  expect(found.devices.map(({ processes }) => processes?.length)).toEqual([0, 1, 0, 1]);
  expect(found.devices[0]).toMatchObject({
    uuid: 'GPU-79ccd55167a2124a',
    model: 'AMD arcturus',
    architecture: 'CDNA',
    memoryMiB: 32_752,
    memoryUsedMiB: 6,
    minor: 128,
    health: { state: 'ok' },
  });
  expect(found.devices[1]?.processes).toMatchObject([{ pid: 42, name: 'python3', memoryMiB: 1024 }]);
});

test('the kernel and the tool name the same cards', async () => {
  cards();
  kfd([{ bus: 0xa3, id: BigInt('0x4edfb117a17a07d'), gpu: 4712, render: 129 }]);
  tools.prints('rocm-smi', recording);
  const found = await ask();
  expect(found.devices).toHaveLength(4);
  expect(JSON.parse(readFileSync(recording, 'utf8')).card1['Unique ID']).toBe('0x4edfb117a17a07d');
  expect(found.devices[1]).toMatchObject({ uuid: 'GPU-04edfb117a17a07d', processes: null, memoryMiB: 32_752 });
});

test.each([
  [null, 'no-driver', 'modprobe amdgpu'],
  ['vfio-pci', 'held-by-another-driver', null],
])('a card of driver %s is reported, and is not for jobs', async (driver, code, hint) => {
  cards(driver);
  const found = await ask();
  expect(found).toMatchObject({ complete: true, devices: [] });
  expect(found.findings).toHaveLength(4);
  expect(found.findings[0]).toMatchObject({ level: 'warning', code, subject: addresses[0] });
  if (hint !== null) expect(found.findings[0]?.hint).toContain(hint);
});

test('a card that the tool leaves out is named', async () => {
  cards();
  plugIn(host.sys, '0000:f3:00.0', { vendor: '0x1002', driver: 'amdgpu' });
  tools.prints('rocm-smi', recording);
  expect((await ask()).findings).toMatchObject([{ level: 'warning', code: 'not-listed', subject: '0000:f3:00.0' }]);
});

test('a tool that fails where nothing else knows the cards: unknown, not none', async () => {
  cards();
  tools.put('rocm-smi', 'echo "ERROR:root:Driver not initialized (amdgpu not found in modules)"; exit 0');
  expect(await ask()).toMatchObject({ complete: false, devices: [] });
  expect((await ask()).findings[0]).toMatchObject({ level: 'error', code: 'driver-not-loaded' });
});

test('a card is called by the id that the kernel has of it, whichever source answers', async () => {
  const first = addresses[0] ?? '';
  plugIn(host.sys, first, { vendor: '0x1002', driver: 'amdgpu' });
  writeFileSync(join(host.sys, 'bus/pci/devices', first, 'unique_id'), '79ccd55167a2124a\n');
  kfd([{ bus: 0x83, id: 0n, gpu: 4711, render: 128 }]);
  expect((await ask()).devices).toMatchObject([{ uuid: 'GPU-79ccd55167a2124a', pciId: first }]);
});

test('a card keeps its first name, whichever source names it later', async () => {
  cards();
  kfd([{ bus: 0x83, id: 0n, gpu: 4711, render: 128 }]);
  expect((await ask()).devices).toMatchObject([{ uuid: 'amd-0000:83:00.0' }]);
  tools.prints('rocm-smi', recording);
  const later = await ask();
  expect(later.devices.map(({ uuid }) => uuid).sort()).toContain('amd-0000:83:00.0');
  expect(later.devices.map(({ uuid }) => uuid)).not.toContain('GPU-79ccd55167a2124a');
  tools.put('rocm-smi', 'exit 1');
  kfd([
    { bus: 0x83, id: 0n, gpu: 4711, render: 128 },
    { bus: 0xa3, id: 0n, gpu: 4712, render: 129 },
  ]);
  expect((await ask()).devices.map(({ uuid }) => uuid)).toEqual(['amd-0000:83:00.0', 'GPU-04edfb117a17a07d']);
});

test('another card in the place of one that is gone does not inherit its name', async () => {
  const first = addresses[0] ?? '';
  plugIn(host.sys, first, { vendor: '0x1002', driver: 'amdgpu' });
  const id = (text: string) => writeFileSync(join(host.sys, 'bus/pci/devices', first, 'unique_id'), `${text}\n`);
  kfd([{ bus: 0x83, id: 0n, gpu: 4711, render: 128 }]);
  id('79ccd55167a2124a');
  await ask();
  id('1111111111111111');
  expect((await ask()).devices).toMatchObject([{ uuid: 'GPU-1111111111111111' }]);
});

/** Adds a node at bus 0x06. */
const builtIn = (properties: string) => {
  plugIn(host.sys, '0000:06:00.0', { vendor: '0x1002', class: '0x030000', chip: '0x1638', driver: 'amdgpu' });
  const node = join(host.sys, 'class/kfd/kfd/topology/nodes/9');
  mkdirSync(node, { recursive: true });
  writeFileSync(join(node, 'properties'), `${properties}\nlocation_id ${0x06 << 8}\ndomain 0\ndrm_render_minor 140\n`);
  writeFileSync(join(node, 'gpu_id'), '99\n');
};

test.each([
  ['Cezanne (gfx90c)', 'cpu_cores_count 0\nsimd_count 28\ngfx_target_version 90012', 'gfx90c'],
  ['Phoenix (gfx1103)', 'cpu_cores_count 0\nsimd_count 24\ngfx_target_version 110003', 'gfx1103'],
  ['one node with its processor', 'cpu_cores_count 8\nsimd_count 32\ngfx_target_version 90009', 'gfx909'],
  ['one node with its processor, of a kind yet unknown', 'cpu_cores_count 8\nsimd_count 32\ngfx_target_version 130001', 'gfx1301'],
])('built-in graphics are not for jobs, and are reported: %s', async (_, properties, gfx) => {
  kfd([{ bus: 0x83, id: 0x79ccd55167a2124an, gpu: 4711, render: 128 }]);
  builtIn(properties);
  const found = await ask();
  expect(found.complete).toBe(true);
  expect(found.devices).toMatchObject([{ uuid: 'GPU-79ccd55167a2124a' }]);
  expect(found.findings).toMatchObject([{ level: 'warning', code: 'built-in', subject: '0000:06:00.0' }]);
  expect(found.findings[0]?.message).toContain(gfx);
});

test('built-in graphics that a tool lists are left out as well', async () => {
  kfd([]);
  builtIn('cpu_cores_count 0\nsimd_count 28\ngfx_target_version 90012');
  const card0 = { 'PCI Bus': '0000:06:00.0', 'Card series': 'Cezanne', 'VRAM Total Memory (B)': '536870912' };
  tools.put('rocm-smi', `echo '${JSON.stringify({ card0 })}'`);
  expect(await ask()).toMatchObject({ complete: true, devices: [], findings: [{ code: 'built-in' }] });
});

test('an MI300A is one node with its processors, and a device for jobs', async () => {
  kfd([]);
  builtIn('cpu_cores_count 24\nsimd_count 912\ngfx_target_version 90402');
  expect(await ask()).toMatchObject({ devices: [{ pciId: '0000:06:00.0', architecture: 'CDNA 3' }], findings: [] });
});
