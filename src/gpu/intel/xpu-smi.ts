/** `xpu-smi discovery`, `health` and `ps` with `-j`: nearly the same names, and the same numbers of cards. */
import { computing, type GpuProcess } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { at, countOf, type Fields, isFields, jsonIn, mebibytes, textOf } from '../said.ts';

/** One card in one output; null for missing values. */
export interface IntelCard {
  readonly index: number | null;
  readonly pciId: string | null;
  readonly model: string | null;
  readonly driver: string | null;
  readonly memoryMiB: number | null;
  readonly memoryFreeMiB: number | null;
  readonly ecc: boolean | null;
  /** Health of each part: `Ok`, `Warning`, `Critical`, `Unknown`. */
  readonly health: readonly { readonly part: string; readonly status: string; readonly description: string | null }[];
}

export type XpuOutput = NonNullable<ReturnType<typeof readXpuSmi>>;

/** null when the text is not from this tool. `processes`, with the numbers of their cards: null when it does not list them. */
export function readXpuSmi(text: string) {
  const { values, torn } = jsonIn(text);
  const found = values.flatMap(objectsIn).filter(isCard);
  const list = values.some((value) => isFields(value) && Array.isArray(value.device_list));
  const processes = processObjects(values);
  const isTorn = torn && /"device_list"|"pci_bdf_address"|"device_util_by_proc_list"/.test(text);
  if (found.length === 0 && processes === null && !isTorn) return null;
  return { cards: found.map(cardOf), processes, list, torn };
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

function hasStatus(value: unknown): value is Fields {
  return isFields(value) && typeof value.status === 'string';
}

function cardOf(fields: Fields): IntelCard {
  const ecc = textOf(fields.memory_ecc_state) ?? textOf(fields.ecc_state);
  return {
    index: countOf(fields.device_id),
    pciId: normalPci(textOf(fields.pci_bdf_address) ?? ''),
    model: textOf(fields.device_name),
    driver: textOf(fields.driver_version),
    memoryMiB: mebibytes(fields.memory_physical_size_byte, 'B'),
    memoryFreeMiB: mebibytes(fields.memory_free_size_byte, 'B'),
    ecc: ecc === null ? null : /^enabled$/i.test(ecc),
    health: Object.entries(fields).flatMap(([part, value]) =>
      hasStatus(value)
        ? [{ part: part.replaceAll('_', ' '), status: String(value.status), description: textOf(value.description) }]
        : [],
    ),
  };
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
