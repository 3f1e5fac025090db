/**
 * Outputs that people record and the daemon never asks for: `nvidia-smi -q`, `--query-gpu=…` and `--query-compute-apps=…` as
 * CSV, `--version`, and the table of `nvidia-smi` alone. All readers are tolerant, and say in `rest` and `whole` what they could
 * not use. None ever throws.
 */
import {
  type Block,
  gpuPlaces,
  headOf,
  inProcess,
  newBlock,
  nothingRead,
  type ProcessField,
  type ProcessReading,
  processPlaces,
  type Reading,
  take,
} from './reading.ts';
import { cudaVersion, driverVersion, isUsualUuid } from './values.ts';

/** Whether `nvidia-smi -q` is in the text. */
export function looksLikeQueryText(text: string): boolean {
  return /^=+NVSMI LOG=+[ \t]*$/m.test(text) || (/^Attached GPUs[ \t]*:/m.test(text) && /^GPU [0-9A-Fa-f]{4,8}:/m.test(text));
}

/** Labels above the first GPU. A complaint has a colon too, but no such label. */
const heads: ReadonlySet<string> = new Set([
  'timestamp',
  'driver_version',
  'cuda_version',
  'kmd_version',
  'cuda_umd_version',
  'attached_gpus',
]);

/**
 * `nvidia-smi -q`: the same as `-q -x`, written for people. Known by labels and their indentation, which change between
 * drivers less than the table does. It has no end mark: what shows that it is whole is each GPU's list of processes, which
 * comes near the end of its block.
 */
export function readQueryText(text: string): Reading {
  const header = new Map<string, string>();
  const blocks: Block[] = [];
  /** Blocks whose processes were reached. */
  const reached = new Set<Block>();
  const above: { readonly indent: number; readonly label: string }[] = [];
  const rest: string[] = [];
  const lines = text.split('\n');
  for (const [at, raw] of lines.entries()) {
    const label = raw.trim();
    if (label === '' || /^=+NVSMI LOG=+$/.test(label)) continue;
    const indent = raw.trimEnd().length - label.length;
    const gpu = indent === 0 ? /^GPU (\S{1,40})$/.exec(label)?.[1] : undefined;
    if (gpu !== undefined) {
      blocks.push(newBlock({ pciId: gpu }));
      above.length = 0;
      continue;
    }
    const { key, value } = labelled(label);
    while ((above.at(-1)?.indent ?? -1) >= indent) above.pop();
    const place = [...above.map((each) => each.label), key].join('/');
    above.push({ indent, label: key });
    const block = blocks.at(-1);
    if (block !== undefined && indent > 0) {
      if (place.split('/')[0] === 'processes') reached.add(block);
      // A last line without its end may have lost a part of what it says.
      const isCut = at === lines.length - 1 && value !== null && key.endsWith('uuid') && !isUsualUuid(value);
      if (!isCut) takeLine(block, place, value);
    } else if (value === null || header.has(key)) rest.push(raw);
    else {
      header.set(key, value);
      if (!heads.has(key)) rest.push(label);
    }
  }
  const head = headOf(header);
  return {
    ...nothingRead,
    ...head,
    gpus: blocks.map((block) => ({ ...block, depth: reached.has(block) ? 'state' : 'cut' })),
    whole: head.attached !== null && blocks.every((block) => reached.has(block)),
    rest: rest.join('\n'),
  };
}

/** `Label : value`, `Label` alone as the head of a section; the label as an element would be named. */
function labelled(line: string): { readonly key: string; readonly value: string | null } {
  const at = line.indexOf(' : ');
  const [label, value] =
    at < 0 ? [line.replace(/ :$/, ''), line.endsWith(' :') ? '' : null] : [line.slice(0, at), line.slice(at + 3)];
  return { key: label.trim().toLowerCase().replaceAll(' ', '_'), value: value?.trim() ?? null };
}

function takeLine(block: Block, place: string, value: string | null): void {
  const [section, ...below] = place.split('/');
  if (place === 'processes') {
    // `Processes : None` is none; `N/A` is nobody knows.
    block.processes = value === null || /^none$/i.test(value) ? [] : null;
  } else if (section === 'processes') {
    // Processes have no heads of their own: from 450 on the instance's ids come before `Process ID`, the rest below it.
    const key = below.at(-1) ?? '';
    const field = processPlaces.get(key);
    const begins = field === 'gpuInstance' || (field === 'pid' && block.processes?.at(-1)?.pid !== undefined);
    if (value !== null && field !== undefined && (begins || block.processes?.length === 0)) block.processes?.push({});
    if (value !== null) take(block, `${inProcess}${key}`, value);
  } else {
    if (place === 'mig_device') block.instances.push({});
    if (value !== null) take(block, section === 'mig_device' ? `mig_devices/${place}` : place, value);
  }
}

/** Columns of other queries, whose rows are neither GPUs nor processes. */
const others = /^(retired_pages\.(address|cause)|max_memory_usage|gpu_util(ization)?|mem_util(ization)?|time)$/;

/** Columns that nothing is read from, and that show what kind of table this is all the same. */
const familiar =
  /^(timestamp|count|driver_version|kmd_version|gpu_serial|serial|(memory|utilization|temperature|power|clocks|fan|pci|ecc|mig)\.[\w.]+)$/;

const placeOf = (column: string) => column.replaceAll('.', '/');

