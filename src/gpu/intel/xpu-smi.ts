/** `xpu-smi discovery`, `health`, `ps`, with `-j`, as table or as CSV: nearly the same names, and the same numbers of cards. */
import { computing, type GpuProcess } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { countOf, type Fields, isFields, jsonIn, mebibytes, textOf } from '../said.ts';

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

/** A process on the card with this number. */
interface IntelProcess {
  readonly index: number;
  readonly process: GpuProcess;
}

export interface XpuOutput {
  readonly cards: readonly IntelCard[];
  /** null when the output does not list processes. */
  readonly processes: readonly IntelProcess[] | null;
  readonly list: boolean;
  readonly torn: boolean;
}

/** null when the text is not from this tool. */
export function readXpuSmi(text: string): XpuOutput | null {
  const { values, torn } = jsonIn(text);
  const json = values.flatMap((value) => objectsIn(value) ?? []);
  const found = [...json, ...tableObjects(text), ...csvObjects(text)].filter(isCard);
  const listed =
    values.some((value) => isFields(value) && Array.isArray(value.device_list)) || (json.length === 0 && found.length > 0);
  const processes = processObjects(values, text);
  const isTorn = torn && /"device_list"|"pci_bdf_address"|"device_util_by_proc_list"/.test(text);
  if (found.length === 0 && processes === null && !isTorn) return null;
  return { cards: found.map(cardOf), processes, list: listed, torn };
}

/** Cards in a JSON value: a list, or a single card. */
function objectsIn(value: unknown): readonly Fields[] | null {
  if (!isFields(value)) return null;
  if (Array.isArray(value.device_list)) return value.device_list.filter((each) => isFields(each) && 'device_id' in each);
  return isCard(value) ? [value] : null;
}

/** Other tools also print numbered tables. */
function isCard(fields: Fields): boolean {
  return 'device_id' in fields && ('pci_bdf_address' in fields || 'device_name' in fields || Object.values(fields).some(hasStatus));
}

function hasStatus(value: unknown): value is Fields {
  return isFields(value) && typeof value.status === 'string';
}

/** Rows `| 0 | Device Name: … |`; a row without a number belongs to the card above. Health has its parts on the left. */
function tableObjects(text: string): readonly Fields[] {
  const cards: Record<string, unknown>[] = [];
  let part: Record<string, unknown> | null = null;
  for (const [, left = '', right = ''] of text.matchAll(/^\|([^|\n]*)\|([^|\n]*)\|[ \t\r]*$/gm)) {
    const [label, value] = [left.trim(), right.trim()];
    const number = /^\d+$/.test(label) ? label : /^device id$/i.test(label) && /^\d+$/.test(value) ? value : null;
    if (number !== null) {
      cards.push({ device_id: number });
      part = null;
      if (number === value) continue;
    }
    const card = cards.at(-1);
    const named = /^\d+\.\s*(.+)$/.exec(label)?.[1];
    if (card !== undefined && named !== undefined) {
      part = {};
      card[keyOf(named)] = part;
    }
    const [, key, said] = /^([^:]+):\s*(.+)$/.exec(value) ?? [];
    const into = part ?? card;
    if (key !== undefined && into !== undefined && !Object.hasOwn(into, keyOf(key))) into[keyOf(key)] = said;
  }
  return cards;
}

/** `xpu-smi discovery --dump`: a row of names, then one per card, texts in quotes. */
function csvObjects(text: string): readonly Fields[] {
  const lines = text.split(/\r?\n/);
  const head = lines.findIndex((line) => /^"?Device ID"?,/i.test(line.trim()));
  if (head < 0) return [];
  const names = cellsOf(lines[head] ?? '').map(keyOf);
  const rows = lines.slice(head + 1).map(cellsOf);
  const cards = rows.filter((cells) => cells.length === names.length && countOf(cells[0]) !== null);
  return cards.map((cells) => Object.fromEntries(names.map((name, at) => [name, cells[at]])));
}

function cellsOf(line: string): string[] {
  return [...line.matchAll(/\s*(?:"((?:[^"]|"")*)"|([^,]*))(?:,|$)/g)]
    .slice(0, -1)
    .map(([, quoted, plain]) => quoted ?? plain?.trim() ?? '');
}

/** `PCI BDF Address` and `pci_bdf_address` are one name. */
function keyOf(label: string): string {
  const name = label.trim().toLowerCase();
  return name.replace(/[^a-z0-9]+/g, '_').replace(/_+$/, '');
}

function cardOf(fields: Fields): IntelCard {
  const ecc = textOf(fields.memory_ecc_state) ?? textOf(fields.ecc_state);
  return {
    index: countOf(fields.device_id),
    pciId: normalPci(textOf(fields.pci_bdf_address) ?? ''),
    model: textOf(fields.device_name),
    driver: textOf(fields.driver_version),
    memoryMiB: mebibytes(fields.memory_physical_size_byte, 'B') ?? mebibytes(fields.memory_physical_size, 'MiB'),
    memoryFreeMiB: mebibytes(fields.memory_free_size_byte, 'B'),
    ecc: ecc === null ? null : /^enabled$/i.test(ecc),
    health: Object.entries(fields).flatMap(([part, value]) =>
      hasStatus(value)
        ? [{ part: part.replaceAll('_', ' '), status: String(value.status), description: textOf(value.description) }]
        : [],
    ),
  };
}

/** null when the text does not list processes. */
function processObjects(values: readonly unknown[], text: string): readonly IntelProcess[] | null {
  const list = values.find((value) => isFields(value) && Array.isArray(value.device_util_by_proc_list));
  if (isFields(list) && Array.isArray(list.device_util_by_proc_list)) {
    return list.device_util_by_proc_list.flatMap((each) =>
      isFields(each) ? processOf(each.process_id, each.process_name, each.device_id, each.mem_size) : [],
    );
  }
  if (!/^PID\s+Command\s+DeviceID\s+SHR\s+MEM\s*$/im.test(text)) return null;
  return [...text.matchAll(/^(\d+)[ \t]+(\S.*?)[ \t]+(\d+)[ \t]+\d+[ \t]+(\d+)[ \t\r]*$/gm)].flatMap(
    ([, pid, name, index, memory]) => processOf(pid, name, index, memory),
  );
}

/** Sizes are in units of 1000 bytes (intel/xpumanager, cli/src/lib_core_stub.cpp). */
function processOf(id: unknown, name: unknown, card: unknown, memory: unknown): IntelProcess[] {
  const [pid, index, kilobytes] = [countOf(id), countOf(card), countOf(memory)];
  // The tool lists itself on every card.
  if (pid === null || pid === 0 || index === null || textOf(name) === 'xpu-smi') return [];
  const memoryMiB = kilobytes === null ? null : Math.floor((kilobytes * 1000) / 2 ** 20);
  return [{ index, process: computing(pid, textOf(name), memoryMiB) }];
}
