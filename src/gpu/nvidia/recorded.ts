/** Saved outputs of `nvidia-smi -q -x` and `-L`, identified by their content, and the host that they describe. */
import { clip, finding } from '../finding.ts';
import { type GpuFinding, type Inventory, noGpus } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { recorded } from '../run.ts';
import { failuresIn } from './failures.ts';
import { looksLikeList, readList } from './list.ts';
import { nvidiaInventory } from './nvidia.ts';
import { nothingRead, type Reading } from './reading.ts';
import { driverVersion, gpuUuid, nvidiaText } from './values.ts';
import { calmNames, cutOut, looksLikeXml, readXml } from './xml.ts';

interface Piece {
  /** `complaint`: an error instead of an answer. */
  readonly kind: 'xml' | 'list' | 'complaint';
  readonly text: string;
  readonly reading: Reading;
}

/** Never throws. `instead`: what it contains instead of devices, for a message; null when there are pieces, or it is unknown. */
export function readRecorded(text: string): { readonly pieces: readonly Piece[]; readonly instead: string | null } {
  const pieces = piecesOf(text);
  return { pieces, instead: pieces.length > 0 ? null : (others.find(([pattern]) => pattern.test(text))?.[1] ?? null) };
}

function piecesOf(text: string): Piece[] {
  // Each GPU may have been queried separately, one document after the other.
  const chunks = Map.groupBy(calmNames(text).split(/(?<=<\/nvidia_smi_log>)/), looksLikeXml);
  const documents = chunks.get(true) ?? [];
  const rest = [...documents.map((chunk) => cutOut(chunk).rest), ...(chunks.get(false) ?? [])].join('\n');
  const all = documents.map((chunk): Piece => ({ kind: 'xml', text: chunk, reading: readXml(chunk) }));
  if (looksLikeList(rest)) all.push({ kind: 'list', text: rest, reading: readList(rest) });
  // A warning alone may be of any tool.
  if (all.length > 0 || failuresIn(rest).every(({ code }) => code === 'tool-warning')) return all;
  return [{ kind: 'complaint', text: rest, reading: nothingRead }];
}

const others: readonly (readonly [RegExp, string])[] = [
  [
    /^(?:[a-z_.]{2,60}(?: \[[^\]\n]{1,20}\])?, ?){1,200}(?:[a-z_.]{2,60})(?: \[[^\]\n]{1,20}\])?\s*$|^\d{1,3}, ?(?:NVIDIA|Tesla|GeForce|Quadro|GPU-)[^\n]*$/m,
    'values of "nvidia-smi --query-gpu" as CSV, which do not say enough about a card',
  ],
  [
    /^(?:.{0,80}kernel: |\[[^\]\n]{1,60}\] {0,2})?(?:\[[ \d.]{1,20}\] )?(?:NVRM|nvidia|nouveau)\b.{0,60}: |^\[ *\d{1,10}\.\d{6}\] /m,
    'a kernel log, which lists no devices',
  ],
  [
    /NVSMI LOG=|NVIDIA-SMI (?:version|\d)|NVIDIA System Management Interface|(?:GPU|Compute) instances?\b|MIG Mode\b/i,
    'an output of nvidia-smi that onejob does not read',
  ],
];

interface FilePieces {
  readonly name: string;
  readonly pieces: readonly Piece[];
}

export const howToRecord = 'Record "nvidia-smi -q -x > gpus.xml" and "nvidia-smi -L > gpus.txt" and pass the folder.';

/** The last output of each kind counts. */
export function recordedHost(files: readonly FilePieces[]): Inventory {
  const different = severalHosts(files);
  if (different !== null) return { ...noGpus, complete: false, findings: [different] };
  const pieces = files.flatMap((file) => file.pieces);
  const of = (kind: Piece['kind']) => pieces.filter((piece) => piece.kind === kind);
  const lists = of('list');
  // Other commands repeat the lines of GPUs, but not those of MIG instances.
  const list = lists.findLast((piece) => /^[ \t]*MIG /m.test(piece.text)) ?? lists.at(-1);
  return nvidiaInventory({
    xml: [...documents(of('xml')), ...of('complaint')].map((piece) => recorded(piece.text)),
    list: list === undefined ? null : recorded(list.text),
  });
}

/** The last document, or all of them, later ones first, when each contains only some of the GPUs. */
function documents(pieces: readonly Piece[]): readonly Piece[] {
  const last = pieces.at(-1);
  if (last === undefined || pieces.length === 1) return pieces;
  return isPart(last.reading) ? pieces.toReversed() : [last];
}

function isPart({ attached, gpus }: Reading): boolean {
  return attached !== null && gpus.length < attached;
}

/** What identifies the host of a file. */
interface Trace {
  readonly name: string;
  readonly drivers: ReadonlySet<string>;
  /** PCI address and model by UUID, null where missing. */
  readonly gpus: ReadonlyMap<string, { readonly pciId: string | null; readonly model: string | null }>;
  /** Whether it contains only some of the GPUs. */
  readonly isPart: boolean;
}

/** A finding when the files cannot be from one host at one time. */
function severalHosts(files: readonly FilePieces[]): GpuFinding | null {
  const traces = files.map(traceOf).filter((trace) => trace.drivers.size > 0 || trace.gpus.size > 0);
  const differ = traces.some((one, at) => traces.slice(at + 1).some((other) => !canBeOne(one, other)));
  if (!differ) return null;
  const words = traces.slice(0, 6).map(({ name, drivers, gpus }) => {
    const count = gpus.size === 0 ? [] : [`${gpus.size} GPU${gpus.size === 1 ? '' : 's'}`];
    return `${clip(name)} (${[...[...drivers].map((driver) => `driver ${driver}`), ...count].join(', ')})`;
  });
  const more = traces.length > 6 ? ` and ${traces.length - 6} more` : '';
  const message = `These are recordings of different hosts or times: ${words.join(', ')}${more}.`;
  return finding('error', 'several-hosts', 'host', message, 'Pass one of them, or a folder with recordings of one host.');
}

function canBeOne(one: Trace, other: Trace): boolean {
  if (one.drivers.size > 0 && other.drivers.size > 0 && one.drivers.isDisjointFrom(other.drivers)) return false;
  if (one.gpus.size === 0 || other.gpus.size === 0) return true;
  const shared = [...one.gpus].filter(([uuid]) => other.gpus.has(uuid));
  // Queried one by one, each contains another GPU of the same host.
  if (shared.length === 0) return one.isPart && other.isPart;
  const fits = (a: string | null, b: string | null | undefined) => a === null || b == null || a === b;
  return shared.every(([uuid, { pciId, model }]) => {
    const same = other.gpus.get(uuid);
    return fits(pciId, same?.pciId) && fits(model, same?.model);
  });
}

function traceOf({ name, pieces }: FilePieces): Trace {
  const readings = pieces.map((piece) => piece.reading);
  const gpus = new Map<string, { pciId: string | null; model: string | null }>();
  for (const { facts } of readings.flatMap((reading) => reading.gpus)) {
    const uuid = gpuUuid(facts.uuid);
    if (uuid === null) continue;
    const known = gpus.get(uuid);
    const pciId = normalPci(nvidiaText(facts.pciId) ?? '');
    gpus.set(uuid, { pciId: pciId ?? known?.pciId ?? null, model: nvidiaText(facts.model) ?? known?.model ?? null });
  }
  const listing = readings.filter((reading) => reading.gpus.length > 0);
  return {
    name,
    drivers: new Set(readings.flatMap((reading) => driverVersion(reading.driver) ?? [])),
    gpus,
    isPart: listing.length > 0 && listing.every(isPart),
  };
}
