/** `rocm-smi --json`. Keys differ by release and contain units; recordings from ROCm 2 to 6 are in test/fixtures/gpu. */
import { computing, type GpuProcess } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { at, countOf, type Fields, isFields, mebibytes, numberOf, textOf } from '../said.ts';
import { type AmdCard, type AmdReading, modelOf, readingOf, uniqueIdOf, unknownCard } from './reading.ts';

/** Whether a JSON value is `rocm-smi --json`: objects under `card0`, `card1`, … */
export function isRocmSmi(value: unknown): value is Fields {
  return isFields(value) && Object.entries(value).some(([key, card]) => /^card\d+$/.test(key) && isFields(card));
}

export function readRocmSmi(value: Fields): AmdReading {
  const system = at(value, 'system');
  const named = Object.entries(value).flatMap(([key, fields]) => {
    const [, index] = /^card(\d+)$/.exec(key) ?? [];
    return index !== undefined && isFields(fields) ? [{ index: Number(index), fields }] : [];
  });
  const processes = processesOf(system, named.length);
  const cards = named.map(({ index, fields }) => ({ ...cardOf(index, fields), processes }));
  return readingOf('rocm-smi', find(system, /^driver version$/i), cards);
}

function cardOf(index: number, fields: Fields): AmdCard {
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
    live: used !== null || numberOf(find(fields, /^(gpu use \(%\)|temperature \(sensor)/i)) !== null,
  };
}

function find(fields: unknown, key: RegExp, form = /./): string | null {
  if (!isFields(fields)) return null;
  for (const [name, value] of Object.entries(fields)) {
    const text = key.test(name.trim()) ? textOf(value) : null;
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
  return holding.map(({ pid, name, bytes }) => computing(pid, textOf(name), mebibytes(bytes, 'B')));
}
