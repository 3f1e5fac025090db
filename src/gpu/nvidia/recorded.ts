/**
 * What there is of NVIDIA's tools in texts that somebody saved, and the host of which they all are. Known by content, not by the
 * name of the file; a whole session with several commands is taken apart at its prompts.
 */
import { clip, finding, withFindings } from '../finding.ts';
import { type GpuFinding, type Inventory, noGpus } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import { recorded } from '../run.ts';
import {
  looksLikeCsv,
  looksLikeQueryText,
  looksLikeRows,
  looksLikeTable,
  looksLikeVersions,
  readCsv,
  readQueryText,
  readTableHead,
  readVersions,
} from './by-hand.ts';
import { failuresIn } from './failures.ts';
import { looksLikeLspci, looksLikeProcGpu, readLspci, readProcVersion } from './files.ts';
import { looksLikeList, readList } from './list.ts';
import { nvidiaInventory } from './nvidia.ts';
import { nothingRead, type Reading } from './reading.ts';
import { driverVersion, gpuUuid, said } from './values.ts';
import { calmNames, cutOut, looksLikeXml, readXml } from './xml.ts';

/** `complaint`: an error in the place of an answer. */
type PieceKind = 'xml' | 'text' | 'list' | 'csv' | 'version' | 'table' | 'procVersion' | 'procGpu' | 'lspci' | 'complaint';

interface Piece {
  readonly kind: PieceKind;
  readonly text: string;
  /** What the tool was asked, where a prompt shows it. */
  readonly args: readonly string[];
  readonly reading: Reading;
}

export interface Recorded {
  readonly pieces: readonly Piece[];
  /** What it holds instead of devices, as the end of "… holds"; null when there are pieces, or nobody knows. */
  readonly instead: string | null;
}

/** Never throws. */
export function readRecorded(text: string): Recorded {
  const sections = sectionsOf(text);
  const pieces = sections.flatMap((section) => (section.isAside ? [] : piecesOf(section.lines.join('\n'), section.args)));
  if (pieces.length > 0) return { pieces, instead: null };
  const isAside = sections.some((section) => section.isAside);
  return { pieces, instead: insteadOf(text) ?? (isAside ? aside : null) };
}

const aside = 'answers of nvidia-smi that list no devices (help, topology, monitoring or the like)';

interface Section {
  readonly lines: string[];
  readonly args: readonly string[];
  /** The answer to a command that lists no GPUs, though it may look as if. */
  readonly isAside: boolean;
}

