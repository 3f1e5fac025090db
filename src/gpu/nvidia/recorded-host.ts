/** Files that were recorded on one host as that host; and whether they can be of one host at all. */

import { clip, finding } from '../finding.ts';
import type { GpuFinding, Inventory } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { type Reply, recorded } from '../reply.ts';
import { readCsv } from './csv.ts';
import { readLspci } from './files.ts';
import { readList } from './list.ts';
import { nvidiaInventory } from './nvidia.ts';
import { readQueryText } from './query-text.ts';
import type { Reading } from './reading.ts';
import type { Piece, PieceKind } from './recorded.ts';
import { driverVersion, gpuUuid, said } from './values.ts';
import { looksLikeTable, readProcVersion, readTableHead, readVersions } from './versions.ts';
import { readXml } from './xml.ts';

export interface FilePieces {
  readonly name: string;
  readonly pieces: readonly Piece[];
}

/** What to type for a recording that has all that onejob reads. */
export const howToRecord = 'Record "nvidia-smi -q -x > gpus.xml" and "nvidia-smi -L > gpus.txt" and give the folder.';

/** Files in the order in which they were made, if that is known: of several outputs of a kind the last one counts. */
export function recordedHost(files: readonly FilePieces[]): Inventory {
  const different = severalHosts(files);
  if (different !== null) return { complete: false, driver: null, cuda: null, cudaFrom: null, devices: [], findings: [different] };
  const pieces = files.flatMap((file) => file.pieces);
  const of = (kind: PieceKind) => pieces.filter((piece) => piece.kind === kind);
  const reply = (piece: Piece): Reply => recorded(piece.text, piece.args);
  const last = (kind: PieceKind) => of(kind).slice(-1).map(reply);
  const onBus = of('lspci').flatMap((piece) => readLspci(piece.text));
  const hasDevices =
    ['xml', 'text', 'list', 'complaint'].some((kind) => of(kind as PieceKind).length > 0) || gpuTables(of('csv')).length > 0;
  const complaints = of('complaint').map(reply);
  const found = nvidiaInventory({
    xml: [...documents(of('xml')).map(reply), ...complaints],
    text: last('text')[0] ?? null,
    // Other commands repeat the lines of GPUs, but not those of MIG instances.
    list: (of('list').findLast((piece) => /^[ \t]*MIG /m.test(piece.text)) === undefined
      ? of('list')
      : of('list').filter((piece) => /^[ \t]*MIG /m.test(piece.text))
    )
      .slice(-1)
      .map(reply),
    csv: [...gpuTables(of('csv')).slice(-1), ...appTables(of('csv')).slice(-1)].map(reply),
    version: last('version')[0] ?? null,
    procVersion: of('procVersion').at(-1)?.text ?? null,
    procGpus: of('procGpu').map((piece) => piece.text),
    pciIds: onBus.length === 0 ? null : onBus,
  });
  return hasDevices ? found : { ...found, complete: false, findings: [...found.findings, emptyFinding(files)] };
}

/** The last document, or all of them when each has some of the GPUs only; later ones first. */
function documents(pieces: readonly Piece[]): readonly Piece[] {
  const last = pieces.at(-1);
  if (last === undefined || pieces.length === 1) return pieces;
  return isPart(readXml(last.text)) ? pieces.toReversed() : [last];
}

function isPart({ attached, gpus }: Reading): boolean {
  return attached !== null && gpus.length < attached;
}

function gpuTables(pieces: readonly Piece[]): readonly Piece[] {
  return pieces.filter((piece) => readCsv(piece.text, piece.args).gpus.length > 0);
}

function appTables(pieces: readonly Piece[]): readonly Piece[] {
  return pieces.filter((piece) => readCsv(piece.text, piece.args).apps !== null);
}

