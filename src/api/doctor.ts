/**
 * What `doctor` finds, for many who ask. Looking takes up to a minute and starts sandboxes, so those who ask at the same time get one
 * result, and a login that may only read cannot have it done again and again.
 */
import { abortable } from '../base/abortable.ts';
import type { Manager } from '../contract/manager.ts';
import type { FindingView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';

/** ms that readers get the same result. */
const kept = 60_000;

export function createDoctor(look: Manager['doctor'], clock: Clock) {
  const stop = new AbortController();
  let last: { readonly found: FindingView[]; readonly at: number } | null = null;
  let looking: Promise<FindingView[]> | null = null;
  const begin = async (): Promise<FindingView[]> => {
    try {
      const found = await look(stop.signal);
      last = { found, at: clock.now() };
      return found;
    } finally {
      looking = null;
    }
  };
  return {
    /** A look continues when those who asked have gone: the next ones get its result. @throws as `Manager.doctor` */
    async ask(kind: 'read' | 'operator' | 'socket', signal: AbortSignal): Promise<FindingView[]> {
      if (kind === 'read' && last !== null && clock.now() < last.at + kept) return last.found;
      looking ??= begin();
      return abortable(looking, signal);
    },
    /** Ends a look. */
    close: () => stop.abort(),
  };
}
export type Doctor = ReturnType<typeof createDoctor>;
