/**
 * Where sandboxes have the agent's program from: a folder that is named by what config says, and leads to the program that was
 * found for it. So what a sandbox is made from is known before the program is, and a restart finds the standbys current.
 */
import { createHash } from 'node:crypto';
import { lstat, lutimes, readdir, readlink, rename, rm, symlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { AgentPackageConfig } from '../../config/config.ts';
import type { AgentBinary } from './agent-binary.ts';

export interface Program {
  /** Folder on this host that holds `buildkite-agent` once `ready` has resolved; null: the image brings its own. */
  readonly folder: string | null;
  /** @throws OnejobError E_AGENT_PACKAGE and the like */
  ready(signal: AbortSignal): Promise<void>;
}

/** A folder that nobody has asked for since then is forgotten, with the program it leads to, in ms. */
const keptFor = 30 * 86_400_000;

export interface ProgramParts {
  readonly config: AgentPackageConfig;
  /** Version that is taken where config names none. */
  readonly pinned: string;
  readonly binary: Pick<AgentBinary, 'ready' | 'prune'>;
  /** Folder for programs. */
  readonly dir: string;
  /** Wall clock, ms since the epoch. */
  readonly wall: () => number;
}

export function mountedProgram({ config, pinned, binary, dir, wall }: ProgramParts): Program {
  if (config.from === 'image') return { folder: null, ready: async () => {} };
  const mark = createHash('sha256')
    .update(JSON.stringify([pinned, config]))
    .digest('hex')
    .slice(0, 12);
  const folder = join(dir, `at-${mark}`);
  return {
    folder,
    async ready(signal) {
      const path = await binary.ready(signal);
      if (path === null) return;
      const next = join(dir, `next-${mark}.${process.pid}`);
      await rm(next, { force: true });
      await symlink(dirname(path), next);
      const now = wall() / 1000;
      await lutimes(next, now, now);
      await rename(next, folder);
      const used = await inUse(dir, wall());
      // A sandbox that has an older one keeps it: what is mounted outlives its name.
      await binary.prune((one) => used.has(dirname(one)));
    },
  };
}

/** What the folders lead to that were asked for lately; the others go. */
async function inUse(dir: string, now: number): Promise<ReadonlySet<string>> {
  const used = new Set<string>();
  for (const name of await readdir(dir)) {
    if (!name.startsWith('at-')) continue;
    const link = join(dir, name);
    const seen = await lstat(link).catch(() => null);
    if (seen === null || !seen.isSymbolicLink()) continue;
    if (now - seen.mtimeMs > keptFor) await rm(link, { force: true });
    else used.add(await readlink(link));
  }
  return used;
}
