/** Keeps free space on the disk of the state directory, which the store needs: jobs' output must not take the last of it. */
import { rmSync, statfsSync, writeFileSync } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { attempt, messageOf, OnejobError } from '../../base/errors.ts';
import { type Finding, problem as failing } from '../../base/finding.ts';
import { formatBytes } from '../../base/units.ts';
import { storeFault } from '../../store/fault.ts';
import { measure } from './cache-tree.ts';

export interface StateRoomParts {
  readonly dir: string;
  /** ms; any monotonic clock. */
  readonly now: () => number;
  /** Bytes of the disk, and of its free space; null when unknown. */
  readonly look?: () => { readonly size: number; readonly free: number } | null;
}

/** Share of the disk, and at most `mostKept` bytes. */
const shareKept = 0.05;
const mostKept = 512 * 2 ** 20;
/** ms between checks: output comes in pieces of some hundred KiB. */
const lookEvery = 100;
/** How many of the largest folders are named. */
const named = 3;
const never = new AbortController().signal;

export interface StateRoom {
  /** Why no output may be kept now, as a line for a log; null while there is room. */
  noRoom(): string | null;
  /** For `status`, in one sentence; null while there is room. */
  problem(): string | null;
  /** For `doctor`, with the largest items. It writes: an idle daemon does not notice by itself that it cannot. */
  findings(): Promise<Finding[]>;
}

export function createStateRoom({ dir, now, look = () => diskOf(dir) }: StateRoomParts): StateRoom {
  let seen: { readonly at: number; readonly line: string | null } | null = null;
  const short = (): { readonly free: number; readonly reserve: number } | null => {
    const disk = look();
    if (disk === null) return null;
    const reserve = Math.min(mostKept, disk.size * shareKept);
    return disk.free < reserve ? { free: disk.free, reserve } : null;
  };
  const problem = (): string | null => {
    const found = short();
    if (found === null) return null;
    return `The disk that holds ${dir} has ${formatBytes(found.free)} left; onejob keeps no job output until ${formatBytes(found.reserve)} are free.`;
  };
  return {
    noRoom(): string | null {
      const at = now();
      if (seen === null || at - seen.at >= lookEvery) {
        const found = short();
        const line =
          found === null ? null : `no output is kept from here on: the disk that holds ${dir} has ${formatBytes(found.free)} left`;
        seen = { at, line };
      }
      return seen.line;
    },
    problem,
    async findings(): Promise<Finding[]> {
      const refused = refusal(dir);
      const message = problem();
      if (message === null) return refused;
      const entries = await readdir(dir, { withFileTypes: true });
      const sizes: { name: string; size: number }[] = [];
      for (const entry of entries) {
        const path = join(dir, entry.name);
        // Jobs can write to some of it, such as caches.
        const size = entry.isDirectory() ? ((await measure(path, now(), never))?.bytes ?? 0) : await sizeOf(path);
        sizes.push({ name: entry.name, size });
      }
      const largest = sizes.sort((a, b) => b.size - a.size).slice(0, named);
      const list = largest
        .map(({ name, size }) => `${name} ${Number.isFinite(size) ? formatBytes(size) : 'too deep to be counted'}`)
        .join(', ');
      const hint = `"onejob jobs prune" removes jobs that ended, with their logs and artifacts; "du -x" shows what else is on that disk.`;
      return [...refused, { level: 'error', subject: 'state disk', message: `${message} The largest items in it: ${list}.`, hint }];
    },
  };
}

/** What a write to the folder is refused with, for example because the kernel has made a failing disk read-only. */
function refusal(dir: string): Finding[] {
  const path = join(dir, 'doctor.new');
  try {
    writeFileSync(path, 'written to see whether that works\n', { mode: 0o600 });
    return [];
  } catch (error) {
    const fault = storeFault('write', path, error);
    const hint = fault instanceof OnejobError ? fault.hint : null;
    return [failing('state disk', `${messageOf(fault)} Nothing new starts; running jobs continue.`, hint)];
  } finally {
    attempt(() => rmSync(path, { force: true }));
  }
}

/** Bytes of a file on the disk; 0 if it does not exist, or vanishes meanwhile. */
export async function sizeOf(path: string): Promise<number> {
  return ((await stat(path).catch(() => null))?.blocks ?? 0) * 512;
}

function diskOf(dir: string): { readonly size: number; readonly free: number } | null {
  const disk = attempt(() => statfsSync(dir));
  return disk && { size: disk.blocks * disk.bsize, free: disk.bavail * disk.bsize };
}
