/** `amd-smi list`, `static`, `metric` and `process`, as JSON or text. Each has a part; keys and nesting differ by release. */
import { computing, type GpuProcess } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { at, countOf, type Fields, isFields, mebibytes, textOf } from '../said.ts';
import { type AmdCard, type AmdReading, modelOf, readingOf, uniqueIdOf, unknownCard } from './reading.ts';

/** Keys of a card that only amd-smi prints. */
const parts = ['bdf', 'asic', 'bus', 'vram', 'board', 'mem_usage', 'ecc', 'process_list', 'hip_uuid', 'vbios'];

/** The cards of a JSON value that amd-smi printed; null when it is something else. */
export function amdSmiCards(value: unknown): readonly Fields[] | null {
  const list = Array.isArray(value) ? value : at(value, 'gpu_data');
  if (!Array.isArray(list)) return null;
  const cards = list.filter((each) => isFields(each) && 'gpu' in each && parts.some((part) => part in each));
  return cards.length === 0 ? null : cards;
}

export function readAmdSmi(cards: readonly Fields[]): AmdReading {
  const drivers = cards.map((card) => driverOf(at(card, 'driver', 'version') ?? at(card, 'driver', 'driver_version')));
  return readingOf('amd-smi', drivers.find((driver) => driver !== null) ?? null, cards.map(cardOf));
}

/** The text that amd-smi prints without `--json`, as the objects that it would have printed; null for any other text. */
export function amdSmiText(text: string): readonly Fields[] | null {
  const cards: Record<string, unknown>[] = [];
  let open: { readonly depth: number; readonly fields: Record<string, unknown> }[] = [];
  for (const [, indent = '', key = '', value = ''] of text.matchAll(/^( *)([A-Z][A-Z0-9_ ]*):[ \t]*(.*)$/gm)) {
    if (indent === '') {
      open = [];
      if (key !== 'GPU') continue;
      const card = { gpu: value.trim() };
      cards.push(card);
      open = [{ depth: 0, fields: card }];
      continue;
    }
    open = open.filter(({ depth }) => depth < indent.length);
    const parent = open.at(-1);
    if (parent === undefined) continue;
    const name = key.trim().toLowerCase().replaceAll(' ', '_');
    const fields: Record<string, unknown> = {};
    if (!Object.hasOwn(parent.fields, name)) parent.fields[name] = value.trim() === '' ? fields : value.trim();
    if (value.trim() === '') open = [...open, { depth: indent.length, fields }];
  }
  return amdSmiCards(cards);
}

function cardOf(card: Fields): AmdCard {
  const used = mebibytes(at(card, 'mem_usage', 'used_vram'), 'MB');
  const uncorrected = countOf(at(card, 'ecc', 'total_uncorrectable_count') ?? at(card, 'ecc', 'total_uncorrectable'));
  return {
    ...unknownCard,
    index: countOf(card.gpu),
    pciId: normalPci(textOf(card.bdf) ?? textOf(at(card, 'bus', 'bdf')) ?? ''),
    uniqueId: uniqueIdOf(textOf(card.hip_uuid)) ?? uniqueIdOf(textOf(at(card, 'asic', 'asic_serial'))),
    model: modelOf(textOf(at(card, 'asic', 'market_name')), textOf(at(card, 'board', 'product_name'))),
    chip: textOf(at(card, 'asic', 'device_id')),
    gfx: /^gfx[0-9a-f]+$/i.exec(textOf(at(card, 'asic', 'target_graphics_version')) ?? '')?.[0] ?? null,
    memoryMiB: mebibytes(at(card, 'vram', 'size') ?? at(card, 'vram', 'vram_size') ?? at(card, 'mem_usage', 'total_vram'), 'MB'),
    memoryUsedMiB: used,
    renderMinor: countOf(/^renderD(\d+)$/.exec(textOf(card.render) ?? '')?.[1]),
    ecc: eccOf(at(card, 'ras', 'ecc_block_state') ?? at(card, 'ras', 'ecc_block')),
    uncorrectedErrors: uncorrected,
    processes: processesOf(card.process_list),
    live: used !== null || uncorrected !== null,
  };
}

/** UMC is the memory controller. */
function eccOf(blocks: unknown): boolean | null {
  const state = textOf(at(blocks, 'UMC') ?? at(blocks, 'umc'));
  return state === null ? null : /^enabled$/i.test(state);
}

/** A driver built separately has a version; else the tool prints all of /proc/version, without its blanks. */
function driverOf(value: unknown): string | null {
  const text = textOf(value);
  return text === null ? null : (/^(?:Linux\s*version\s*)?(\d[\w.-]*)/.exec(text)?.[1] ?? null);
}

/** One entry per process, or one that says that there are none. */
function processesOf(list: unknown): readonly GpuProcess[] | null {
  if (!Array.isArray(list)) return null;
  const found: GpuProcess[] = [];
  for (const entry of list) {
    const info = isFields(entry) ? (entry.process_info ?? entry) : entry;
    if (typeof info === 'string' && /^no running process/i.test(info)) continue;
    const pid = countOf(at(info, 'pid'));
    if (pid === null || pid === 0) return null;
    const memory = at(info, 'memory_usage', 'vram_mem') ?? at(info, 'mem_usage') ?? at(info, 'mem');
    found.push(computing(pid, textOf(at(info, 'name')), mebibytes(memory, 'B')));
  }
  return found;
}