function emptyFinding(files: readonly FilePieces[]): GpuFinding {
  const pieces = files.flatMap((file) => file.pieces);
  const has = (kind: PieceKind) => pieces.some((piece) => piece.kind === kind);
  const names = clip(files.map((file) => file.name).join(', '));
  const error = (message: string) => finding('error', 'recording-incomplete', 'host', message, howToRecord);
  if (has('procGpu')) return error(`The driver's own files in ${names} name the GPUs, but say nothing of their health.`);
  const cannot = `The GPUs cannot be read from ${names}:`;
  if (pieces.some((piece) => piece.kind === 'version' && looksLikeTable(piece.text))) {
    return error(`${cannot} of the table of nvidia-smi only the versions are read, since it cuts names and has no UUIDs.`);
  }
  if (has('csv')) return error(`${cannot} there are no rows of GPUs.`);
  return error(has('lspci') ? `${cannot} a list of the PCI bus has no UUIDs.` : `${cannot} only versions are said.`);
}

interface Trace {
  readonly name: string;
  readonly drivers: ReadonlySet<string>;
  /** PCI address and model of each UUID, null where that is not said. */
  readonly gpus: ReadonlyMap<string, { readonly pciId: string | null; readonly model: string | null }>;
  readonly isPart: boolean;
}

/** A finding when the files cannot be of one host at one time; null when they can. */
export function severalHosts(files: readonly FilePieces[]): GpuFinding | null {
  const traces = files.map(traceOf).filter((trace) => trace.drivers.size > 0 || trace.gpus.size > 0);
  const differ = traces.some((one, at) => traces.slice(at + 1).some((other) => !canBeOne(one, other)));
  if (!differ) return null;
  const words = traces.slice(0, 6).map(({ name, drivers, gpus }) => {
    const about = [
      ...[...drivers].map((driver) => `driver ${driver}`),
      ...(gpus.size === 0 ? [] : [`${gpus.size} GPU${gpus.size === 1 ? '' : 's'}`]),
    ];
    return `${clip(name)} (${about.join(', ')})`;
  });
  const more = traces.length > 6 ? ` and ${traces.length - 6} more` : '';
  return finding(
    'error',
    'several-hosts',
    'host',
    `These are recordings of different hosts or times: ${words.join(', ')}${more}.`,
    'Give one of them, or a folder with those of one host.',
  );
}

function canBeOne(one: Trace, other: Trace): boolean {
  if (one.drivers.size > 0 && other.drivers.size > 0 && one.drivers.isDisjointFrom(other.drivers)) return false;
  if (one.gpus.size === 0 || other.gpus.size === 0) return true;
  const shared = [...one.gpus].flatMap(([uuid, gpu]) => {
    const same = other.gpus.get(uuid);
    return same === undefined ? [] : [[gpu, same] as const];
  });
  // Asked one by one, each names another GPU of the same host.
  if (shared.length === 0) return one.isPart && other.isPart;
  const fits = (a: string | null, b: string | null) => a === null || b === null || a === b;
  return shared.every(([a, b]) => fits(a.pciId, b.pciId) && fits(a.model, b.model));
}

function traceOf({ name, pieces }: FilePieces): Trace {
  const drivers = new Set<string>();
  const gpus = new Map<string, { pciId: string | null; model: string | null }>();
  const parts: boolean[] = [];
  for (const piece of pieces) {
    const reading = readingOf(piece);
    const { driver } = piece.kind === 'version' ? readVersions(piece.text) : { driver: null };
    const table = piece.kind === 'version' ? readTableHead(piece.text).driver : null;
    const module = piece.kind === 'procVersion' ? readProcVersion(piece.text) : null;
    for (const version of [driverVersion(reading?.driver), driver, table, module]) if (version !== null) drivers.add(version);
    for (const { facts } of reading?.gpus ?? []) {
      const uuid = gpuUuid(facts.uuid);
      const known = gpus.get(uuid ?? '');
      if (uuid === null) continue;
      const pciId = normalPci(said(facts.pciId) ?? '');
      gpus.set(uuid, { pciId: pciId ?? known?.pciId ?? null, model: said(facts.model) ?? known?.model ?? null });
    }
    if (reading !== null && reading.gpus.length > 0) parts.push(isPart(reading));
  }
  return { name, drivers, gpus, isPart: parts.length > 0 && parts.every((part) => part) };
}

function readingOf({ kind, text, args }: Piece): Reading | null {
  if (kind === 'xml') return readXml(text);
  if (kind === 'text') return readQueryText(text);
  if (kind === 'list') return readList(text);
  return kind === 'csv' ? readCsv(text, args) : null;
}
