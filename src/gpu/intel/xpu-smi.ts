/**
 * Intel's cards from the JSON of `xpu-smi`. Their identity is the PCI address: the UUID that the tool prints is derived from the
 * chip's number on some releases, the same for every card (`00000000-0000-0000-0000-020a00008086` in test/fixtures/gpu/xpu-smi).
 */
import { byCard, differing } from '../cards.ts';
import { at, countOf, type Fields, field, filled, isFields, jsonIn, kind, readFields, textOf } from '../fields.ts';
import { finding, printed } from '../finding.ts';
import {
  computing,
  type Device,
  type GpuFinding,
  type GpuProcess,
  type Health,
  type Inventory,
  inOrder,
  noGpus,
  unknownGpu,
} from '../inventory.ts';

/** How the table, the CSV and the list of processes begin that `xpu-smi` prints without `-j`, which are not read. */
const asText = /^(?:\| Device ID |Device ID,|PID\s+Command\s+DeviceID\b)/m;

/** Whether a text is the output of `xpu-smi`, complete or not. */
export function looksLikeIntel(text: string): boolean {
  return asText.test(text) || readXpuSmi(text) !== null;
}

/** The host whose `xpu-smi` printed `texts`. A text that is not understood gives a finding, and the set is not complete. */
export function intelInventory(texts: readonly string[]): Inventory {
  const read = texts.map(readXpuSmi);
  const outputs = read.filter((output) => output !== null);
  const findings: GpuFinding[] = [];
  const again = 'Record "xpu-smi discovery -j", "xpu-smi health -l -j" and "xpu-smi ps -j".';
  const say = (level: GpuFinding['level'], code: string, message: string) =>
    findings.push(finding(level, code, 'host', message, again));
  const odd = texts.find((_, at) => read[at] === null);
  if (odd !== undefined) say('error', 'not-understood', `xpu-smi printed ${printed(odd)}.`);
  if (outputs.some((output) => output.torn))
    say('error', 'output-torn', 'The output of an Intel tool is incomplete: it ends early.');
  const readings = outputs.map(({ cards }) => ({ source: 'xpu-smi', cards }));
  const clash = differing(readings);
  if (clash !== null) return { ...noGpus, complete: false, findings: [...findings, clash] };
  const { groups, without } = byCard(readings);
  if (without > 0) {
    const who = without === 1 ? 'An Intel card has' : `${without} Intel cards have`;
    say('warning', 'no-identity', `${who} no PCI address in this output, so onejob cannot tell which is which.`);
  }
  const listed = outputs.some((output) => output.list);
  if (!listed && groups.length > 0) say('warning', 'no-list', 'The output covers only some Intel cards; there may be more.');
  const devices = groups.map((group) => deviceOf(group, outputs));
  findings.push(...devices.flatMap((device, at) => weak(device, groups[at] ?? [])));
  return {
    ...noGpus,
    complete: listed && without === 0 && outputs.length === texts.length && outputs.every((output) => !output.torn),
    driver: groups.flat().find((card) => card.driver !== null)?.driver ?? null,
    devices: inOrder(devices),
    findings,
  };
}

function deviceOf(group: readonly IntelCard[], outputs: readonly XpuOutput[]): Device {
  const { pciId, index, model, memoryMiB: total, memoryFreeMiB: free, ecc } = group.reduce(filled);
  const known = outputs.flatMap((output) => output.processes ?? []);
  const asked = index !== null && outputs.some((output) => output.processes !== null);
  const gpu = unknownGpu('intel', `intel-${pciId}`, model ?? 'Intel GPU');
  return {
    ...gpu,
    index,
    pciId,
    memoryMiB: total,
    memoryUsedMiB: total === null || free === null || free > total ? null : total - free,
    architecture: intelArchitecture(gpu.model),
    health: healthOf(group),
    ecc: ecc === null ? null : { current: ecc, pending: ecc },
    processes: asked ? known.filter((each) => each.index === index).map(({ process }) => process) : null,
  };
}

/** A part that the card does not have is unknown; the card works when any part is ok and none has failed. */
function healthOf(group: readonly IntelCard[]): Health {
  const parts = group.flatMap((card) => card.health);
  const bad = parts.filter(({ status }) => /^(critical|error|fail)/i.test(status));
  const reasons = bad.map(({ part, status, description }) => `${part}: ${description ?? status}`);
  const well = parts.some(({ status }) => /^ok$/i.test(status));
  return { state: bad.length > 0 ? 'failed' : well ? 'ok' : 'unknown', reasons, uncorrectedErrors: null, recoveryAction: null };
}

