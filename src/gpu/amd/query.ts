/** Queries a host for its AMD cards: `amd-smi`, or else `rocm-smi`, and the kernel, which knows enough to grant a card. */
import { join } from 'node:path';
import { asWarning, withFindings } from '../finding.ts';
import { type Device, type GpuFinding, type Inventory, noGpus } from '../inventory.ts';
import { type PciCard, readText } from '../pci.ts';
import { failureOf, notListed, type ProbeContext, withRenderNode } from '../probe-context.ts';
import { amdHost } from './host.ts';
import { readKfd } from './kfd.ts';
import { type AmdCard, type AmdReading, readingOf, uniqueIdOf } from './reading.ts';
import { readAmd } from './smi.ts';

/** First names of cards by PCI address: sources that answer at different times must not give a card a second name. */
export type AmdNames = Map<string, string>;

/** Each has a part; those that succeed are useful without the later ones. */
const amdSmi = ['static --json', 'list --json', 'metric --mem-usage --ecc --json'].map((call) => call.split(' '));

/** Options that releases from 2 to 6 know. */
const rocmSmi = '-i --showuniqueid --showbus --showproductname --showmeminfo vram --showdriverversion --json'.split(' ');

/** `names`: earlier names of cards; new ones are added. */
export async function queryAmd(context: ProbeContext, names: AmdNames): Promise<Inventory> {
  const cards = context.pci?.filter((card) => card.vendor === 'amd') ?? null;
  // Without a card the vendor's tools could only fail.
  if (cards?.length === 0) return noGpus;
  const kfd = await readKfd(context.sys, context.proc);
  const tools = await queryTools(context);
  if (cards === null && kfd === null && !tools.asked) return noGpus;
  const readings = [...tools.readings, ...(kfd === null ? [] : [kfd])];
  const host = amdHost([await readIds(context.sys, cards ?? [], readings), ...readings]);
  // Partitions of a card are other devices than the card was.
  const isParted = host.findings.some(({ code }) => code === 'same-id');
  const devices = host.devices
    .map((device) => (isParted ? device : keepName(device, names)))
    .map((device) => withRenderNode(device, cards ?? []));
  const builtIn = new Set(host.findings.flatMap(({ code, subject }) => (code === 'built-in' ? [subject] : [])));
  const jobCards = cards?.filter(({ pciId }) => !builtIn.has(pciId)) ?? [];
  // If the cards were listed all the same, they can be used although a tool failed; a tool that hangs is a sign of a sick driver.
  const listed = tools.readings.length > 0 || (kfd !== null && kfd.cards.length > 0);
  const failures = tools.failures.map((each) => (listed && !tools.hung ? asWarning(each) : each));
  // They may be graphics built into a processor, so none is reported as lost.
  const missing = notListed(jobCards, devices, ['amdgpu'], 'neither its driver nor a tool lists it');
  return withFindings({ ...host, devices }, [...failures, ...missing], !tools.hung && (listed || !tools.asked));
}

async function queryTools(context: ProbeContext) {
  const failures: GpuFinding[] = [];
  const readings: AmdReading[] = [];
  let asked = false;
  for (const [tool, calls] of Object.entries({ 'amd-smi': amdSmi, 'rocm-smi': [rocmSmi] })) {
    if (readings.length > 0 || !(await context.has(tool))) continue;
    asked = true;
    for (const call of calls) {
      const reply = await context.run(tool, ...call);
      const failure = failureOf(reply);
      if (reply.hung && failure !== null) return { asked, hung: true, readings, failures: [...failures, failure] };
      const read = readAmd(reply.output);
      readings.push(...read.filter((reading) => reading.cards.length > 0));
      if (readings.length > 0) continue;
      failures.push(...(failure === null ? read.flatMap((reading) => reading.findings) : [failure]));
      break;
    }
  }
  return { asked, hung: false, readings, failures };
}

/** The ids that amdgpu has for the cards in `readings`, from Vega on; below `sys` (`/sys`). Wakes no card. */
async function readIds(sys: string, cards: readonly PciCard[], readings: readonly AmdReading[]): Promise<AmdReading> {
  const listed = readings.flatMap((reading) => reading.cards);
  const known: Partial<AmdCard>[] = [];
  for (const { pciId } of cards) {
    const uniqueId = uniqueIdOf(await readText(join(sys, 'bus/pci/devices', pciId, 'unique_id')));
    const isListed = listed.some((card) => card.pciId === pciId || card.uniqueId === uniqueId);
    if (uniqueId !== null && isListed) known.push({ pciId, uniqueId });
  }
  return readingOf('bus', null, known);
}

/** `device` under the first name of its address, unless both are ids and differ: then it is another card. */
function keepName(device: Device, names: AmdNames): Device {
  if (device.pciId === null) return device;
  const before = names.get(device.pciId);
  const isOther = before === undefined || (isId(before) && isId(device.uuid));
  const uuid = isOther ? device.uuid : before;
  names.set(device.pciId, uuid);
  return { ...device, uuid };
}

function isId(name: string): boolean {
  return name.startsWith('GPU-');
}
