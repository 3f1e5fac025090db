/** Picks a job's artifacts out of its workspace while that streams by. Memory does not grow with either. */
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { extract, type Header, type Pack, pack } from 'tar-stream';

export interface Collected {
  readonly files: number;
  /** Sentences for people, on what was left out. */
  readonly notes: readonly string[];
}

export interface CollectOptions {
  /** Asked once for every path that is no directory. */
  readonly matches: (path: string) => boolean;
  /** Bytes of content that are taken. */
  readonly limit: number;
  readonly signal: AbortSignal;
}

/** Reads the tar stream `from` to its end and writes what matches, as a tar, to `to`. */
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
    await read;
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

async function choose(entries: ReturnType<typeof extract>, chosen: Pack, { matches, limit }: CollectOptions): Promise<Collected> {
  const taken = new Set<string>();
  const [over, strange, cut]: [string[], string[], string[]] = [[], [], []];
  let [files, bytes] = [0, 0];
  for await (const entry of entries) {
    const { header } = entry;
    const path = relative(header.name);
    const type = header.type ?? 'file';
    if (path === null || type === 'directory' || !matches(path)) {
      entry.resume();
      continue;
    }
    const size = header.size ?? 0;
    if (type === 'file' || type === 'contiguous-file') {
      if (bytes + size > limit) over.push(path);
      else {
        bytes += size;
        files += 1;
        taken.add(path);
        await pipeline(entry, chosen.entry(headerFor(header, path, 'file')));
        continue;
      }
    } else if (type === 'symlink') {
      files += 1;
      chosen.entry(headerFor(header, path, 'symlink'));
    } else if (type === 'link') {
      const target = relative(header.linkname ?? '');
      if (target !== null && taken.has(target)) {
        files += 1;
        chosen.entry({ ...headerFor(header, path, 'link'), linkname: target });
      } else cut.push(`${path} (of ${header.linkname})`);
    } else strange.push(path);
    entry.resume();
  }
  const notes = [
    some(over, `as those over ${limit / 2 ** 30} GiB in all are not kept`),
    some(strange, 'being neither files nor links'),
    some(cut, 'being hard links to files that no pattern names'),
  ];
  return { files, notes: notes.filter((note) => note !== null) };
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

function some(paths: readonly string[], why: string): string | null {
  if (paths.length === 0) return null;
  const named = paths.slice(0, 3).join(', ');
  return `Left out of the artifacts, ${why}: ${named}${paths.length > 3 ? ` and ${paths.length - 3} more` : ''}.`;
}
