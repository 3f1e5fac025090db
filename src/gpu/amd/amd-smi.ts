/** `amd-smi list`, `static` and `metric`, as JSON. Each has a part; keys and nesting differ by release. */
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
