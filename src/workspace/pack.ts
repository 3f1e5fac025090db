/**
 * Packs a folder, or some entries of it, as a tar stream, which becomes a job's workspace. Links are sent as links, wherever they
 * point, and never followed. A file that disappears, shrinks or grows while it is read causes a warning, never a broken tar. Memory
 * holds a part of one file at a time.
 */
import { constants, lstatSync, readFileSync, readlinkSync, type Stats } from 'node:fs';
import { open } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Pack, pack } from 'tar-stream';
import { codeOf, OnejobError } from '../base/errors.ts';
import { formatBytes } from '../base/units.ts';
import { workspaceLimit } from '../contract/workspace-limit.ts';
import { systemClock } from '../system/system-clock.ts';
import { asName, listWorkspace, unreadableFolder } from './list.ts';
import { timeOf } from './tar-time.ts';

/** A file, a link, or a folder with one in it. */
export interface Entry {
  readonly path: string;
  readonly isFolder: boolean;
  /** Bytes of its content, and about those that it has in a tar. */
  readonly size: number;
  readonly tarSize: number;
  /** Differs when it was changed, as a row of Git's index; ms since the epoch of the last change. From before it is read. */
  readonly stamp: string;
  readonly changed: number;
}

export interface ListedWorkspace {
  readonly top: string;
  /** In the order of the tar. */
  readonly entries: readonly Entry[];
  /** About those of the tar. */
  readonly bytes: number;
  /** When listing began, ms since the epoch. */
  readonly at: number;
}

export interface PackedWorkspace extends ListedWorkspace {
  /** How many files, folders and links it has. */
  readonly files: number;
  /** Destroy it to stop; nothing stays open. It reads nothing before it is read. */
  readonly stream: Readable;
}

type Warn = (line: string) => void;

/** Files up to this size are read at once. */
const small = 256 * 1024;
const record = 512;

/** Lists a folder and starts to pack it. Throws and warns as `listEntries`. */
export async function packWorkspace(folder: string, { warn = () => {} }: { readonly warn?: Warn } = {}): Promise<PackedWorkspace> {
  const listed = await listEntries(folder, warn);
  const files = listed.entries.filter(({ isFolder }) => !isFolder).length;
  return { ...listed, files, stream: packEntries(listed.top, listed.entries, warn) };
}

/**
 * What a workspace consists of. `warn` receives a sentence for everything that is not sent as it is, also from `packEntries`.
 * @throws OnejobError E_WORKSPACE_READ, E_WORKSPACE_TOO_LARGE
 */
async function listEntries(folder: string, warn: Warn): Promise<ListedWorkspace> {
  const at = systemClock.wall();
  const top = resolve(folder);
  const { paths, seen, git, warnings } = await listWorkspace(top);
  for (const warning of warnings) warn(warning);
  const entries: Entry[] = [];
  const folders = new Set<string>();
  for (const path of paths) {
    const entry = entryOf(top, path, false, warn, seen.get(path));
    if (entry === null) continue;
    // Unpacking creates unnamed folders as root, and the agent's user could not write to them.
    for (const folder of newFoldersOf(path, folders)) {
      const entry = entryOf(top, folder, true, () => {});
      if (entry !== null) entries.push(entry);
    }
    entries.push(entry);
  }
  const bytes = entries.reduce((sum, { tarSize }) => sum + tarSize, 2 * record);
  if (bytes > workspaceLimit) throw tooLarge(top, bytes, entries, git);
  return { top, entries, bytes, at };
}

function entryOf(top: string, path: string, isFolder: boolean, warn: Warn, seen?: Stats): Entry | null {
  let stats = seen;
  try {
    stats ??= lstatSync(join(top, path), { throwIfNoEntry: false });
  } catch (error) {
    if (!skippable.has(codeOf(error))) throw unreadableFolder(join(top, path), error);
    warn(`Skipped ${path}: ${codeOf(error)}.`);
  }
  if (stats === undefined) return null;
  const { ino, mode, mtimeMs, ctimeMs } = stats;
  const size = stats.isFile() ? stats.size : 0;
  // Times are exact to less than a microsecond.
  const stamp = `${ino} ${mode} ${stats.size} ${mtimeMs} ${ctimeMs}`;
  const changed = Math.max(mtimeMs, ctimeMs);
  return { path, isFolder, size, tarSize: tarSize(path, size), stamp, changed };
}

function tarSize(path: string, size: number): number {
  // A long name takes its own header.
  const heads = Buffer.byteLength(path) > 100 ? 4 : 1;
  return heads * record + Math.ceil(size / record) * record;
}

/** From which byte of the tar to before which an entry is; `null`: the end mark, after all of them. */
export type Placed = (entry: Entry | null, from: number, to: number) => void;

export function packEntries(top: string, entries: readonly Entry[], warn: Warn, placed: Placed = () => {}): Readable {
  return Readable.from(chunks(top, entries, warn, placed), { objectMode: false });
}

/** The tar's bytes. The packer handles one entry at a time, so its buffer never exceeds that entry. */
async function* chunks(top: string, entries: readonly Entry[], warn: Warn, placed: Placed): AsyncGenerator<Buffer> {
  const tar = pack();
  // A failure destroys the packer, so reading from it fails with the same error.
  feed(tar, top, entries, warn, placed).catch((error) => tar.destroy(error));
  yield* tar as AsyncIterable<Buffer>;
}