/** The columns of a header row without their units; null when it is none. `next`: the line below. */
function headerOf(line: string, next: string): readonly string[] | null {
  const names = line.split(',').map((cell) => cell.trim().replace(/ \[[^\]]{1,12}\]$/, ''));
  if (!names.every((name) => /^[A-Za-z][\w.]{1,80}$/.test(name))) return null;
  const isOwn = names.some((name) => gpuPlaces.has(placeOf(name)) || processPlaces.has(name) || familiar.test(name));
  // One word alone is a header only above a UUID.
  return isOwn && (names.length > 1 || (/uuid$/.test(names[0] ?? '') && next.startsWith('GPU-'))) ? names : null;
}

/** Whether a header row of such a table is in the text. */
export function looksLikeCsv(text: string): boolean {
  const lines = text.split('\n');
  return lines.some((line, at) => line.length < 20_000 && headerOf(line, lines[at + 1] ?? '') !== null);
}

/** Whether these are its rows without their header, which cannot be read. */
export function looksLikeRows(text: string): boolean {
  return /^[^|\n:]{0,200}, *(NVIDIA |GPU-[0-9a-f]{8}-|\[N\/A\])/m.test(text);
}

interface Table {
  readonly columns: readonly string[];
  readonly rows: (readonly string[])[];
}

/**
 * The columns are told by the header row, or else by `args`, what was asked; without either nothing is guessed. The tool quotes
 * nothing, so a row with too few or too many cells is not read.
 */
export function readCsv(text: string, args: readonly string[] = []): Reading {
  const asked = args.map((arg) => /^--query-(?:gpu|compute-apps)=(.+)$/.exec(arg)?.[1]).find((fields) => fields !== undefined);
  const tables: Table[] = asked === undefined ? [] : [{ columns: asked.split(',').map((name) => name.trim()), rows: [] }];
  let open = tables.at(-1);
  const rest: string[] = [];
  let whole = true;
  const lines = text.split('\n');
  for (const [at, raw] of lines.entries()) {
    const line = raw.trim();
    const columns = headerOf(line, lines[at + 1] ?? '');
    if (line === '') {
      // An empty line ends a table, but not before its first row: one recording has it below the header.
      if (open !== undefined && open.rows.length > 0) open = undefined;
    } else if (columns !== null) {
      open = { columns, rows: [] };
      tables.push(open);
    } else {
      const cells = open === undefined ? null : cellsFor(line, open.columns);
      const isCut = at === lines.length - 1 && /uuid$/.test(open?.columns.at(-1) ?? '') && !isUsualUuid(cells?.at(-1) ?? '');
      if (open !== undefined && cells !== null && !isCut) open.rows.push(cells);
      else {
        rest.push(raw);
        // A complaint between the rows is no torn row.
        if (open !== undefined && line.includes(', ')) whole = false;
      }
    }
  }
  const ours = tables.filter(({ columns }) => !columns.some((name) => others.test(name)));
  // Of several in one recording the last is the state that holds.
  const rows = rowsOf(ours.findLast(({ columns }) => !columns.includes('pid')));
  const apps = ours.findLast(({ columns }) => columns.includes('pid'));
  return {
    ...nothingRead,
    ...headOf(rows[0] ?? new Map()),
    gpus: rows.map((row) => {
      const block = newBlock();
      for (const [column, value] of row) take(block, placeOf(column), value);
      return { ...block, depth: 'columns' };
    }),
    whole: whole && rows.length > 0,
    rest: rest.join('\n'),
    apps: apps === undefined ? null : rowsOf(apps).map(appOf),
  };
}

/** Cells as many as columns; a process' name may hold commas. null when they do not fit. */
function cellsFor(line: string, columns: readonly string[]): readonly string[] | null {
  const cells = line.split(',').map((cell) => cell.trim());
  const at = columns.indexOf('process_name');
  const more = cells.length - columns.length;
  if (more !== 0 && (at < 0 || more < 0)) return null;
  return more === 0 ? cells : cells.toSpliced(at, more + 1, cells.slice(at, at + more + 1).join(', '));
}

/** Cells by their columns. */
function rowsOf(table: Table | undefined): ReadonlyMap<string, string>[] {
  return (table?.rows ?? []).map((cells) => new Map(table?.columns.map((column, at) => [column, cells[at] ?? ''])));
}

function appOf(row: ReadonlyMap<string, string>): ProcessReading {
  const process: { [K in ProcessField]?: string } = { type: 'C' };
  for (const [column, value] of row) {
    const field = processPlaces.get(column);
    if (field !== undefined) process[field] = value;
  }
  return process;
}

type Versions = Pick<Reading, 'driver' | 'cuda'>;

/** Driver 610 says "Deprecated" where its version was, and has new names for both. */
function versionsIn(said: (label: string) => string | undefined): Versions {
  return {
    driver: driverVersion(said('KMD')) ?? driverVersion(said('Driver')),
    cuda: cudaVersion(said('CUDA UMD')) ?? cudaVersion(said('CUDA')),
  };
}

/** Whether `nvidia-smi --version` is in the text. */
export function looksLikeVersions(text: string): boolean {
  return /^[ \t]{0,8}NVIDIA-SMI version\s{0,20}:/im.test(text);
}

export function readVersions(text: string): Versions {
  return versionsIn((label) => new RegExp(`^\\s{0,8}${label} version\\s{0,20}:(.{0,80})$`, 'im').exec(text)?.[1]);
}

/** Whether the table of `nvidia-smi` alone is in the text. */
export function looksLikeTable(text: string): boolean {
  return /^\| NVIDIA-SMI \S/m.test(text);
}

/** The head of the table; the rest of it is cut to fit and never read. */
export function readTableHead(text: string): Versions {
  const head = /^\| NVIDIA-SMI \S.{0,200}$/m.exec(text)?.[0] ?? '';
  return versionsIn((label) => new RegExp(`${label} Version:(.{0,60})`).exec(head)?.[1]);
}
