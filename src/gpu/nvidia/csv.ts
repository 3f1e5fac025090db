/**
 * `nvidia-smi --query-gpu=…` and `--query-compute-apps=…` as CSV. The columns are told by the header row, or else by what was
 * asked; without either nothing is guessed. The tool quotes nothing, so a row with too few or too many cells is not read.
 */
import { csvPlaces, type GpuField, type ProcessField } from './fields.ts';
import { type GpuReading, nothingRead, type ProcessReading, type Reading } from './reading.ts';
import { driverVersion, isUsualUuid, newer, troubleIn } from './values.ts';

export interface CsvReading extends Reading {
  /** What `--query-compute-apps` listed, each with its GPU's UUID; null where that was not asked. */
  readonly apps: readonly ProcessReading[] | null;
}

/** Columns of other queries, whose rows are neither GPUs nor processes. */
const others = /^(retired_pages\.(address|cause)|max_memory_usage|gpu_util(ization)?|mem_util(ization)?|time)$/;

/** Columns that nothing is read from, and that show what kind of table this is all the same. */
const familiar =
  /^(timestamp|count|driver_version|kmd_version|gpu_serial|serial|(memory|utilization|temperature|power|clocks|fan|pci|ecc|mig)\.[\w.]+)$/;

/** The columns of a header row without their units; null when it is none. `next`: the line below. */
function headerOf(line: string, next: string): readonly string[] | null {
  const names = line.split(',').map((cell) => cell.trim().replace(/ \[[^\]]{1,12}\]$/, ''));
  if (!names.every((name) => /^[A-Za-z][\w.]{1,80}$/.test(name))) return null;
  const own = names.filter((name) => csvPlaces.gpu.has(name) || csvPlaces.process.has(name) || familiar.test(name));
  // One word alone is a header only above a UUID.
  const isTable = names.length > 1 || (/uuid$/.test(names[0] ?? '') && next.startsWith('GPU-'));
  return own.length > 0 && isTable ? names : null;
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

/** Never throws. `args` as they were given to the tool. */
export function readCsv(text: string, args: readonly string[] = []): CsvReading {
  const asked = askedFor(args);
  const tables: Table[] = asked === null ? [] : [{ columns: asked, rows: [] }];
  const rest: string[] = [];
  let whole = true;
  let ended = false;
  const lines = text.split('\n');
  for (const [at, raw] of lines.entries()) {
    const line = raw.trim();
    const table: Table | undefined = ended ? undefined : tables.at(-1);
    if (line === '') {
      // An empty line ends a table, but not before its first row: one recording has it below the header.
      ended = ended || (table?.rows.length ?? 0) > 0;
      continue;
    }
    const header = headerOf(line, lines[at + 1] ?? '');
    if (header !== null) ended = false;
    if (header !== null) tables.push({ columns: header, rows: [] });
    else if (table === undefined) rest.push(raw);
    else {
      const cells = cellsFor(
        line.split(',').map((cell) => cell.trim()),
        table.columns,
      );
      const uuid = cells?.at(-1) ?? '';
      const isCut = at === lines.length - 1 && /uuid$/.test(table.columns.at(-1) ?? '') && !isUsualUuid(uuid);
      if (cells !== null && !isCut) table.rows.push(cells);
      else {
        rest.push(raw);
        // A complaint between the rows is no torn row.
        if (line.includes(', ')) whole = false;
      }
    }
  }
  const ours = tables.filter(({ columns }) => !columns.some((name) => others.test(name)));
  // Of several in one recording the last is the state that holds.
  const gpus = ours.findLast(({ columns }) => !columns.includes('pid'));
  const apps = ours.findLast(({ columns }) => columns.includes('pid'));
  const rows = (gpus?.rows ?? []).map((cells) => named(gpus?.columns ?? [], cells));
  const [first] = rows;
  const count = first?.get('count') ?? '';
  return {
    ...nothingRead,
    driver: newer(driverVersion, first?.get('kmd_version'), first?.get('driver_version')),
    attached: /^\d{1,4}$/.test(count) ? Number(count) : null,
    gpus: rows.map(gpuOf),
    whole: whole && rows.length > 0,
    rest: rest.join('\n'),
    apps: apps === undefined ? null : apps.rows.map((cells) => appOf(named(apps.columns, cells))),
  };
}

function askedFor(args: readonly string[]): readonly string[] | null {
  const value = args.map((arg) => /^--query-(?:gpu|compute-apps)=(.+)$/.exec(arg)?.[1]).find((fields) => fields !== undefined);
  return value === undefined ? null : value.split(',').map((name) => name.trim());
}

/** Cells as many as columns; a process' name may hold commas. null when they do not fit. */
function cellsFor(cells: readonly string[], columns: readonly string[]): readonly string[] | null {
  if (cells.length === columns.length) return cells;
  const at = columns.indexOf('process_name');
  const more = cells.length - columns.length;
  if (at < 0 || more < 0) return null;
  return [...cells.slice(0, at), cells.slice(at, at + more + 1).join(', '), ...cells.slice(at + more + 1)];
}

function named(columns: readonly string[], cells: readonly string[]): ReadonlyMap<string, string> {
  return new Map(columns.map((column, at) => [column, cells[at] ?? '']));
}

function gpuOf(row: ReadonlyMap<string, string>): GpuReading {
  const facts: { [K in GpuField]?: string } = {};
  for (const [column, value] of row) {
    const field = csvPlaces.gpu.get(column);
    if (field !== undefined) facts[field] = value;
  }
  const trouble = [...row.values()].map(troubleIn).find((each) => each !== null) ?? null;
  return { facts, instances: [], processes: null, trouble, depth: 'columns' };
}

function appOf(row: ReadonlyMap<string, string>): ProcessReading {
  const process: { [K in ProcessField]?: string } = { type: 'C' };
  for (const [column, value] of row) {
    const field = csvPlaces.process.get(column);
    if (field !== undefined) process[field] = value;
  }
  return process;
}
