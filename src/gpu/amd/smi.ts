/** AMD's cards from the JSON of `rocm-smi` and `amd-smi`. No text makes it throw. */

import { at, countOf, type Fields, field, isFields, jsonIn, kind, mebibytes, readFields, readNumber, textOf } from '../fields.ts';
import { finding, printed } from '../finding.ts';
import { computing, type GpuProcess, type Inventory } from '../inventory.ts';
import { amdHost, askAgain } from './host.ts';
import { type AmdReading, gfxTarget, modelName, readingOf, uniqueIdOf } from './reading.ts';

/** Banners and errors of AMD's tools, and how a card begins in what they print without `--json`, which is not read. */
const ours =
  /ROCm System Management Interface|^AMD System Management Interface|amdgpu not found in modules|No AMD GPUs? |No JSON data to report|AMDSMI_STATUS_|\bamdsmi\b|^GPU(?:\[\d+\]\s*: |: \d+\s*\n {2,}\w+:)/im;

/** Whether a text is the output of one of AMD's tools, complete or not. */
export function looksLikeAmd(text: string): boolean {
  if (ours.test(text)) return true;
  const { values, torn } = jsonIn(text);
  if (values.some((value) => isRocmSmi(value) || amdSmiCards(value) !== null)) return true;
  return torn && /"card\d+":\s*\{|"gpu_data":\s*\[|"asic":\s*\{/.test(text);
}

/** The host whose AMD tools printed `texts`. A text that is not understood gives a finding, and the set is not complete. */
export function amdInventory(texts: readonly string[]): Inventory {
  return amdHost(texts.flatMap(readAmd));
}

export function readAmd(text: string): readonly AmdReading[] {
  const { values, torn } = jsonIn(text);
  const readings = values.flatMap((value): AmdReading[] => {
    const cards = amdSmiCards(value);
    if (cards !== null) return [readAmdSmi(cards)];
    return isRocmSmi(value) ? [readRocmSmi(value)] : [];
  });
  if (torn) readings.push(trouble('output-torn', 'The output of an AMD tool is incomplete: it ends early.', askAgain));
  if (readings.length > 0) return readings;
  if (/not found in modules|driver not (initialized|loaded|found)|DRIVER_NOT_LOADED/i.test(text)) {
    const message = 'The AMD driver amdgpu is not loaded, so no AMD card can be used.';
    return [trouble('driver-not-loaded', message, 'Type "modprobe amdgpu", or search dmesg for amdgpu.')];
  }
  if (values.some((value) => Array.isArray(value)) || /no json data|no (amd )?gpus?\b.*(found|detected|specified)/i.test(text))
    return [{ ...trouble('no-devices', 'The AMD tool sees no card.', seesNone), complete: true }];
  if (/required groups|NO_PERM|permission denied/i.test(text)) {
    const hint = 'Add the user to the groups "render" and "video".';
    return [trouble('insufficient-permissions', 'The AMD tool has no permission to query the driver.', hint)];
  }
  return [trouble('not-understood', `The AMD tool printed ${printed(text)}.`, askAgain)];
}

const seesNone =
  'Type "lspci -d 1002:" to see whether a card is on the bus, and "dmesg | grep amdgpu" for why its driver did not start. In a container or a virtual machine, the card may not be passed on.';

/** A reading without cards, with the reason. */
function trouble(code: string, message: string, hint: string): AmdReading {
  return { ...readingOf('amd-smi', null, []), findings: [finding('error', code, 'host', message, hint)], complete: false };
}

/** Keys of a card that only amd-smi prints. */
const parts = ['bdf', 'asic', 'bus', 'vram', 'board', 'mem_usage', 'ecc', 'hip_uuid', 'vbios'];

/**
 * The cards of a JSON value that `amd-smi list`, `static` or `metric` printed; null when it is something else. Each has a part;
 * keys and nesting differ by release.
 */
function amdSmiCards(value: unknown): readonly Fields[] | null {
  const list = Array.isArray(value) ? value : at(value, 'gpu_data');
  if (!Array.isArray(list)) return null;
  const cards = list.filter((each) => isFields(each) && 'gpu' in each && parts.some((part) => part in each));
  return cards.length === 0 ? null : cards;
}

/** Fields of a card; names and nesting differ by release. UMC is the memory controller. */
const amdSmiFields = {
  index: field(kind.count, 'gpu'),
  pciId: field(kind.pci, 'bdf', 'bus/bdf'),
  uniqueId: field(uniqueIdOf, 'hip_uuid', 'asic/asic_serial'),
  model: field(modelName, 'asic/market_name', 'board/product_name'),
  chip: field(kind.text, 'asic/device_id'),
  gfx: field(gfxTarget, 'asic/target_graphics_version'),
  memoryMiB: field(kind.mib('MB'), 'vram/size', 'vram/vram_size', 'mem_usage/total_vram'),
  memoryUsedMiB: field(kind.mib('MB'), 'mem_usage/used_vram'),
  minor: field((value) => countOf(/^renderD(\d+)$/.exec(textOf(value) ?? '')?.[1]), 'render'),
  ecc: field(kind.enabled, ...['ras/ecc_block_state', 'ras/ecc_block'].flatMap((block) => [`${block}/UMC`, `${block}/umc`])),
  uncorrectedErrors: field(kind.count, 'ecc/total_uncorrectable_count', 'ecc/total_uncorrectable'),
};
const amdSmiDriver = field(driverVersion, 'driver/version', 'driver/driver_version');

function readAmdSmi(cards: readonly Fields[]): AmdReading {
  const all = cards.map((card) => {
    const fields = readFields(amdSmiFields, card);
    return { ...fields, live: fields.memoryUsedMiB !== null || fields.uncorrectedErrors !== null };
  });
  return readingOf('amd-smi', cards.map(amdSmiDriver).find((driver) => driver !== null) ?? null, all);
}

/** A driver built separately has a version; else the tool prints all of /proc/version, without its blanks. */
function driverVersion(value: unknown): string | null {
  return /^(?:Linux\s*version\s*)?(\d[\w.-]*)/.exec(textOf(value) ?? '')?.[1] ?? null;
}

/**
 * Whether a JSON value is `rocm-smi --json`: objects under `card0`, `card1`, … Keys differ by release and contain units;
 * recordings from ROCm 2 to 6 are in test/fixtures/gpu.
 */
function isRocmSmi(value: unknown): value is Fields {
  return isFields(value) && Object.entries(value).some(([key, card]) => /^card\d+$/.test(key) && isFields(card));
}

function readRocmSmi(value: Fields): AmdReading {
  const system = at(value, 'system');
  const named = Object.entries(value).flatMap(([key, fields]) => {
    const [, index] = /^card(\d+)$/.exec(key) ?? [];
    return index !== undefined && isFields(fields) ? [{ index: Number(index), fields }] : [];
  });
  const processes = processesOf(system, named.length);
  const cards = named.map(({ index, fields }) => ({ ...rocmSmiCard(index, fields), processes }));
  return readingOf('rocm-smi', isFields(system) ? textOf(byName(system)['driver version']) : null, cards);
}

const rocmSmiFields = {
  pciId: field(kind.pci, 'pci bus'),
  uniqueId: field(uniqueIdOf, 'unique id'),
  model: field(modelName, 'card series', 'device name', 'card model'),
  chip: field((value) => /^0x[0-9a-f]{3,4}$/i.exec(textOf(value) ?? '')?.[0] ?? null, 'gpu id', 'device id'),
  gfx: field(gfxTarget, 'gfx version'),
  memoryMiB: field(kind.mib('B'), 'vram total memory'),
  memoryUsedMiB: field(kind.mib('B'), 'vram total used memory'),
};

function rocmSmiCard(index: number, card: Fields) {
  const named = byName(card);
  const fields = readFields(rocmSmiFields, named);
  const isActive = (name: string) => /^(gpu use \(%\)|temperature \(sensor)/.test(name) && readNumber(named[name]) !== null;
  return { ...fields, index, live: fields.memoryUsedMiB !== null || Object.keys(named).some(isActive) };
}

/** Names in lower case, since releases differ. The unit of memory follows its name in brackets, and here its value. */
function byName(fields: Fields): Fields {
  const entries = Object.entries(fields).map(([key, value]) => {
    const [, name = '', unit] = /^(.*?)(?: \(([kmgt]?i?b)\))?$/.exec(key.trim().toLowerCase()) ?? [];
    return [name, unit === undefined ? value : { value, unit }];
  });
  return Object.fromEntries(entries);
}

/** `PID1234: "python, 1, 1048576, 0, 0"`: name, number of GPUs, bytes. Which GPUs is unknown, except with a single card. */
function processesOf(system: unknown, cards: number): readonly GpuProcess[] | null {
  if (!isFields(system)) return null;
  const known = Object.entries(system).flatMap(([key, value]) => {
    const pid = countOf(/^pid\s*(\d{1,10})$/i.exec(key)?.[1]);
    const [name, gpus, bytes] = String(value).split(',');
    return pid === null ? [] : [{ pid, name, gpus: countOf(gpus), bytes: countOf(bytes) }];
  });
  if (known.length === 0) return null;
  if (known.some(({ gpus, bytes }) => gpus === null || bytes === null)) return null;
  const holding = known.filter(({ gpus, bytes }) => gpus !== 0 || bytes !== 0);
  if (holding.length > 0 && cards !== 1) return null;
  return holding.map(({ pid, name, bytes }) => computing(pid, textOf(name), mebibytes(bytes, 'B')));
}
