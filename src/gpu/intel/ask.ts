/** Asks a host for its Intel cards: `xpu-smi`, else the kernel, which knows enough to grant one. */
import { type Asking, elsewhere, failureOf, withRenderNode } from '../asking.ts';
import { finding, withFindings } from '../finding.ts';
import { type Device, type GpuFinding, type Inventory, noGpus, unknownGpu } from '../inventory.ts';
import type { PciCard } from '../pci.ts';
import { intelInventory } from './intel.ts';
import { readXpuSmi } from './xpu-smi.ts';

/** Where processors have their built-in graphics: no device for jobs, and in most desktops. */
const builtIn = '0000:00:02.0';

/** Cards that are asked for what does not change; a host with more has the rest without. */
const mostCards = 16;

/** What cards say of themselves that does not change is kept, until the list of cards is another. */
export function createIntel(): (asking: Asking) => Promise<Inventory> {
  let kept: { readonly list: string; readonly texts: readonly string[] } = { list: '', texts: [] };
  return async (asking) => {
    const cards = asking.pci?.filter((card) => card.vendor === 'intel' && card.pciId !== builtIn) ?? null;
    if (cards?.length === 0) return noGpus;
    if (!(await asking.has('xpu-smi'))) return fromKernel(cards ?? []);
    const list = await asking.run('xpu-smi', 'discovery', '-j');
    const failure = failureOf(list);
    if (failure !== null) return withFindings(fromKernel(cards ?? []), [failure], false);
    const failures: GpuFinding[] = [];
    const ask = async (calls: readonly (readonly string[])[]): Promise<string[]> => {
      const texts: string[] = [];
      for (const args of calls) {
        // One that hangs would hang again.
        if (failures.length > 0) break;
        const reply = await asking.run('xpu-smi', ...args);
        const problem = reply.hung ? failureOf(reply) : null;
        if (problem !== null) failures.push(problem);
        else if (reply.code === 0 && readXpuSmi(reply.output) !== null) texts.push(reply.output);
      }
      return texts;
    };
    const numbers = [...new Set((readXpuSmi(list.output)?.cards ?? []).flatMap(({ index }) => index ?? []))].slice(0, mostCards);
    const details =
      kept.list === list.output ? kept.texts : await ask(numbers.map((number) => ['discovery', '-d', String(number), '-j']));
    if (failures.length === 0) kept = { list: list.output, texts: details };
    const now = await ask([
      ['health', '-l', '-j'],
      ['ps', '-j'],
    ]);
    const told = intelInventory([list.output, ...details, ...now]);
    const devices = told.devices.map((device) => withRenderNode(device, cards ?? []));
    const missing = (cards ?? []).filter((card) => !devices.some(({ pciId }) => pciId === card.pciId));
    return withFindings({ ...told, devices }, [...failures, ...missing.map(notListed)], failures.length === 0);
  };
}

/** Without a tool there is no memory, health or process, but a card that can be granted. */
function fromKernel(cards: readonly PciCard[]): Inventory {
  const usable = cards.filter((card) => elsewhere(card, drivers) === null);
  const findings = cards.flatMap((card) => elsewhere(card, drivers) ?? []);
  return { ...noGpus, devices: usable.map(deviceOf), findings };
}

/** The older and the newer kernel driver. */
const drivers = ['i915', 'xe'];

function deviceOf({ pciId, chip, renderMinor: minor }: PciCard): Device {
  const model = chip === null ? 'Intel GPU' : `Intel(R) Graphics [${chip}]`;
  return { ...unknownGpu('intel', `intel-${pciId}`, model), minor, pciId };
}

function notListed(card: PciCard): GpuFinding {
  const message = `The Intel card at ${card.pciId} is on the bus, but xpu-smi does not list it.`;
  return elsewhere(card, drivers) ?? finding('warning', 'not-listed', card.pciId, message, 'Look for i915 or xe in dmesg.');
}
