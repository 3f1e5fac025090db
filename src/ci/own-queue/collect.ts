/**
 * Picks a job's artifacts out of its workspace while that streams by. Memory does not grow with either, and what is read is
 * bounded: a sparse file of terabytes takes no room on the job's disk, and all of it would come by.
 */
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { extract, type Header, type Pack, pack } from 'tar-stream';

export interface Collected {
  readonly files: number;
  /** Sentences for people, on what was left out. */
  readonly notes: readonly string[];
  /** Not all was looked at: `readLimit` was reached. */
  readonly cutShort: boolean;
}

const tarBlock = 512;

export interface CollectOptions {
  /** Asked once for every path that is no directory. */
  readonly matches: (path: string) => boolean;
  /** Bytes of content that are taken. */
  readonly limit: number;
  /** Bytes that may come by, taken or not. What comes after is not looked at. */
  readonly readLimit: number;
  readonly signal: AbortSignal;
}

/** Reads the tar stream `from` to its end, or up to the limit, and writes what matches, as a tar, to `to`. */
export async function collect(from: Readable, to: Writable, options: CollectOptions): Promise<Collected> {
  const { signal } = options;
  const chosen = pack();
  const written = pipeline(chosen, to, { signal });
  // Awaited below; a failure there also ends the loop, and must not count as unhandled meanwhile.
  written.catch(() => {});
  const entries = extract();
  const read = pipeline(from, entries, { signal });
  read.catch(() => {});
  try {
    const collected = await choose(entries, chosen, options);
    if (collected.cutShort) from.destroy();
    else await read;
    chosen.finalize();
    await written;
    return collected;
  } catch (error) {
    from.destroy();
    entries.destroy();
    chosen.destroy();
    await Promise.allSettled([read, written]);
    signal.throwIfAborted();
    throw error;
  }
}

/** Bytes that the names of taken files may have together: they are kept in memory. */
const namesLimit = 32 * 2 ** 20;

async function choose(
  entries: ReturnType<typeof extract>,
  chosen: Pack,
  { matches, limit, readLimit }: CollectOptions,
): Promise<Collected> {
  const taken = new Set<string>();
  const [over, strange, cut, unread] = [new Some(), new Some(), new Some(), new Some()];
  let [files, bytes, names, come] = [0, 0, 0, 0];
  for await (const entry of entries) {
    const { header } = entry;
    come += tarBlock + (header.size ?? 0);
    const path = relative(header.name);
    const type = header.type ?? 'file';
    const isWanted = path !== null && type !== 'directory' && matches(path);
    // Its header says how much would come, so nothing of it need be read.
    if (!(come <= readLimit)) {
      unread.add(path ?? header.name);
      break;
    }
    if (!isWanted) {
      entry.resume();
      continue;
    }
    const size = header.size ?? 0;
    names += path.length;
    if (bytes + size > limit || names > namesLimit) over.add(path);
    else if (type === 'file' || type === 'contiguous-file') {
      bytes += size;
      files += 1;
      taken.add(path);
      await pipeline(entry, chosen.entry(headerFor(header, path, 'file')));
      continue;
    } else if (type === 'symlink') {
      files += 1;
      chosen.entry(headerFor(header, path, 'symlink'));
    } else if (type === 'link') {
      const target = relative(header.linkname ?? '');
      if (target !== null && taken.has(target)) {
        files += 1;
        chosen.entry({ ...headerFor(header, path, 'link'), linkname: target });
      } else cut.add(`${path} (of ${header.linkname})`);
    } else strange.add(path);
    entry.resume();
  }
  const notes = [
    over.note(`as those over ${inGiB(limit)} in all are not kept`),
    strange.note('being neither files nor links'),
    cut.note('being hard links to files that no pattern names'),
    unread.note(`with all that comes after it in the workspace, as no more than ${inGiB(readLimit)} are read`),
  ];
  return { files, notes: notes.filter((note) => note !== null), cutShort: unread.count > 0 };
}

function headerFor(
  { mode, mtime, linkname, size }: Header,
  name: string,
  type: 'file' | 'symlink' | 'link',
): Partial<Header> & { name: string } {
  return type === 'file' ? { name, type, mode, mtime, size } : { name, type, mode, mtime, linkname, size: 0 };
}

/** A name relative to the workspace; null for the workspace itself and for names that leave it. */
function relative(name: string): string | null {
  if (name.startsWith('/')) return null;
  const parts = name.split('/').filter((part) => part !== '' && part !== '.');
  return parts.length === 0 || parts.includes('..') ? null : parts.join('/');
}

/** Names for a note, of which only the first few are kept. */
class Some {
  readonly #first: string[] = [];
  count = 0;

  add(path: string): void {
    this.count += 1;
    if (this.#first.length < 3) this.#first.push(path.slice(0, 200));
  }

  note(why: string): string | null {
    if (this.count === 0) return null;
    const more = this.count - this.#first.length;
    return `Left out of the artifacts, ${why}: ${this.#first.join(', ')}${more > 0 ? ` and ${more} more` : ''}.`;
  }
}

function inGiB(bytes: number): string {
  return `${bytes / 2 ** 30} GiB`;
}