async function feed(tar: Pack, top: string, entries: readonly Entry[], warn: Warn, placed: Placed): Promise<void> {
  const push = tar.push.bind(tar);
  let end = 0;
  tar.push = (piece: Buffer | null) => {
    end += piece?.length ?? 0;
    return push(piece);
  };
  for (const entry of entries) {
    const { path, isFolder } = entry;
    if (tar.destroyed) return;
    const from = end;
    try {
      if (isFolder) await addFolder(tar, path, join(top, path));
      else await add(tar, path, join(top, path), warn);
      if (end > from) placed(entry, from, end);
    } catch (error) {
      const code = codeOf(error);
      if (!skippable.has(code)) throw code === '' ? error : unreadableFolder(join(top, path), error);
      // What is in it says so.
      if (isFolder) continue;
      warn(code === 'ENOENT' ? `Skipped ${path}: it disappeared while the workspace was sent.` : `Skipped ${path}: ${code}.`);
    }
  }
  const from = end;
  tar.finalize();
  placed(null, from, end);
}

// ELOOP: a link took the place of a file. ENXIO: a socket or pipe did.
const skippable = new Set(['ENOENT', 'ENOTDIR', 'EACCES', 'EPERM', 'ELOOP', 'ENXIO', 'EINVAL', 'EISDIR']);

/** The folders of `path` that are not in `known`, outermost first. They are added to it. */
function newFoldersOf(path: string, known: Set<string>): string[] {
  const found: string[] = [];
  for (let at = path.lastIndexOf('/'); at > 0; at = path.lastIndexOf('/', at - 1)) {
    const folder = path.slice(0, at);
    if (known.has(folder)) break;
    known.add(folder);
    found.unshift(folder);
  }
  return found;
}

async function addFolder(tar: Pack, path: string, absolute: string): Promise<void> {
  const stats = lstatSync(absolute);
  const head = headOf(path, stats);
  // Unpacking needs folders that their owner can write to.
  if (stats.isDirectory()) await entry(tar, { ...head, type: 'directory', mode: head.mode | 0o700 });
}

async function add(tar: Pack, path: string, absolute: string, warn: Warn): Promise<void> {
  const stats = lstatSync(absolute);
  if (stats.isSymbolicLink()) {
    const to = readlinkSync(absolute, 'buffer');
    const linkname = asName(to);
    if (linkname === null) warn(`Skipped ${path}: it links to ${JSON.stringify(to.toString('latin1'))}, which is not UTF-8.`);
    else await entry(tar, { ...headOf(path, stats), type: 'symlink', linkname });
  } else if (!stats.isFile()) {
    if (!stats.isDirectory()) warn(`Skipped ${path}: it is neither a file nor a link.`);
  } else if (stats.size <= small) {
    const content = readFileSync(absolute, { flag: constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK });
    await entry(tar, { ...headOf(path, stats), type: 'file', size: content.length }, content);
  } else await addLarge(tar, path, absolute, warn);
}

async function addLarge(tar: Pack, path: string, absolute: string, warn: Warn): Promise<void> {
  await using file = await open(absolute, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const stats = await file.stat();
  const sink = tar.entry({ ...headOf(path, stats), type: 'file', size: stats.size });
  await pipeline(async function* () {
    let left = stats.size;
    while (left > 0) {
      const buffer = Buffer.allocUnsafe(Math.min(small, left));
      const { bytesRead } = await file.read(buffer, 0, buffer.length);
      if (bytesRead === 0) break;
      yield buffer.subarray(0, bytesRead);
      left -= bytesRead;
    }
    if (left > 0) {
      warn(`${path} shrank while it was sent: its last ${left} bytes are zeros.`);
      for (; left > 0; left -= Math.min(small, left)) yield Buffer.alloc(Math.min(small, left));
    } else if ((await file.stat()).size > stats.size) {
      warn(`${path} grew while it was sent: only its first ${stats.size} bytes were sent.`);
    }
  }, sink);
}

function headOf(path: string, stats: Stats) {
  return { name: path, mode: stats.mode & 0o777, uid: 0, gid: 0, ...timeOf(Math.floor(stats.mtimeMs / 1000)) };
}

function entry(tar: Pack, head: Parameters<Pack['entry']>[0], content?: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = (error?: Error | null): void => (error ? reject(error) : resolve());
    if (content === undefined) tar.entry(head, done);
    else tar.entry(head, content, done);
  });
}

function tooLarge(top: string, bytes: number, all: readonly Entry[], git: boolean): OnejobError {
  const entries = all.filter(({ isFolder }) => !isFolder);
  const largest = entries.toSorted((a, b) => b.size - a.size).slice(0, 5);
  const named = largest.map(({ path, size }) => `${path} (${formatBytes(size)})`).join(', ');
  const message = `The workspace ${top} has ${formatBytes(bytes)} in ${entries.length} ${entries.length === 1 ? 'file' : 'files'}, but at most ${formatBytes(workspaceLimit)} can be sent. Largest: ${named}.`;
  const hint = `List what the job does not need in ${git ? '.gitignore' : '.onejobignore'}, mount data with --volume, give a smaller folder with --workspace, or use --no-workspace.`;
  return new OnejobError('E_WORKSPACE_TOO_LARGE', message, { hint });
}
