import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { emptyHost, type FakeTools, fakeTools, hangs, plugIn } from '../../../test/support/fake-tools/fake-tools.ts';
import { xpuDevice, xpuHealth } from '../../../test/support/xpu-smi.ts';
import type { Inventory } from '../inventory.ts';
import { readPci } from '../pci.ts';
import type { ProbeContext } from '../probe-context.ts';
import { createRunner } from '../run.ts';
import { createIntelQuery } from './query.ts';

const fixture = (name: string) => join(import.meta.dirname, '../../../test/fixtures/gpu/xpu-smi', name);
const card = '0000:4d:00.0';

const dir = eachScratch();
let tools: FakeTools;
let host: { readonly sys: string; readonly proc: string };
let intel: ReturnType<typeof createIntelQuery>;

beforeEach(() => {
  tools = fakeTools(dir.path);
  host = emptyHost(dir.path);
  intel = createIntelQuery();
});

async function ask(limit = 20_000): Promise<Inventory> {
  const runner = createRunner(tools);
  const context: ProbeContext = {
    ...host,
    pci: await readPci(host.sys),
    has: async (tool) => (await runner.find(tool)) !== null,
    run: (tool, ...args) => runner.run(tool, args, { limit }),
  };
  return intel(context);
}

/** Answers each question by the recording of it. */
const answers = (more = '') =>
  `case "$*" in
"discovery -j") cat '${fixture('discovery.json')}';;
"discovery -d 0 -j") echo '${xpuDevice}';;
"health -l -j") echo '${xpuHealth}';;
"ps -j") echo '{"device_util_by_proc_list": []}';;
esac\n${more}`;

test('built-in graphics are not a device, and no tool is asked about them', async () => {
  plugIn(host.sys, '0000:00:02.0', { vendor: '0x8086', class: '0x030000', driver: 'i915' });
  tools.put('xpu-smi', 'exit 1');
  expect(await ask()).toMatchObject({ complete: true, devices: [], findings: [] });
  expect(tools.calls('xpu-smi')).toEqual([]);
});

test('a card with all that xpu-smi says of it; what does not change is asked once', async () => {
  plugIn(host.sys, card, { vendor: '0x8086', class: '0x038000', driver: 'i915', render: 129 });
  tools.put('xpu-smi', answers());
  const found = await ask();
  expect(found).toMatchObject({ complete: true, driver: '16929133', findings: [] });
  expect(found.devices).toMatchObject([
    { uuid: `intel-${card}`, minor: 129, memoryMiB: 32_768, health: { state: 'ok' }, processes: [] },
  ]);
  expect(await ask()).toEqual(found);
  expect(tools.calls('xpu-smi')).toEqual([
    'discovery -j',
    'discovery -d 0 -j',
    'health -l -j',
    'ps -j',
    'discovery -j',
    'health -l -j',
    'ps -j',
  ]);
});

test('without xpu-smi the kernel lists the cards', async () => {
  plugIn(host.sys, card, { vendor: '0x8086', class: '0x038000', chip: '0x56c0', driver: 'i915', render: 129 });
  plugIn(host.sys, '0000:5d:00.0', { vendor: '0x8086', class: '0x038000' });
  const found = await ask();
  expect(found.devices).toMatchObject([
    { uuid: `intel-${card}`, model: 'Intel(R) Graphics [0x56c0]', minor: 129, processes: null, health: { state: 'unknown' } },
  ]);
  expect(found.findings).toMatchObject([{ code: 'no-driver', subject: '0000:5d:00.0' }]);
});

test('a tool that hangs at once: the cards are there, the set is not whole', async () => {
  plugIn(host.sys, card, { vendor: '0x8086', driver: 'xe' });
  tools.put('xpu-smi', hangs);
  const found = await ask(3_000);
  expect(found).toMatchObject({ complete: false, devices: [{ uuid: `intel-${card}` }], findings: [{ code: 'tool-hung' }] });
  expect(tools.calls('xpu-smi')).toEqual(['discovery -j']);
});

test('a tool that hangs later is not asked for the rest', async () => {
  plugIn(host.sys, card, { vendor: '0x8086', driver: 'xe' });
  tools.put('xpu-smi', answers().replace(/"health.*/, `"health -l -j") ${hangs};;`));
  const found = await ask(3_000);
  expect(found).toMatchObject({
    complete: false,
    devices: [{ memoryMiB: 32_768, processes: null }],
    findings: [{ code: 'tool-hung' }],
  });
  expect(tools.calls('xpu-smi')).toEqual(['discovery -j', 'discovery -d 0 -j', 'health -l -j']);
});

test('a tool that dies', async () => {
  plugIn(host.sys, card, { vendor: '0x8086', driver: 'xe' });
  tools.put('xpu-smi', 'kill -SEGV $$');
  expect(await ask()).toMatchObject({
    complete: false,
    devices: [{ uuid: `intel-${card}` }],
    findings: [{ level: 'error', code: 'tool-failed' }],
  });
});

test('a card that the tool leaves out is named', async () => {
  for (const address of [card, '0000:5d:00.0']) plugIn(host.sys, address, { vendor: '0x8086', class: '0x038000', driver: 'i915' });
  tools.put('xpu-smi', answers());
  expect((await ask()).findings).toMatchObject([{ level: 'warning', code: 'not-listed', subject: '0000:5d:00.0' }]);
});
