/** AMD's cards of one host from what several sources say, put together card by card. */
import { distinct, finding } from '../finding.ts';
import { type Device, type GpuFinding, type Health, type Inventory, inOrder, noGpus, unknownGpu } from '../inventory.ts';
import { filled } from '../said.ts';
import type { AmdCard, AmdReading } from './reading.ts';

/** What to record of AMD's cards. */
export const askAgain = 'Record "amd-smi list --json" and "amd-smi static --json", or "rocm-smi -a --showmeminfo vram --json".';

/** One host of which all `readings` tell, the more trusted first. */
export function amdHost(readings: readonly AmdReading[]): Inventory {
  const findings: GpuFinding[] = readings.flatMap((reading) => reading.findings);
  const differing = severalHosts(readings);
  if (differing !== null) {
    const message = `These are recordings of different hosts or times: ${differing}.`;
    findings.push(finding('error', 'recordings-differ', 'host', message, 'Pass recordings of one host only.'));
    return { ...noGpus, complete: false, findings: distinct(findings) };
  }
  const { groups, without } = byCard(readings);
  const all = groups.map(combine);
  const builtIn = all.filter(isBuiltIn);
  const cards = all.filter((card) => !isBuiltIn(card));
  findings.push(...builtIn.map(builtInFinding));
  const shared = repeated(cards.map((card) => card.uniqueId));
  const devices = cards.flatMap((card) => deviceOf(card, shared) ?? []);
  const nameless = without + cards.length - devices.length;
  if (nameless > 0) {
    const message = `${nameless === 1 ? 'An AMD card has' : `${nameless} AMD cards have`} neither an id nor a PCI address in this output, so onejob cannot tell which is which.`;
    findings.push(finding('warning', 'no-identity', 'host', message, askAgain));
  }
  if (shared.size > 0) {
    const message = 'Several AMD devices report the same id, as partitions of one card do; onejob names them by PCI address.';
    findings.push(finding('warning', 'same-id', 'host', message));
  }
  return {
    ...noGpus,
    complete: readings.every((reading) => reading.complete) && nameless === 0,
    // Of a host that has nothing else it says no more than that a screen may be lit.
    driver: cards.length === 0 && builtIn.length > 0 ? null : (readings.find((reading) => reading.driver !== null)?.driver ?? null),
    devices: inOrder(devices),
    findings: distinct(findings),
  };
}

/** How outputs of the same tool contradict each other; null when they do not. What two sources call a card may differ. */
function severalHosts(readings: readonly AmdReading[]): string | null {
  for (const [source, same] of Map.groupBy(readings, (reading) => reading.source)) {
    const drivers = new Set(same.flatMap((reading) => reading.driver ?? []));
    if (drivers.size > 1) return `${source} was run with the drivers ${[...drivers].slice(0, 4).join(', ')}`;
    const cards = same.flatMap((reading) => reading.cards);
    for (const [index, all] of Map.groupBy(cards, (card) => card.index)) {
      const places = new Set(index === null ? [] : all.flatMap((card) => card.pciId ?? []));
      if (places.size > 1) return `card ${index} of ${source} is at ${[...places].slice(0, 4).join(', ')}`;
    }
    for (const [pciId, all] of Map.groupBy(cards, (card) => card.pciId)) {
      const ids = new Set(pciId === null ? [] : all.flatMap((card) => card.uniqueId ?? []));
      if (ids.size > 1) return `there are two different cards at ${pciId}`;
    }
  }
  return null;
}

/** Joins by PCI address; what is said without one by the same tool's number for the card, else by the card's id. */
function byCard(readings: readonly AmdReading[]): { readonly groups: readonly (readonly AmdCard[])[]; readonly without: number } {
  const said = readings.flatMap(({ source, cards }) => cards.map((card) => ({ card, number: `${source} ${card.index}` })));
  const groups = new Map<string, AmdCard[]>();
  const addresses = new Map<string, string>();
  for (const { card, number } of said) {
    if (card.pciId === null) continue;
    if (card.index !== null) addresses.set(number, card.pciId);
    groups.set(card.pciId, [...(groups.get(card.pciId) ?? []), card]);
  }
  const alone = Map.groupBy(
    said.filter(({ card }) => card.pciId === null),
    ({ number }) => number,
  );
  let without = 0;
  for (const [number, same] of alone) {
    const cards = same.map(({ card }) => card);
    const id = cards.find((card) => card.uniqueId !== null)?.uniqueId ?? null;
    const owners = [...groups].filter(([, group]) => id !== null && group.some((card) => card.uniqueId === id));
    const place = addresses.get(number) ?? (owners.length === 1 ? owners[0]?.[0] : undefined);
    if (place !== undefined) groups.get(place)?.push(...cards);
    else if (id !== null) groups.set(number, cards);
    else without += 1;
  }
  return { groups: [...groups.values()], without };
}

