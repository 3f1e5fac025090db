/** How long slots stood without an agent: from the end of one until the next stands ready. */
import type { Slot } from '../../core/slot.ts';

/** Returns a function that gets each change of a slot, and answers with ms once the next agent is there; else null. */
export function createGaps(now: () => number): (before: Slot, after: Slot) => number | null {
  const ended = new Map<string, number>();
  return (before, after) => {
    if (hasEnded(before, after)) ended.set(after.key, now());
    const since = ended.get(after.key);
    if (since === undefined) return null;
    const isHere = after.agent.kind === 'free' ? after.standby.kind === 'standby' : after.agent.kind !== 'proving';
    // A slot that becomes empty is wanted no more, or waits for a job of its own: nothing is to stand ready there.
    const isEmptied = after.agent.kind === 'free' && after.standby.kind === 'none' && after.leaving.length === 0;
    if (!isHere && !isEmptied) return null;
    ended.delete(after.key);
    return isHere ? now() - since : null;
  };
}

/** Whether a released agent of the slot has just ended. */
function hasEnded({ agent: was }: Slot, { agent: is }: Slot): boolean {
  if (was.kind !== 'busy' && was.kind !== 'ending' && was.kind !== 'idle' && was.kind !== 'retiring') return false;
  return is.kind === 'free' || is.kind === 'proving' || is.agent !== was.agent;
}
