/**
 * Unpacks artifacts into the current folder. A tar from a job, or from the daemon of another host, is not trusted: nothing is written
 * that was not asked for, nor outside the folder, nor through a link, whether the link existed before or came with the tar. Refused
 * entries are reported, the rest is kept.
 */
import { randomBytes } from 'node:crypto';
import { constants, linkSync, lstatSync, mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join, relative, resolve } from 'node:path';
import type { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { extract, type Header } from 'tar-stream';
import { codeOf, messageOf } from '../base/errors.ts';
import { lacksInodes } from '../system/disk-room.ts';

/**
 * Unpacks what is wanted of a tar stream below `folder`, and replaces files of the same name. `written`: paths of files relative to the folder, in the
 * tar's order; `folders`: those that were made. `refused`: entries that may not be written; `failed`: those that could not be, such
 * as on a full disk. Both say why, and the rest is written. Throws if the stream is cut off.
 */
export async function unpackArtifacts(from: Readable, folder: string, wanted: (path: string) => boolean) {
  const top = resolve(folder);
  const written: string[] = [];
  const progress: Progress = { top, files: new Set(), folders: new Set(), made: [] };
  const refused: { path: string; why: string }[] = [];
  const failed: { path: string; why: string }[] = [];
  const entries = extract();
  const read = pipeline(from, entries);
  read.catch(() => {});
  try {
    for await (const entry of entries) {
      const { header } = entry;
      const parts = safeParts(header.name);
      let why: string | null = null;
      try {
        if (parts === null) why = 'its name points outside the folder';
        else if (!isText(header)) why = 'its name is not UTF-8';
        else if (parts.length > 0) why = wanted(parts.join('/')) ? await write(progress, parts, entry) : 'nobody asked for it';
      } catch (error) {
        // The stream itself failed, not the disk.
        if (codeOf(error) === '' || entries.destroyed) throw error;
        const noInodes = codeOf(error) === 'ENOSPC' && lacksInodes(top);
        failed.push({ path: header.name, why: noInodes ? 'no inodes left on the disk ("df -i")' : reasonOf(error) });
        continue;
      } finally {
        entry.resume();
      }
      if (why !== null) refused.push({ path: header.name, why });
      else if (parts !== null && parts.length > 0 && header.type !== 'directory') written.push(parts.join('/'));
    }
    await read;
  } catch (error) {
    from.destroy();
    entries.destroy();
    await read.catch(() => {});
    throw error;
  }
  return { written, folders: progress.made, refused, failed };
}

/** The parts of a name inside the folder; empty for the folder itself, null for a name that leaves it. */
function safeParts(name: string): string[] | null {
  if (name.startsWith('/') || name.includes('\0')) return null;
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  return parts.includes('..') ? null : parts;
}

/** Bytes that are not UTF-8 arrive as this character, so several names would become one. */
function isText({ name, linkname }: Header): boolean {
  return !`${name}${linkname ?? ''}`.includes('\ufffd');
}

const reasons: Readonly<Record<string, string>> = {
  ENOSPC: 'no space left on the disk',
  EDQUOT: 'your disk quota is used up',
  EROFS: 'the file system is read-only',
  EACCES: 'permission denied',
  EPERM: 'permission denied',
  EMLINK: 'the file system allows no more hard links to its target',
  ENAMETOOLONG: 'the name is too long for the file system',
};

function reasonOf(error: unknown): string {
  return reasons[codeOf(error)] ?? messageOf(error);
}

interface Progress {
  readonly top: string;
  /** Files that came with the tar: the only valid targets of hard links. */
  readonly files: Set<string>;
  /** Folders that are not links. */
  readonly folders: Set<string>;
  /** Folders that were not there before, relative to `top`. */
  readonly made: string[];
}

const small = 256 * 1024;
const newFile = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;

type Entry = AsyncIterable<unknown> & { readonly header: Header };

/** Writes one entry; null, or why it was refused. */
async function write(progress: Progress, parts: readonly string[], entry: Entry): Promise<string | null> {
  const { top, files } = progress;
  const { header } = entry;
  // A git folder from a job could contain hooks that run here.
  if (parts.some((part) => part.toLowerCase() === '.git')) return 'it is inside a .git folder';
  const blocked = makeFolders(progress, header.type === 'directory' ? parts : parts.slice(0, -1));
  if (blocked !== null) return blocked;
  if (header.type === 'directory') return null;
  const name = parts.join('/');
  const path = join(top, name);
  if (lstatSync(path, { throwIfNoEntry: false })?.isDirectory() === true) return 'a directory with that name exists';
  // The new file is renamed over the old one: an existing file is replaced as a whole, and a link is replaced, not followed.
  const fresh = join(top, ...parts.slice(0, -1), `.onejob-${randomBytes(6).toString('hex')}`);
  try {
    const why = await make(fresh, parts, entry, progress);
    if (why !== null) return why;
    renameSync(fresh, path);
  } catch (error) {
    rmSync(fresh, { force: true });
    throw error;
  }
  if (header.type === 'symlink') files.delete(name);
  else files.add(name);
  return null;
}

async function make(fresh: string, parts: readonly string[], entry: Entry, progress: Progress): Promise<string | null> {
  const { type, linkname, mode, size } = entry.header;
  switch (type) {
    case 'file':
    case 'contiguous-file':
      if (size <= small) writeFileSync(fresh, await buffer(entry), { flag: 'wx', mode: permissions(mode) });
      else await save(entry, fresh, permissions(mode));
      return null;
    case 'symlink':
      if (!staysInside(parts, linkname)) return `it links to ${linkname}, which is outside`;
      symlinkSync(linkname, fresh);
      return null;
    case 'link': {
      const target = safeParts(linkname)?.join('/');
      if (target === undefined || !progress.files.has(target))
        return `it is a hard link to ${linkname}, which did not come with it`;
      linkSync(join(progress.top, target), fresh);
      return null;
    }
    default:
      return `it is a ${type}`;
  }
}

/** Reads the entry to its end also if it cannot be written: an entry that is destroyed ends the whole archive. */
async function save(entry: Entry, path: string, mode: number): Promise<void> {
  await using file = await open(path, newFile, mode);
  let failed: unknown = null;
  for await (const bytes of entry) {
    if (failed !== null) continue;
    await file.writeFile(bytes as Uint8Array).catch((error: unknown) => {
      failed = error;
    });
  }
  if (failed !== null) throw failed;
  // A quota on a network file system shows only here.
  await file.close();
}

/** Creates folders from the top down, and refuses to pass through anything else; null, or why not. */
function makeFolders({ top, folders, made }: Progress, parts: readonly string[]): string | null {
  let path = top;
  for (const part of parts) {
    path = join(path, part);
    if (folders.has(path)) continue;
    const there = lstatSync(path, { throwIfNoEntry: false });
    if (there === undefined) {
      mkdirSync(path);
      made.push(relative(top, path));
    } else if (there.isSymbolicLink()) return `${part} is a link, and onejob never writes through links`;
    else if (!there.isDirectory()) return `${part} is not a directory`;
    folders.add(path);
  }
  return null;
}

/**
 * Whether a link at `parts` stays inside. `..` may only be at its beginning, where every step is a real folder: after a name,
 * which may be a link, it could lead anywhere.
 */
function staysInside(parts: readonly string[], target: string): boolean {
  if (target === '' || target.startsWith('/') || target.includes('\0')) return false;
  const steps = target.split('/').filter((part) => part !== '' && part !== '.');
  const up = steps.findIndex((step) => step !== '..');
  const climbs = up === -1 ? steps.length : up;
  return climbs <= parts.length - 1 && !steps.slice(climbs).includes('..');
}

/** Never set-id, always writable by the owner. The umask of the user applies in addition. */
function permissions(mode: number | undefined): number {
  return ((mode ?? 0o644) & 0o777) | 0o600;
}