/** What each source says of a card, where those before it say nothing. */
function combine(group: readonly AmdCard[]): AmdCard {
  return {
    ...group.reduce(filled),
    live: group.some((card) => card.live),
    withCpu: group.some((card) => card.withCpu),
  };
}

function deviceOf(card: AmdCard, shared: ReadonlySet<string>): Device | null {
  const own = card.uniqueId !== null && !shared.has(card.uniqueId) ? `GPU-${card.uniqueId}` : null;
  const uuid = own ?? (card.pciId === null ? null : `amd-${card.pciId}`);
  if (uuid === null) return null;
  return {
    ...unknownGpu('amd', uuid, card.model ?? (card.chip === null ? 'AMD GPU' : `AMD GPU ${card.chip}`)),
    index: card.index,
    minor: card.renderMinor,
    pciId: card.pciId,
    memoryMiB: card.memoryMiB,
    memoryUsedMiB: card.memoryUsedMiB,
    architecture: amdArchitecture(card.gfx, card.model),
    health: healthOf(card),
    ecc: card.ecc === null ? null : { current: card.ecc, pending: card.ecc },
    processes: card.processes,
  };
}

/** AMD's tools give no verdict. A card that answered with a figure of this moment, and counts no lost memory, works. */
function healthOf({ uncorrectedErrors, live }: AmdCard): Health {
  const bad = uncorrectedErrors !== null && uncorrectedErrors > 0;
  const reasons = bad ? [`${uncorrectedErrors} uncorrected memory errors since the driver was loaded`] : [];
  return { state: bad ? 'failed' : live ? 'ok' : 'unknown', reasons, uncorrectedErrors, recoveryAction: null };
}

function repeated(ids: readonly (string | null)[]): ReadonlySet<string> {
  return new Set(ids.filter((id, at) => id !== null && ids.indexOf(id) !== at).filter((id) => id !== null));
}

/** LLVM's targets by generation: https://llvm.org/docs/AMDGPUUsage.html#processors */
const targets: readonly (readonly [RegExp, string])[] = [
  [/^gfx95/, 'CDNA 4'],
  [/^gfx94/, 'CDNA 3'],
  [/^gfx90a/, 'CDNA 2'],
  [/^gfx908/, 'CDNA'],
  [/^gfx9/, 'Vega'],
  [/^gfx8/, 'GCN 4'],
  [/^gfx12/, 'RDNA 4'],
  [/^gfx115/, 'RDNA 3.5'],
  [/^gfx11/, 'RDNA 3'],
  [/^gfx103/, 'RDNA 2'],
  [/^gfx10/, 'RDNA'],
];

const names: readonly (readonly [RegExp, string])[] = [
  [/\bMI35\d/i, 'CDNA 4'],
  [/\bMI3[02]\d/i, 'CDNA 3'],
  [/\bMI2[15]\d/i, 'CDNA 2'],
  [/\bMI100\b/i, 'CDNA'],
  [/\b(MI[2568][05]?|Vega|Radeon VII)\b/i, 'Vega'],
  [/\b(RX 9\d{3}|AI PRO R9\d{3})/i, 'RDNA 4'],
  [/\b(RX 7\d{3}|PRO W7\d{3}|Navi 3\d)/i, 'RDNA 3'],
  [/\b(RX 6\d{3}|PRO W6\d{3}|Navi 2\d)/i, 'RDNA 2'],
  [/\b(RX 5[1-7]\d{2}|PRO W5\d{3}|Navi 1\d)/i, 'RDNA'],
];

/** Generation of a chip, from what programs are compiled for, else from its name; null when neither says it. */
function amdArchitecture(gfx: string | null, model: string | null): string | null {
  const found =
    targets.find(([form]) => gfx !== null && form.test(gfx)) ?? names.find(([form]) => model !== null && form.test(model));
  return found?.[1] ?? null;
}

/** Targets of APUs: https://llvm.org/docs/AMDGPUUsage.html#processors */
const ofProcessors = /^gfx(902|909|90c|1013|1033|103[567]|1103|115\d)$/i;

/** MI300A is made with its processors too, but for computing, and has memory as a card has. */
const forComputing = /^gfx942$/i;

/** Graphics inside a processor. They draw the host's screen, have no memory of their own, and are no devices for jobs. */
function isBuiltIn({ gfx, withCpu }: AmdCard): boolean {
  if (gfx !== null && ofProcessors.test(gfx)) return true;
  return withCpu && !forComputing.test(gfx ?? '');
}

function builtInFinding({ pciId, gfx, model }: AmdCard): GpuFinding {
  const name = `${model ?? 'AMD graphics'}${gfx === null ? '' : ` (${gfx})`}${pciId === null ? '' : ` at ${pciId}`}`;
  return finding('warning', 'built-in', pciId ?? 'host', `${name} is built into the processor, and is not a device for jobs.`);
}
