/**
 * What a power cut, or the end of a manager, has left half made: no slot knows it, so no action removes it. It goes with the first look
 * at a runtime. Never once this manager has begun to make a sandbox: what is half made then may be its own.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { AgentId } from '../core/slot.ts';
import { removeTree } from '../system/foreign-tree.ts';

/** Begins the name of an agent's folder until it is whole. */
export const unfinished = '.new-';

export class FirstLook {
  /** The sweep, if there was one; null until a sandbox is made or looked for. */
  #work: Promise<unknown> | null = null;

  /** A sandbox is about to be made. Resolves once nothing is removed any more. */
  async end(): Promise<void> {
    this.#work ??= Promise.resolve();
    await this.#work;
  }

  /** Resolves once it is over, also for who comes second. What it cannot remove is left to the next manager: a look must not fail by it. */
  async sweep(remove: () => Promise<unknown>): Promise<void> {
    this.#work ??= remove().catch(() => {});
    await this.#work;
  }
}

/** Removes unfinished folders from that of all agents. `forget` is told of each whose agent has no other: it may have left a mark. */
export async function removeDrafts(agents: string, forget: (agent: AgentId) => Promise<void>): Promise<void> {
  const names = await readdir(agents);
  for (const name of names.filter((name) => name.startsWith(unfinished))) {
    await removeTree(join(agents, name));
    const agent = name.slice(unfinished.length);
    if (!names.includes(agent)) await forget(agent);
  }
}
