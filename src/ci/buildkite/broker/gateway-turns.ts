/**
 * Uploads of an agent, some at a time: the agent begins one for each thread of its host, and gives an artifact up that was refused
 * for some 45 s (v3.137 `internal/artifact/uploader.go`). So the next ones wait, unread, until an earlier one has ended.
 */

export interface Turns {
  taken: number;
  /** Those who wait, in the order in which they came. */
  readonly waiting: Set<() => void>;
}

export function createTurns(): Turns {
  return { taken: 0, waiting: new Set() };
}

/** Resolves once there are fewer than `most` before this one, with what makes room for the next; with null if `signal` ends before. */
export async function takeTurn(turns: Turns, most: number, signal: AbortSignal): Promise<(() => void) | null> {
  if (signal.aborted) return null;
  if (turns.taken >= most) {
    const { promise, resolve } = Promise.withResolvers<void>();
    turns.waiting.add(resolve);
    signal.addEventListener('abort', () => resolve(), { once: true });
    await promise;
    // Still there: nobody made room for it.
    if (turns.waiting.delete(resolve)) return null;
  } else turns.taken += 1;
  return () => leave(turns);
}

/** The turn goes to the next, without ever being free in between. */
function leave(turns: Turns): void {
  const [next] = turns.waiting;
  if (next === undefined) turns.taken -= 1;
  else {
    turns.waiting.delete(next);
    next();
  }
}
