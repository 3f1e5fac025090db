/** The AMD cards of one host, put together from several sources. */
import { byCard, differing } from '../cards.ts';
import { filled } from '../fields.ts';
import { distinct, finding } from '../finding.ts';
import { type Device, type GpuFinding, type Health, type Inventory, inOrder, noGpus, unknownGpu } from '../inventory.ts';
import type { AmdCard, AmdReading } from './reading.ts';

export const askAgain = 'Record "amd-smi list --json" and "amd-smi static --json", or "rocm-smi -a --showmeminfo vram --json".';

/** One host that all `readings` describe, the more trusted first. */
export function amdHost(readings: readonly AmdReading[]): Inventory {
  const findings: GpuFinding[] = readings.flatMap((reading) => reading.findings);
  const odd = differing(readings);
  if (odd !== null) return { ...noGpus, complete: false, findings: distinct([...findings, odd]) };
  const { groups, without } = byCard(readings);
  const all = groups.map(combine);
  const builtIn = all.filter(isBuiltIn);
  const cards = all.filter((card) => !isBuiltIn(card));
  findings.push(...builtIn.map(builtInFinding));
  const ids = cards.flatMap((card) => card.uniqueId ?? []);
  const shared = new Set(ids.filter((id, at) => ids.indexOf(id) !== at));
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
    // On a host without other cards it only means that a screen may be lit.
    driver: cards.length === 0 && builtIn.length > 0 ? null : (readings.find((reading) => reading.driver !== null)?.driver ?? null),
    devices: inOrder(devices),
    findings: distinct(findings),
  };
}

/** The readings of a card as one; earlier ones take precedence. */
function combine(group: readonly AmdCard[]): AmdCard {
  return { ...group.reduce(filled), live: group.some((card) => card.live), withCpu: group.some((card) => card.withCpu) };
}

function deviceOf(card: AmdCard, shared: ReadonlySet<string>): Device | null {
  const { uniqueId, model, chip, gfx, ecc, uncorrectedErrors, live, withCpu, ...own } = card;
  const id = uniqueId !== null && !shared.has(uniqueId) ? `GPU-${uniqueId}` : null;
  const uuid = id ?? (card.pciId === null ? null : `amd-${card.pciId}`);
  if (uuid === null) return null;
  return {
    ...unknownGpu('amd', uuid, model ?? (chip === null ? 'AMD GPU' : `AMD GPU ${chip}`)),
    ...own,
    architecture: amdArchitecture(gfx, model),
    health: healthOf(card),
    ecc: ecc === null ? null : { current: ecc, pending: ecc },
  };
}

/** AMD's tools report no health. A card works that returned a current value and has no uncorrected errors. */
function healthOf({ uncorrectedErrors, live }: AmdCard): Health {
  const bad = uncorrectedErrors !== null && uncorrectedErrors > 0;
  const reasons = bad ? [`${uncorrectedErrors} uncorrected memory errors since the driver was loaded`] : [];
  return { state: bad ? 'failed' : live ? 'ok' : 'unknown', reasons, uncorrectedErrors, recoveryAction: null };
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

/** Generation of a chip, from the compiler's target, or else from its name; null when unknown. */
function amdArchitecture(gfx: string | null, model: string | null): string | null {
  const entry = targets.find(([form]) => form.test(gfx ?? '')) ?? names.find(([form]) => form.test(model ?? ''));
  return entry?.[1] ?? null;
}

/** Targets of APUs: https://llvm.org/docs/AMDGPUUsage.html#processors */
const ofProcessors = /^gfx(902|909|90c|1013|1033|103[567]|1103|115\d)$/i;

/** MI300A is in one part with its processors too, but it computes, and has its own memory. */
const forComputing = /^gfx942$/i;

/** Graphics inside a processor. They draw the host's screen, have no memory of their own, and are not devices for jobs. */
function isBuiltIn({ gfx, withCpu }: AmdCard): boolean {
  return ofProcessors.test(gfx ?? '') || (withCpu && !forComputing.test(gfx ?? ''));
}

function builtInFinding({ pciId, gfx, model }: AmdCard): GpuFinding {
  const name = `${model ?? 'AMD graphics'}${gfx === null ? '' : ` (${gfx})`}${pciId === null ? '' : ` at ${pciId}`}`;
  return finding('warning', 'built-in', pciId ?? 'host', `${name} is built into the processor, and is not a device for jobs.`);
}
