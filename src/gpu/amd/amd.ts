/** AMD's cards from the JSON of `rocm-smi` and `amd-smi`. No text makes it throw. */
import { finding, printed } from '../finding.ts';
import { computing, type GpuProcess, type Inventory } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { at, countOf, type Fields, isFields, jsonIn, mebibytes, readNumber, saidText } from '../said.ts';
import { amdHost, askAgain } from './host.ts';
import { type AmdCard, type AmdReading, modelOf, readingOf, uniqueIdOf, unknownCard } from './reading.ts';

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

function readAmdSmi(cards: readonly Fields[]): AmdReading {
  const drivers = cards.map((card) => driverOf(at(card, 'driver', 'version') ?? at(card, 'driver', 'driver_version')));
  return readingOf('amd-smi', drivers.find((driver) => driver !== null) ?? null, cards.map(amdSmiCard));
}

function amdSmiCard(card: Fields): AmdCard {
  const used = mebibytes(at(card, 'mem_usage', 'used_vram'), 'MB');
  const uncorrected = countOf(at(card, 'ecc', 'total_uncorrectable_count') ?? at(card, 'ecc', 'total_uncorrectable'));
  return {
    ...unknownCard,
    index: countOf(card.gpu),
    pciId: normalPci(saidText(card.bdf) ?? saidText(at(card, 'bus', 'bdf')) ?? ''),
    uniqueId: uniqueIdOf(saidText(card.hip_uuid)) ?? uniqueIdOf(saidText(at(card, 'asic', 'asic_serial'))),
    model: modelOf(saidText(at(card, 'asic', 'market_name')), saidText(at(card, 'board', 'product_name'))),
    chip: saidText(at(card, 'asic', 'device_id')),
    gfx: /^gfx[0-9a-f]+$/i.exec(saidText(at(card, 'asic', 'target_graphics_version')) ?? '')?.[0] ?? null,
    memoryMiB: mebibytes(at(card, 'vram', 'size') ?? at(card, 'vram', 'vram_size') ?? at(card, 'mem_usage', 'total_vram'), 'MB'),
    memoryUsedMiB: used,
    renderMinor: countOf(/^renderD(\d+)$/.exec(saidText(card.render) ?? '')?.[1]),
    ecc: eccOf(at(card, 'ras', 'ecc_block_state') ?? at(card, 'ras', 'ecc_block')),
    uncorrectedErrors: uncorrected,
    live: used !== null || uncorrected !== null,
  };
}

/** UMC is the memory controller. */
function eccOf(blocks: unknown): boolean | null {
  const state = saidText(at(blocks, 'UMC') ?? at(blocks, 'umc'));
  return state === null ? null : /^enabled$/i.test(state);
}

/** A driver built separately has a version; else the tool prints all of /proc/version, without its blanks. */
function driverOf(value: unknown): string | null {
  const text = saidText(value);
  return text === null ? null : (/^(?:Linux\s*version\s*)?(\d[\w.-]*)/.exec(text)?.[1] ?? null);
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
  return readingOf('rocm-smi', find(system, /^driver version$/i), cards);
}

function rocmSmiCard(index: number, fields: Fields): AmdCard {
  const used = memory(fields, /^vram total used memory \((\w+)\)$/i);
  return {
    ...unknownCard,
    index,
    pciId: normalPci(find(fields, /^pci bus$/i) ?? ''),
    uniqueId: uniqueIdOf(find(fields, /^unique id$/i)),
    model: modelOf(find(fields, /^card series$/i), find(fields, /^device name$/i), find(fields, /^card model$/i)),
    chip: find(fields, /^(gpu|device) id$/i, /^0x[0-9a-f]{3,4}$/i),
    gfx: find(fields, /^gfx version$/i, /^gfx\w+$/),
    memoryMiB: memory(fields, /^vram total memory \((\w+)\)$/i),
    memoryUsedMiB: used,
    live: used !== null || readNumber(find(fields, /^(gpu use \(%\)|temperature \(sensor)/i)) !== null,
  };
}

function find(fields: unknown, key: RegExp, form = /./): string | null {
  if (!isFields(fields)) return null;
  for (const [name, value] of Object.entries(fields)) {
    const text = key.test(name.trim()) ? saidText(value) : null;
    if (text !== null && form.test(text)) return text;
  }
  return null;
}

function memory(fields: Fields, key: RegExp): number | null {
  for (const [name, value] of Object.entries(fields)) {
    const unit = key.exec(name.trim())?.[1];
    if (unit !== undefined) return mebibytes(value, unit);
  }
  return null;
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
  return holding.map(({ pid, name, bytes }) => computing(pid, saidText(name), mebibytes(bytes, 'B')));
}
