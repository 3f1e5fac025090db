/** Checked programs of the agent on disk: a folder each, whose name appears only once all in it is whole. */
import { readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { hashOf } from './agent-program.ts';

/** What is known of a program. */
export interface Program {
  /** Absolute. */
  readonly path: string;
  /** As it says itself. */
  readonly version: string;
  /** Of the program, lower-case hex. */
  readonly sha256: string;
}

/** Where a program came from: `packed` is the SHA-256 of the file that `from` names, `program` its own. */
const source = z.object({ from: z.string(), version: z.string(), packed: z.string(), program: z.string() });
export type Source = z.infer<typeof source>;

const programName = 'buildkite-agent';

/** The program in `dir` that came from there, when it is still what it was. Another version or checksum is another program. */
export async function findProgram(
  dir: string,
  { from, version, packed }: { readonly from: string; readonly version: string | null; readonly packed: string | null },
  damaged: (path: string) => void,
  signal: AbortSignal,
): Promise<Program | null> {
  for (const name of await programs(dir)) {
    const about = await sourceOf(join(dir, name));
    if (about === null || about.from !== from) continue;
    if ((version !== null && about.version !== version) || (packed !== null && about.packed !== packed)) continue;
    const path = join(dir, name, programName);
    if (await isWhole(join(dir, name), about, signal)) return { path, version: about.version, sha256: about.program };
    damaged(path);
  }
  return null;
}

/** Gives the folder `part`, with a program in it, its name in `dir`. The same one may be there already, and is left alone. */
export async function keepProgram(dir: string, part: string, about: Source, signal: AbortSignal): Promise<Program> {
  await writeFile(join(part, 'source.json'), JSON.stringify(about), { flush: true });
  const final = join(dir, `buildkite-agent-${about.version}-${about.packed.slice(0, 12)}`);
  const kept: Program = { path: join(final, programName), version: about.version, sha256: about.program };
  if (await isWhole(final, about, signal)) return kept;
  await rename(part, final).catch(async (error: unknown) => {
    if (!(error instanceof Error && 'code' in error && (error.code === 'ENOTEMPTY' || error.code === 'EEXIST'))) throw error;
    // What is there is damaged, or of another origin. Sandboxes that have it keep it.
    await rm(final, { recursive: true, force: true });
    await rename(part, final);
  });
  return kept;
}

/** Names of folders in `dir` that hold a program. */
async function programs(dir: string): Promise<string[]> {
  const names = await readdir(dir).catch((): string[] => []);
  return names.filter((name) => /^buildkite-agent-.+-[0-9a-f]{12}$/.test(name)).sort();
}

/** Removes the programs that `isUsed` says nothing needs, by their paths. */
export async function pruneOthers(dir: string, isUsed: (path: string) => boolean): Promise<void> {
  for (const name of await programs(dir)) {
    if (!isUsed(join(dir, name, programName))) await rm(join(dir, name), { recursive: true, force: true });
  }
}

/** Where a program is put while it is checked: removed by the next one when this process is killed. */
export function partName(mark: string): string {
  return `part-${process.pid}-${mark}`;
}

/** A process that was killed leaves what it was about to check. */
export async function removeParts(dir: string): Promise<void> {
  for (const name of await readdir(dir)) {
    const pid = Number(/^part-(\d+)-/.exec(name)?.[1]);
    if (pid > 0 && pid !== process.pid && !isAlive(pid)) await rm(join(dir, name), { recursive: true, force: true });
  }
}

/** Changes whenever a file is another one or was written to; null when it cannot be looked at. */
export async function markOf(path: string): Promise<string | null> {
  return stat(path, { bigint: true }).then(
    ({ dev, ino, size, mtimeNs, ctimeNs }) => [dev, ino, size, mtimeNs, ctimeNs].join(' '),
    () => null,
  );
}

async function isWhole(folder: string, about: Source, signal: AbortSignal): Promise<boolean> {
  const there = await sourceOf(folder);
  if (there === null || there.program !== about.program || there.from !== about.from) return false;
  const found = await hashOf(join(folder, programName), signal).catch(() => null);
  signal.throwIfAborted();
  return found === about.program;
}

async function sourceOf(folder: string): Promise<Source | null> {
  try {
    return source.parse(JSON.parse(await readFile(join(folder, 'source.json'), 'utf8')));
  } catch {
    // Not there, or damaged: then it is nobody's.
    return null;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'EPERM';
  }
}