/** Warnings, which do not stop the card. */
function weak(device: Device, group: readonly IntelCard[]): readonly GpuFinding[] {
  const parts = group.flatMap((card) => card.health).filter(({ status }) => /^warn/i.test(status));
  return parts.map(({ part, status, description }) =>
    finding('warning', 'health-warning', device.uuid, `${part}: ${description ?? status}`),
  );
}

const architectures: readonly (readonly [RegExp, string])[] = [
  [/\bGPU Max\b|\bMax 1\d{3}\b/i, 'Xe-HPC'],
  [/\bFlex\b|\bA[357]\d0M?\b/i, 'Xe-HPG'],
  [/\bB[567]\d0?\b/i, 'Xe2'],
];

/** Generation, from the name; null when it does not tell. */
function intelArchitecture(model: string): string | null {
  return architectures.find(([form]) => form.test(model))?.[1] ?? null;
}

type IntelCard = ReturnType<typeof cardOf>;
type XpuOutput = NonNullable<ReturnType<typeof readXpuSmi>>;

/**
 * `xpu-smi discovery`, `health` or `ps` with `-j`: nearly the same names, and the same numbers of cards. null when the text is not
 * from this tool. `processes`, with the numbers of their cards: null when it does not list them.
 */
export function readXpuSmi(text: string) {
  const { values, torn } = jsonIn(text);
  const cards = values.flatMap(objectsIn).filter(isCard);
  const list = values.some((value) => isFields(value) && Array.isArray(value.device_list));
  const processes = processObjects(values);
  const isTorn = torn && /"device_list"|"pci_bdf_address"|"device_util_by_proc_list"/.test(text);
  if (cards.length === 0 && processes === null && !isTorn) return null;
  return { cards: cards.map(cardOf), processes, list, torn };
}

/** Cards in a JSON value: a list, or a single card. */
function objectsIn(value: unknown): readonly Fields[] {
  if (!isFields(value)) return [];
  return Array.isArray(value.device_list) ? value.device_list.filter(isFields) : [value];
}

/** Other tools also number their devices. */
function isCard(fields: Fields): boolean {
  return 'device_id' in fields && ('pci_bdf_address' in fields || 'device_name' in fields || Object.values(fields).some(hasStatus));
}

function hasStatus(value: unknown): value is Fields & { readonly status: string } {
  return isFields(value) && typeof value.status === 'string';
}

const cardFields = {
  index: field(kind.count, 'device_id'),
  pciId: field(kind.pci, 'pci_bdf_address'),
  model: field(kind.text, 'device_name'),
  driver: field(kind.text, 'driver_version'),
  memoryMiB: field(kind.mib('B'), 'memory_physical_size_byte'),
  memoryFreeMiB: field(kind.mib('B'), 'memory_free_size_byte'),
  ecc: field(kind.enabled, 'memory_ecc_state', 'ecc_state'),
};

/** One card in one output. `health` of each part: `Ok`, `Warning`, `Critical`, `Unknown`. */
function cardOf(fields: Fields) {
  const health = Object.entries(fields).flatMap(([part, value]) => {
    if (!hasStatus(value)) return [];
    return [{ part: part.replaceAll('_', ' '), status: value.status, description: textOf(value.description) }];
  });
  return { ...readFields(cardFields, fields), health };
}

function processObjects(values: readonly unknown[]) {
  const list = values.map((value) => at(value, 'device_util_by_proc_list')).find(Array.isArray);
  return list?.filter(isFields).flatMap(processOf) ?? null;
}

/** Sizes are in units of 1000 bytes (intel/xpumanager, cli/src/lib_core_stub.cpp). */
function processOf(fields: Fields): { index: number; process: GpuProcess }[] {
  const [pid, index, kilobytes] = [countOf(fields.process_id), countOf(fields.device_id), countOf(fields.mem_size)];
  const name = textOf(fields.process_name);
  // The tool lists itself on every card.
  if (pid === null || pid === 0 || index === null || name === 'xpu-smi') return [];
  const memoryMiB = kilobytes === null ? null : Math.floor((kilobytes * 1000) / 2 ** 20);
  return [{ index, process: computing(pid, name, memoryMiB) }];
}
