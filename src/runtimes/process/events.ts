/** Exits and removals of sandboxes as they happen, for any number of readers. */
import type { AgentId } from '../../core/slot.ts';
import type { RuntimeEvent, SandboxSeen } from '../runtime.ts';
import { agentsIn, type Layout } from './folder.ts';
import { watchFolders } from './watch.ts';

/** ms between looks at everything: finds sandboxes whose processes were killed without leaving a code. */
const slowLook = 5_000;

/** Watches until `signal` aborts. `look` tells how one agent stands, null when it has no sandbox. */
export async function* followExits(
  at: Layout,
  look: (agent: AgentId) => SandboxSeen['state'] | null,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent> {
  using watch = watchFolders([at.agents, at.exits], signal);
  /** Agents with a sandbox, and whether their exit was told. */
  const known = new Map<AgentId, boolean>();
  const all = async (): Promise<ReadonlySet<string>> => new Set([...known.keys(), ...(await agentsIn(at))]);
  yield { kind: 'connected' };
  let names: ReadonlySet<string> = await all();
  while (!signal.aborted) {
    for (const agent of names) {
      if (agent.startsWith('.')) continue;
      const state = look(agent);
      if (state === null) {
        if (known.delete(agent)) yield { kind: 'removed', agent };
      } else if (state.kind !== 'exited') known.set(agent, false);
      else if (known.get(agent) !== true) {
        known.set(agent, true);
        yield { kind: 'exited', agent, exit: state.exit };
      }
    }
    names = (await watch.next(slowLook)) ?? (await all());
  }
}
