/**
 * The keys of runners that are not removed yet: with a runner's own key onejob ends the job of a sandbox that died, at once instead of
 * after the server's ten minutes. A key is good for one job, and is removed with its runner. It is in a file of root's or the user's
 * state directory (0600), never in the store.
 */
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import { makeFolder, writeWhole } from '../../system/files.ts';
import { jsonOf } from '../../system/json.ts';
import type { RunnerKey } from './client.ts';

const stored = z.object({ uuid: z.string(), token: z.string() });

/** `dir`: of this service alone; made with the first key. */
export function createRunnerKeys(dir: string) {
  const fileOf = (agent: AgentId) => join(dir, `${agent}.json`);
  return {
    /** On disk once this returns: after a power cut, too, its job is ended at once. @throws Error of the file system */
    keep(agent: AgentId, { uuid, token }: RunnerKey): void {
      makeFolder(dir);
      writeWhole(fileOf(agent), JSON.stringify({ uuid, token }), { over: true, mode: 0o600, alone: true });
    },
    of: (agent: AgentId): RunnerKey | null =>
      stored.safeParse(jsonOf(attempt(() => readFileSync(fileOf(agent), 'utf8')) ?? '')).data ?? null,
    forget: (agent: AgentId) => rmSync(fileOf(agent), { force: true }),
    /** Removes the keys of all other agents. */
    retain(agents: ReadonlySet<AgentId>): void {
      for (const name of attempt(() => readdirSync(dir)) ?? [])
        if (!agents.has(name.replace(/\.json$/, ''))) rmSync(join(dir, name), { force: true });
    },
  };
}
export type RunnerKeys = ReturnType<typeof createRunnerKeys>;
