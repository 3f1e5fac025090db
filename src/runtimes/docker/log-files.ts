/**
 * Following a container's log in the files of the Engine's driver `local`, where they can be read: the Engine's API hands out one
 * message per line, a third as fast as it takes them from a job, and Engine 20.10 skips files when it follows (docs/adr/0007).
 *
 * Nothing here changes a file. What is open stays readable after the Engine has thrown it away, so a reader that looks once per
 * file loses nothing; one that looks more seldom says where there is a hole.
 */

import { statSync } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '../../core/clock.ts';
import { codeOf } from '../../errors.ts';
import type { LogChunk, LogPosition } from '../runtime.ts';
import { watchFolders } from '../watch.ts';
import { createEntryReader, UnknownEntries } from './frames.ts';
import { Rejoiner } from './rejoin.ts';

const current = 'container.log';
/** Bytes taken at a time. */
const blockSize = 256 * 1024;
/** Bytes that wait to be read though the Engine has thrown them away: open, they stay on its disk, where nothing shows them. */
const deletedAtMost = 2 ** 30;
/** ms between looks when the kernel has told nothing. */
const slowLook = 1_000;

interface LogPart {
  readonly inode: bigint;
  readonly file: FileHandle;
  /** What was written right before it may be in a file that nobody has opened in time. */
  readonly afterHole: boolean;
}

/** Where the driver keeps a container's log. */
export function logFolder(engineRoot: string, id: string): string {
  return join(engineRoot, 'containers', id, 'local-logs');
}

/** Whether the log there can be read now. */
export function canRead(folder: string): boolean {
  return seenAt(join(folder, current)) !== null;
}

/**
 * Output after `from`, until `ended` has resolved and all was read, or the files are gone. Of what the Engine has thrown away
 * unread, `mostDeleted` bytes are kept for it, 1 GiB by default; of more the oldest file is a hole.
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
        // Looked at first: what was written before the end, or before the next file was begun, is still read.
        const complete = hasEnded;
        const { isOld, size } = await chain.look();
        if (signal.aborted) return;
        // Sixteen idle containers would otherwise cost 4 MiB of blocks a second.
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

/** The driver's files from the oldest on, each opened before it can be thrown away. */
function createChain(folder: string, most: number) {
  const path = join(folder, current);
  const waiting: LogPart[] = [];
  let reading: LogPart | null = null;
  /** Of the newest file that was opened. */
  let newest: bigint | null = null;

  /** Every file there is, the oldest first. Opened from the newest on: a rotation meanwhile shows one twice and leaves none out. */
  async function openAll(): Promise<Omit<LogPart, 'afterHole'>[]> {
    const found: Omit<LogPart, 'afterHole'>[] = [];
    for (let number = 0; ; number += 1) {
      const file = await openOr(number === 0 ? path : `${path}.${number}`);
      if (file === null) return found.reverse();
      const { ino: inode } = await file.stat({ bigint: true });
      if (found.some((one) => one.inode === inode)) await file.close();
      else found.push({ inode, file });
    }
  }

  return {
    /**
     * Opens what is new. `isOld`: the file that is read now is not the newest, so nothing more is written to it. `size`: bytes of the
     * newest file; null when it cannot be seen.
     */
    async look(): Promise<{ readonly isOld: boolean; readonly size: number | null }> {
      const { inode, size: bytes } = seenAt(path) ?? { inode: null, size: null };
      const seen = () => ({ isOld: waiting.length > 0, size: bytes });
      if (inode === null || inode === newest) return seen();
      const found = await openAll();
      const known = found.findIndex((one) => one.inode === newest);
      const isLate = newest !== null && known === -1;
      for (const one of found.slice(0, known + 1)) await one.file.close();
      waiting.push(...found.slice(known + 1).map((one, at) => ({ ...one, afterHole: isLate && at === 0 })));
      newest = found.at(-1)?.inode ?? newest;
      // Who reads more slowly than the job writes has a hole, and says so.
      const deleted = waiting.filter(({ inode }) => !found.some((one) => one.inode === inode));
      let size = 0;
      for (const { file } of deleted) size += (await file.stat()).size;
      const late: LogPart[] = [];
      while (size > most && waiting[0] !== undefined && deleted.includes(waiting[0])) {
        late.push(waiting[0]);
        size -= (await waiting[0].file.stat()).size;
        waiting.shift();
      }
      for (const one of late) await one.file.close();
      if (late.length > 0 && waiting[0] !== undefined) waiting[0] = { ...waiting[0], afterHole: true };
      return seen();
    },
    /** The file to read now; null when there is none. */
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

async function openOr(path: string): Promise<FileHandle | null> {
  try {
    return await open(path);
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return null;
    throw error;
  }
}
