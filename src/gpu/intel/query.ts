/** Queries a host for its Intel cards: `xpu-smi`, or else the kernel, which knows enough to grant one. */
import { withFindings } from '../finding.ts';
import { type Device, type GpuFinding, type Inventory, noGpus, unknownGpu } from '../inventory.ts';
import type { PciCard } from '../pci.ts';
import { failureOf, notListed, otherDriver, type ProbeContext, withRenderNode } from '../probe-context.ts';
import { intelInventory, readXpuSmi } from './xpu-smi.ts';

/** Address of a processor's built-in graphics, which most desktops have: not a device for jobs. */
const builtIn = '0000:00:02.0';

/** How many cards are queried for their constant values; on a host with more, the others lack those. */
const mostCards = 16;

/** Keeps the cards' constant values until the list of cards changes. */
export function createIntelQuery(): (context: ProbeContext) => Promise<Inventory> {
  let kept: { readonly list: string; readonly texts: readonly string[] } = { list: '', texts: [] };
  return async (context) => {
    const cards = context.pci?.filter((card) => card.vendor === 'intel' && card.pciId !== builtIn) ?? null;
    if (cards?.length === 0) return noGpus;
    if (!(await context.has('xpu-smi'))) return fromKernel(cards ?? []);
    const list = await context.run('xpu-smi', 'discovery', '-j');
    const failure = failureOf(list);
    if (failure !== null) return withFindings(fromKernel(cards ?? []), [failure], false);
    const failures: GpuFinding[] = [];
    const ask = async (calls: readonly (readonly string[])[]): Promise<string[]> => {
      const texts: string[] = [];
      for (const args of calls) {
        // After a call that hung, the next would hang too.
        if (failures.length > 0) break;
        const reply = await context.run('xpu-smi', ...args);
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
    const health = await ask([['health', '-l', '-j']]);
    const processes = await ask([['ps', '-j']]);
    const host = intelInventory([list.output, ...details, ...health, ...processes]);
    const devices = host.devices.map((device) => withRenderNode(device, cards ?? []));
    const missing = notListed(cards ?? [], devices, drivers, 'xpu-smi does not list it');
    return withFindings({ ...host, devices }, [...failures, ...missing], failures.length === 0);
  };
}

/** The older and the newer kernel driver. */
const drivers = ['i915', 'xe'];

/** Without a tool there is no memory, health or process, but the card can be granted. */
function fromKernel(cards: readonly PciCard[]): Inventory {
  const usable = cards.filter((card) => otherDriver(card, drivers) === null);
  const devices = usable.map(({ pciId, chip, renderMinor: minor }): Device => {
    const model = chip === null ? 'Intel GPU' : `Intel(R) Graphics [${chip}]`;
    return { ...unknownGpu('intel', `intel-${pciId}`, model), minor, pciId };
  });
  return { ...noGpus, devices, findings: cards.flatMap((card) => otherDriver(card, drivers) ?? []) };
}
