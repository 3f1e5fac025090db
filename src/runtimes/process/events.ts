/** Exits and removals of sandboxes as they happen, for any number of readers. */
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { RuntimeEvent, SandboxSeen } from '../runtime.ts';
import { watchFolders } from '../watch.ts';
import { agentsIn, type Layout } from './folder.ts';

/** ms between looks at everything: finds sandboxes whose processes were killed without leaving a code. */
const slowLook = 5_000;
/** ms until what could not be read is tried again. */
const soonLook = 1_000;

/**
 * Watches until `signal` aborts; says `lost` when something cannot be read, and `connected` once all could. `look` tells how one
 * agent stands, null when it has no sandbox.
 */
export async function* followExits(
  clock: Clock,
  at: Layout,
  look: (agent: AgentId) => SandboxSeen['state'] | null,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent> {
  using watch = watchFolders(clock, [at.agents, at.exits], signal);
  /** Agents with a sandbox, and whether their exit was told. */
  const known = new Map<AgentId, boolean>();
  const all = async (): Promise<ReadonlySet<string>> => new Set([...known.keys(), ...(await agentsIn(at))]);
  const tell = (agent: AgentId): RuntimeEvent | null => {
    const state = look(agent);
    if (state === null) return known.delete(agent) ? { kind: 'removed', agent } : null;
    if (state.kind !== 'exited') known.set(agent, false);
    else if (known.get(agent) !== true) {
      known.set(agent, true);
      return { kind: 'exited', agent, exit: state.exit };
    }
    return null;
  };
  let isLost = false;
  /** Agents to look at; null for all of them. */
  let names: ReadonlySet<string> | null = null;
  yield { kind: 'connected' };
  while (!signal.aborted) {
    try {
      for (const agent of names ?? (await all())) {
        const event = agent.startsWith('.') ? null : tell(agent);
        if (event !== null) yield event;
      }
      if (isLost) yield { kind: 'connected' };
      isLost = false;
    } catch (error) {
      if (!isLost) yield { kind: 'lost', failure: toFailure(error).message };
      isLost = true;
    }
    const changed = await watch.next(isLost ? soonLook : slowLook);
    names = isLost ? null : changed;
  }
}
