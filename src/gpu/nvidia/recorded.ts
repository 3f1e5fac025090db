/**
 * What there is of NVIDIA's tools in a text that somebody saved. Known by content, not by the name of the file; a whole session
 * with several commands is taken apart at its prompts.
 */
import { looksLikeCsv, looksLikeRows } from './csv.ts';
import { failuresIn } from './failures.ts';
import { looksLikeLspci, looksLikeProcGpu } from './files.ts';
import { looksLikeList } from './list.ts';
import { looksLikeQueryText } from './query-text.ts';
import { looksLikeTable, looksLikeVersions } from './versions.ts';
import { calmNames, cutOut, looksLikeXml } from './xml.ts';

/** `complaint`: an error in the place of an answer. */
export type PieceKind = 'xml' | 'text' | 'list' | 'csv' | 'version' | 'procVersion' | 'procGpu' | 'lspci' | 'complaint';

export interface Piece {
  readonly kind: PieceKind;
  readonly text: string;
  /** What the tool was asked, where a prompt shows it. */
  readonly args: readonly string[];
}

export interface Recorded {
  readonly pieces: readonly Piece[];
  /** What it holds instead of devices, as the end of "… holds"; null when there are pieces, or nobody knows. */
  readonly instead: string | null;
}

/** Never throws. */
export function readRecorded(text: string): Recorded {
  const sections = sectionsOf(text);
  const pieces = sections.flatMap((section) => (section.isAside ? [] : piecesOf(section.text, section.args)));
  if (pieces.length > 0) return { pieces, instead: null };
  const isAside = sections.some((section) => section.isAside);
  return { pieces, instead: insteadOf(text) ?? (isAside ? aside : null) };
}

const aside = 'answers of nvidia-smi that list no devices (help, topology, monitoring or the like)';

interface Section {
  readonly text: string;
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
  const sections: { lines: string[]; args: readonly string[]; isAside: boolean }[] = [{ lines: [], args: [], isAside: false }];
  for (const line of text.split('\n')) {
    const match = prompt.exec(line.trimEnd());
    const asked = match?.[1] ?? '';
    if (match === null) sections.at(-1)?.lines.push(line);
    else sections.push({ lines: [], args: asked.trim().split(/\s+/), isAside: asideCommand.test(asked) });
  }
  return sections.map(({ lines, args, isAside }) => ({ text: lines.join('\n'), args, isAside }));
}

function piecesOf(text: string, args: readonly string[]): Piece[] {
  const found: Piece[] = [];
  const add = (kind: PieceKind, when: boolean, of: string) => {
    if (when) found.push({ kind, text: of, args });
  };
  // Each GPU may have been asked by itself, one document after the other.
  const chunks = calmNames(text)
    .split(/(?<=<\/nvidia_smi_log>)/)
    .map((chunk) => ({ chunk, isXml: looksLikeXml(chunk) }));
  for (const { chunk, isXml } of chunks) add('xml', isXml, chunk);
  const rest = chunks.map(({ chunk, isXml }) => (isXml ? cutOut(chunk).rest : chunk)).join('\n');
  add('text', looksLikeQueryText(rest), rest);
  add('list', looksLikeList(rest), rest);
  add('csv', looksLikeCsv(rest), rest);
  add('version', looksLikeVersions(rest) || looksLikeTable(rest), rest);
  add('procVersion', /^NVRM version:/m.test(rest), rest);
  add('procGpu', looksLikeProcGpu(rest), rest);
  add('lspci', looksLikeLspci(rest), rest);
  add('complaint', found.length === 0 && failuresIn(rest).length > 0, rest);
  return found;
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
