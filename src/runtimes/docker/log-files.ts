/**
 * Follows a container's log in the files of the Engine's driver `local`, if they can be read. The Engine's API sends one message
 * per line, at a third of the speed, and Engine 20.10 skips files when it follows (docs/adr/0007).
 *
 * Nothing here changes a file. An open file stays readable after the Engine has deleted it, so a reader that looks once per file
 * loses nothing. A slower one reports a gap.
 */
import { statSync } from 'node:fs';
import type { FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '../../core/clock.ts';
import { openExisting } from '../../system/files.ts';
import type { LogChunk, LogPosition } from '../runtime.ts';
import { watchFolders } from '../watch.ts';
import { createEntryReader, UnknownEntries } from './frames.ts';
import { Rejoiner } from './rejoin.ts';

const currentName = 'container.log';
/** Bytes read at a time. */
const blockSize = 256 * 1024;
/** Bytes of deleted files that may wait to be read. While open they occupy the Engine's disk, where nothing shows them. */
const deletedAtMost = 2 ** 30;
/** ms between looks if the kernel reports no change. */
const slowLook = 1_000;

interface LogPart {
  readonly inode: bigint;
  readonly file: FileHandle;
  /** Output before it may be in a file that nobody opened in time. */
  readonly afterHole: boolean;
}

/** Folder in which the driver keeps a container's log. */
export function logFolder(engineRoot: string, id: string): string {
  return join(engineRoot, 'containers', id, 'local-logs');
}

/** Whether the log can be read now. */
export function canRead(folder: string): boolean {
  return seenAt(join(folder, currentName)) !== null;
}

/**
 * Output after `from`, until `ended` has resolved and everything was read, or the files are gone. Up to `mostDeleted` unread
 * bytes of deleted files are kept, by default 1 GiB; beyond that the oldest file becomes a gap.
 * @throws UnknownEntries, and what Node throws when reading fails
 */
export async function* followFiles(
  clock: Clock,
  folder: string,
  from: LogPosition,
  ended: Promise<void>,
  signal: AbortSignal,
  mostDeleted: number = deletedAtMost,
): AsyncGenerator<LogChunk[], void> {
  const rejoiner = new Rejoiner(from);
  const stop = new AbortController();
  let hasEnded = false;
  const end = (): void => stop.abort();
  void ended.then(() => {
    hasEnded = true;
    end();
  }, end);
  signal.addEventListener('abort', end, { once: true });
  using watch = watchFolders(clock, [folder], stop.signal);
  await using chain = createChain(folder, mostDeleted);
  await chain.look();
  try {
    for (let part = chain.next(); part !== null && !signal.aborted; part = chain.next()) {
      if (part.afterHole) rejoiner.hole();
      const entries = createEntryReader();
      let offset = 0;
      for (;;) {
        // Read before the look below: output before the end, or before the next file, must still be read.
        const complete = hasEnded;
        const { isOld, size } = await chain.look();
        if (signal.aborted) return;
        // Otherwise sixteen idle containers would allocate 4 MiB of blocks per second.
        if (isOld || size === null || size > offset) {
          const block = Buffer.allocUnsafe(blockSize);
          const { bytesRead } = await part.file.read(block, 0, blockSize, offset);
          if (bytesRead > 0) {
            offset += bytesRead;
            const chunks = rejoiner.push(entries.push(block.subarray(0, bytesRead)));
            if (chunks.length > 0) yield chunks;
            continue;
          }
        }
        if (isOld) break;
        if (complete || (stop.signal.aborted && !hasEnded)) {
          const last = rejoiner.end();
          if (last.length > 0) yield last;
          return;
        }
        await watch.next(slowLook);
      }
    }
    if (!signal.aborted) throw new UnknownEntries('no file');
  } finally {
    signal.removeEventListener('abort', end);
  }
}

/** The driver's files, oldest first, each opened before it can be deleted. */
function createChain(folder: string, most: number) {
  const path = join(folder, currentName);
  const waiting: LogPart[] = [];
  let reading: LogPart | null = null;
  /** Inode of the newest file that was opened. */
  let newest: bigint | null = null;

  /** Every file, oldest first. Files are opened newest first: a rotation meanwhile then shows one twice and skips none. */
  async function openAll(): Promise<Omit<LogPart, 'afterHole'>[]> {
    const found: Omit<LogPart, 'afterHole'>[] = [];
    for (let number = 0; ; number += 1) {
      const file = await openExisting(number === 0 ? path : `${path}.${number}`);
      if (file === null) return found.reverse();
      const { ino: inode } = await file.stat({ bigint: true });
      if (found.some((one) => one.inode === inode)) await file.close();
      else found.push({ inode, file });
    }
  }

  return {
    /**
     * Opens new files. `isOld`: the file being read is not the newest, so it grows no more. `size`: bytes of the newest file;
     * null if it cannot be seen.
     */
    async look(): Promise<{ readonly isOld: boolean; readonly size: number | null }> {
      const current = seenAt(path);
      const seen = () => ({ isOld: waiting.length > 0, size: current?.size ?? null });
      if (current === null || current.inode === newest) return seen();
      const found = await openAll();
      const known = found.findIndex((one) => one.inode === newest);
      const isLate = newest !== null && known === -1;
      for (const one of found.slice(0, known + 1)) await one.file.close();
      waiting.push(...found.slice(known + 1).map((one, at) => ({ ...one, afterHole: isLate && at === 0 })));
      newest = found.at(-1)?.inode ?? newest;
      // A reader that is slower than the job gets a gap, and reports it.
      const deleted = waiting.filter(({ inode }) => !found.some((one) => one.inode === inode));
      let size = 0;
      for (const { file } of deleted) size += (await file.stat()).size;
      let hasHole = false;
      for (let [first] = waiting; size > most && first !== undefined && deleted.includes(first); [first] = waiting) {
        size -= (await first.file.stat()).size;
        await first.file.close();
        waiting.shift();
        hasHole = true;
      }
      if (hasHole && waiting[0] !== undefined) waiting[0] = { ...waiting[0], afterHole: true };
      return seen();
    },
    /** The file to read now; null if there is none. */
    next(): LogPart | null {
      void reading?.file.close().catch(() => {});
      reading = waiting.shift() ?? null;
      return reading;
    },
    async [Symbol.asyncDispose]() {
      for (const one of reading === null ? waiting : [reading, ...waiting]) await one.file.close().catch(() => {});
    },
  };
}

function seenAt(path: string): { readonly inode: bigint; readonly size: number } | null {
  try {
    const { ino, size } = statSync(path, { bigint: true });
    return { inode: ino, size: Number(size) };
  } catch {
    return null;
  }
}
