/**
 * Files of workspaces that stay here after their jobs, so that who sent them need not send them again. They are tars, and each has a
 * name that only its sender was told: random, so that nobody finds that of another, and with the checksum of what came, so that a
 * damaged one is noticed. Nothing is found by its content: who knows the hash of a file gets nothing for it.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { link, readdir, readFile, rm, stat, statfs, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { codeOf, OnejobError } from '../../base/errors.ts';
import type { JoinRequest } from '../../contract/schema.ts';
import { subdirectory } from '../../store/directory.ts';

/** Bytes of all that are kept, and the share of the free disk that they may take. */
const [mostKept, mostShare] = [20 * 2 ** 30, 0.1];
const chunk = 256 * 1024;
const shape = /^[0-9a-f-]{36}\.([0-9a-f]{64})$/;

export class SentFiles {
  readonly folder: string;

  constructor(dir: string) {
    this.folder = subdirectory(dir, 'sent');
  }

  /**
   * Links tars into `folder` as `0`, `1` and so on, where their removal from here does not concern them, and then reads them: each must
   * be as it came, and have its ranges. @throws OnejobError E_WORKSPACE_UNKNOWN, and removes one that is damaged
   */
  async take({ sent, ranges }: JoinRequest, folder: string, most: number, signal: AbortSignal): Promise<void> {
    const taken = sent.map((name, at) => ({
      path: join(this.folder, name),
      sum: shape.exec(name)?.[1],
      here: join(folder, String(at)),
    }));
    const sizes: number[] = [];
    for (const { path, sum, here } of taken) {
      const isHere = sum !== undefined && (await link(path, here).then(() => true, isMissing));
      if (!isHere) throw notKept('they are not here any more');
      sizes.push((await stat(here)).size);
    }
    if (ranges.some(([at, from, to]) => from >= to || to > (sizes[at] ?? 0))) throw notKept('they are shorter than that');
    // Reading takes time.
    if (sizes.reduce((all, size) => all + size, 0) > most) throw notKept('they are too large');
    for (const { path, sum, here } of taken) {
      const found = createHash('sha256');
      await pipeline(createReadStream(here, { highWaterMark: chunk }), found, { signal });
      if (found.digest('hex') !== sum) {
        await rm(path, { force: true });
        throw notKept('they are damaged');
      }
      // For `sweep`, also where reading a file changes no time.
      await utimes(here, new Date(), (await stat(here)).mtime);
    }
  }

  /** Removes those that were last used before `time`, and of the rest those unused for longest that are too much, but never the newest. */
  async sweep(time: number): Promise<void> {
    const found = [];
    for (const name of await readdir(this.folder)) {
      const path = join(this.folder, name);
      const there = shape.test(name) ? await stat(path).catch(() => null) : null;
      if (there !== null) found.push({ path, used: there.atimeMs, size: there.blocks * 512 });
    }
    const { bavail, bsize } = await statfs(this.folder);
    const all = found.reduce((sum, { size }) => sum + size, 0);
    let left = Math.min(mostKept, (bavail * bsize + all) * mostShare);
    for (const [n, { path, used, size }] of found.sort((a, b) => b.used - a.used).entries()) {
      left -= size;
      if ((left < 0 && n > 0) || used < time) await rm(path, { force: true });
    }
  }
}

/** The bytes of a workspace that was made of ranges. */
export async function* joined(folder: string): AsyncGenerator<Buffer> {
  const ranges = JSON.parse(await readFile(join(folder, rangesFile), 'utf8')) as JoinRequest['ranges'];
  for (const [at, from, to] of ranges)
    yield* createReadStream(join(folder, String(at)), { start: from, end: to - 1, highWaterMark: chunk });
}

export const rangesFile = 'ranges.json';

/** false; @throws any other failure */
function isMissing(error: unknown): false {
  if (codeOf(error) === 'ENOENT') return false;
  throw error;
}

function notKept(why: string): OnejobError {
  const message = `Cannot make a workspace of files that were sent before: ${why}.`;
  return new OnejobError('E_WORKSPACE_UNKNOWN', message, { hint: 'Send the whole workspace.' });
}
