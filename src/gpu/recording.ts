/** Recordings of GPU tools instead of this host: files whose content tells the tool. A file of no tool gives a finding. */
import { createReadStream } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';
import { amdInventory, looksLikeAmd } from './amd/smi.ts';
import { clip, finding, ownWords, withFindings } from './finding.ts';
import { intelInventory, looksLikeIntel } from './intel/xpu-smi.ts';
import { type GpuFinding, type Inventory, mergeInventories } from './inventory.ts';
import { howToRecord, readRecorded, recordedHost } from './nvidia/recorded.ts';

interface RecordedFile {
  readonly name: string;
  readonly text: string;
}

/** 16 MiB: a host of eight GPUs prints less than half of one. */
const mostBytes = 2 ** 24;
const mostFiles = 200;

/** The host recorded in a file, a pipe, or a folder with its folders. @throws OnejobError E_USAGE when it cannot be read */
export async function readRecording(path: string): Promise<Inventory> {
  try {
    const isFolder = (await stat(path)).isDirectory();
    const files = isFolder ? await filesIn(path) : [path];
    const texts: RecordedFile[] = [];
    for (const file of files.slice(0, mostFiles))
      texts.push({ name: isFolder ? relative(path, file) : path, text: await readText(file) });
    const host = inventoryOf(texts);
    if (files.length <= mostFiles) return host;
    const message = `${clip(path)} has ${files.length} files; only the first ${mostFiles} were read.`;
    return withFindings(host, [finding('error', 'recording-too-large', 'host', message, howToRecord)], false);
  } catch (error) {
    const why = reasonOf(error);
    throw new OnejobError('E_USAGE', `Cannot read the recording "${path}": ${why}.`, {
      hint: 'Pass a file with the output of a tool, or a folder of such files.',
      cause: error,
    });
  }
}

function reasonOf(error: unknown): string {
  const code = codeOf(error);
  if (code === 'ENOENT' || code === 'ENOTDIR') return 'the file or folder does not exist';
  if (code === 'EACCES' || code === 'EPERM') return 'this user has no permission to read it';
  return messageOf(error);
}

/** The host that these files were recorded on. Never throws, whatever they contain. */
export function inventoryOf(files: readonly RecordedFile[]): Inventory {
  const known = files.map((file) => ({ ...file, ...readRecorded(file.text) }));
  const nvidia = known.filter((file) => file.pieces.length > 0);
  const [amd, intel] = [known.filter((file) => looksLikeAmd(file.text)), known.filter((file) => looksLikeIntel(file.text))];
  const textsOf = (some: readonly RecordedFile[]) => some.map((file) => file.text);
  const hosts = nvidia.length > 0 ? [recordedHost(nvidia)] : [];
  if (amd.length > 0) hosts.push(amdInventory(textsOf(amd)));
  if (intel.length > 0) hosts.push(intelInventory(textsOf(intel)));
  const host = mergeInventories(hosts);
  const used = new Set([...nvidia, ...amd, ...intel]);
  const level = host.devices.length > 0 ? 'warning' : 'error';
  const notes = known.filter((file) => !used.has(file)).map((file) => unusedFinding(level, file, file.instead, files.length === 1));
  if (files.length === 0) notes.push(finding('error', 'recording-unknown', 'host', 'The folder contains no files.', howToRecord));
  return {
    ...host,
    complete: used.size > 0 && host.complete,
    // Cleaned once more: a recording comes from a stranger, and goes to a terminal.
    findings: [...host.findings, ...notes].map((each) => finding(each.level, each.code, each.subject, each.message, each.hint)),
  };
}

/** A finding for a file without a report: what its tool printed instead, in its own words. */
function unusedFinding(level: GpuFinding['level'], file: RecordedFile, instead: string | null, isAlone: boolean): GpuFinding {
  const name = clip(file.name);
  if (instead !== null) return finding(level, 'recording-unused', 'host', `${name} contains ${instead}.`, howToRecord);
  const words = ownWords(file.text);
  if (words === null) return finding(level, 'tool-silent', 'host', `${name} is empty: the tool printed nothing.`, howToRecord);
  const tools = 'nvidia-smi, amd-smi, rocm-smi or xpu-smi';
  // Any file may lie in a folder, also a secret, and what is said here may be in a bug report tomorrow.
  const mayQuote = (isAlone || /gpu|smi|nvidia|rocm|xpu/i.test(file.name)) && !/AGE-SECRET-KEY|PRIVATE KEY/i.test(file.text);
  if (!mayQuote) return finding(level, 'recording-unused', 'host', `${name} has no report of ${tools}.`, howToRecord);
  const message = isAlone
    ? `The tool failed and printed no report of ${tools}, but: "${words}" (${name}).`
    : `${name} has no report of ${tools}, but: "${words}".`;
  return finding(level, 'tool-failed', 'host', message, `If a tool printed that, fix what it reports. ${howToRecord}`);
}

/** The plain files of a folder and of the folders in it, by name. */
async function filesIn(folder: string): Promise<string[]> {
  const names = (await readdir(folder)).sort();
  const files: string[] = [];
  for (const path of names.map((name) => join(folder, name))) {
    if (await isFile(path)) files.push(path);
    // An unreadable folder has nothing for us.
    const inner = await readdir(path).catch((): string[] => []);
    for (const each of inner.sort()) if (await isFile(join(path, each))) files.push(join(path, each));
  }
  return files;
}

async function isFile(path: string): Promise<boolean> {
  return (await stat(path).catch(() => null))?.isFile() === true;
}

/** The first 16 MiB; also of a pipe, so that `--from <(ssh host nvidia-smi -q -x)` works. Windows' tools write UTF-16. */
async function readText(path: string): Promise<string> {
  const bytes = await buffer(createReadStream(path, { end: mostBytes - 1 }));
  const isWide = bytes[0] === 0xff && bytes[1] === 0xfe;
  const text = bytes.toString(isWide ? 'utf16le' : 'utf8');
  return text.replace(/^\ufeff/, '').replaceAll('\r\n', '\n');
}