/** `$ nvidia-smi -L`, `# $ nvidia-smi -L`, `root@host:~# nvidia-smi -L`, and other commands behind a clear prompt. */
const prompt =
  /^(?:.{0,80}?[$#%>] {1,4}(?:sudo )?(?:\S{0,80}\/)?nvidia-smi\b(.{0,20000})|(?:# )?\$ \S.{0,400}|\S{1,40}@\S{1,60}[$#] \S.{0,400})$/;

const asideCommand =
  /(?:^|\s)(?:-h|--help\S*|topo|nvlink|mig|dmon|pmon|stats|c2c|vgpu|drain|replay|-r|--gpu-reset|-pm|-mig|--query-(?!gpu|compute-apps)\S*)(?:\s|=|$)/;

function sectionsOf(text: string): Section[] {
  const sections: Section[] = [{ lines: [], args: [], isAside: false }];
  for (const line of text.split('\n')) {
    const match = prompt.exec(line.trimEnd());
    const asked = match?.[1] ?? '';
    if (match === null) sections.at(-1)?.lines.push(line);
    else sections.push({ lines: [], args: asked.trim().split(/\s+/), isAside: asideCommand.test(asked) });
  }
  return sections;
}

type Reader = (text: string, args: readonly string[]) => Partial<Reading>;

/** How each kind but XML is known, and what can be read of it without the others. */
const forms: readonly (readonly [PieceKind, (text: string) => boolean, Reader])[] = [
  ['text', looksLikeQueryText, readQueryText],
  ['list', looksLikeList, readList],
  ['csv', looksLikeCsv, readCsv],
  ['version', looksLikeVersions, readVersions],
  ['table', looksLikeTable, readTableHead],
  ['procVersion', (text) => /^NVRM version:/m.test(text), (text) => ({ driver: readProcVersion(text) })],
  ['procGpu', looksLikeProcGpu, () => ({})],
  ['lspci', looksLikeLspci, () => ({})],
];

function piecesOf(text: string, args: readonly string[]): Piece[] {
  // Each GPU may have been asked by itself, one document after the other.
  const chunks = Map.groupBy(calmNames(text).split(/(?<=<\/nvidia_smi_log>)/), looksLikeXml);
  const documents = chunks.get(true) ?? [];
  const rest = [...documents.map((chunk) => cutOut(chunk).rest), ...(chunks.get(false) ?? [])].join('\n');
  const found = [
    ...documents.map((chunk): Piece => ({ kind: 'xml', text: chunk, args, reading: readXml(chunk) })),
    ...forms.flatMap(([kind, isKnown, read]): Piece[] =>
      isKnown(rest) ? [{ kind, text: rest, args, reading: { ...nothingRead, ...read(rest, args) } }] : [],
    ),
  ];
  if (found.length > 0 || failuresIn(rest).length === 0) return found;
  return [{ kind: 'complaint', text: rest, args, reading: nothingRead }];
}

const others: readonly (readonly [RegExp, string])[] = [
  [
    /^List of valid properties to query|^NVIDIA System Management Interface -- v/m,
    'a help text of nvidia-smi, which lists no devices',
  ],
  [
    /^(?:Successfully created|Unable to create a) (?:GPU|compute) instance|^(?:Enabled|Disabled) MIG Mode|MIG mode is in pending/im,
    'the answer to a change of MIG, which lists no devices',
  ],
  [/(?:GPU|Compute) instances? ?(?:profiles)?:/, 'what MIG could be or is split into, without the UUIDs of the devices'],
  [
    /was successfully reset|could not be reset|is currently in use by another process/,
    'the answer to a GPU reset, which lists no devices',
  ],
  [
    /could not select device driver|nvidia-container-cli:|OCI runtime create failed/,
    'an error of Docker or of the NVIDIA container toolkit, which lists no devices',
  ],
  [/^DeviceFileMinor:/m, 'the rights of a device file, which name no device'],
  [/"nvidia\.com\/(?:gpu|mig|cuda)/, 'labels of a Kubernetes node, without the UUIDs of the devices'],
  [
    /^(?:.{0,80}kernel: |\[[^\]\n]{1,60}\] {0,2})?(?:\[[ \d.]{1,20}\] )?(?:NVRM|nvidia|nouveau)\b.{0,60}: |^\[ *\d{1,10}\.\d{6}\] /m,
    'a kernel log, which lists no devices',
  ],
];

function insteadOf(text: string): string | null {
  const known = others.find(([pattern]) => pattern.test(text))?.[1];
  if (known !== undefined) return known;
  return looksLikeRows(text) ? 'rows of "nvidia-smi --query-gpu" without their header, which nobody can read with certainty' : null;
}

export interface FilePieces {
  readonly name: string;
  readonly pieces: readonly Piece[];
}

/** What to type for a recording that has all that onejob reads. */
export const howToRecord = 'Record "nvidia-smi -q -x > gpus.xml" and "nvidia-smi -L > gpus.txt" and give the folder.';

/** Files in the order in which they were made, if that is known: of several outputs of a kind the last one counts. */
export function recordedHost(files: readonly FilePieces[]): Inventory {
  const different = severalHosts(files);
  if (different !== null) return { ...noGpus, complete: false, findings: [different] };
  const pieces = files.flatMap((file) => file.pieces);
  const of = (...kinds: readonly PieceKind[]) => pieces.filter((piece) => kinds.includes(piece.kind));
  const replies = (some: readonly Piece[]) => some.map((piece) => recorded(piece.text, piece.args));
  const onBus = of('lspci').flatMap((piece) => readLspci(piece.text));
  const [lists, gpuTables] = [of('list'), of('csv').filter(({ reading }) => reading.gpus.length > 0)];
  const appTables = of('csv').filter(({ reading }) => reading.apps !== null);
  // Other commands repeat the lines of GPUs, but not those of MIG instances.
  const list = lists.findLast((piece) => /^[ \t]*MIG /m.test(piece.text)) ?? lists.at(-1);
  const found = nvidiaInventory({
    xml: replies([...documents(of('xml')), ...of('complaint')]),
    text: replies(of('text')).at(-1) ?? null,
    list: replies(list === undefined ? [] : [list]),
    csv: replies([...gpuTables.slice(-1), ...appTables.slice(-1)]),
    version: replies(of('version', 'table')).at(-1) ?? null,
    procVersion: of('procVersion').at(-1)?.text ?? null,
    procGpus: of('procGpu').map((piece) => piece.text),
    pciIds: onBus.length === 0 ? null : onBus,
  });
  const hasDevices = of('xml', 'text', 'list', 'complaint').length + gpuTables.length > 0;
  return hasDevices ? found : withFindings(found, [emptyFinding(files)], false);
}

/** The last document, or all of them when each has some of the GPUs only; later ones first. */
function documents(pieces: readonly Piece[]): readonly Piece[] {
  const last = pieces.at(-1);
  if (last === undefined || pieces.length === 1) return pieces;
  return isPart(last.reading) ? pieces.toReversed() : [last];
}

function isPart({ attached, gpus }: Reading): boolean {
  return attached !== null && gpus.length < attached;
}

function emptyFinding(files: readonly FilePieces[]): GpuFinding {
  const kinds = new Set(files.flatMap((file) => file.pieces.map((piece) => piece.kind)));
  const names = clip(files.map((file) => file.name).join(', '));
  const error = (message: string) => finding('error', 'recording-incomplete', 'host', message, howToRecord);
  if (kinds.has('procGpu')) return error(`The driver's own files in ${names} name the GPUs, but say nothing of their health.`);
  const cannot = `The GPUs cannot be read from ${names}:`;
  if (kinds.has('table')) {
    return error(`${cannot} of the table of nvidia-smi only the versions are read, since it cuts names and has no UUIDs.`);
  }
  if (kinds.has('csv')) return error(`${cannot} there are no rows of GPUs.`);
  return error(kinds.has('lspci') ? `${cannot} a list of the PCI bus has no UUIDs.` : `${cannot} only versions are said.`);
}

interface Trace {
  readonly name: string;
  readonly drivers: ReadonlySet<string>;
  /** PCI address and model of each UUID, null where that is not said. */
  readonly gpus: ReadonlyMap<string, { readonly pciId: string | null; readonly model: string | null }>;
  readonly isPart: boolean;
}

/** A finding when the files cannot be of one host at one time; null when they can. */
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
  return finding('error', 'several-hosts', 'host', message, 'Give one of them, or a folder with those of one host.');
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
  const readings = pieces.map((piece) => piece.reading);
  const gpus = new Map<string, { pciId: string | null; model: string | null }>();
  for (const { facts } of readings.flatMap((reading) => reading.gpus)) {
    const uuid = gpuUuid(facts.uuid);
    if (uuid === null) continue;
    const known = gpus.get(uuid);
    const pciId = normalPci(said(facts.pciId) ?? '');
    gpus.set(uuid, { pciId: pciId ?? known?.pciId ?? null, model: said(facts.model) ?? known?.model ?? null });
  }
  const listing = readings.filter((reading) => reading.gpus.length > 0);
  return {
    name,
    drivers: new Set(readings.flatMap((reading) => driverVersion(reading.driver) ?? [])),
    gpus,
    isPart: listing.length > 0 && listing.every(isPart),
  };
}
