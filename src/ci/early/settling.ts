/** Asks for the end of a job whose agent has ended: a service may learn of it later than this host. */
import { type Clock, sleep } from '../../core/clock.ts';

/** ms before each further question. */
const settling = [2_000, 10_000, 60_000];

/** `isOpen`: whether it is still worth asking. */
export async function askForEnd(
  { clock, isOpen, ask }: { readonly clock: Clock; readonly isOpen: () => boolean; readonly ask: () => Promise<unknown> },
  signal: AbortSignal,
): Promise<void> {
  for (const wait of settling) {
    if (!isOpen()) return;
    await sleep(clock, wait, signal);
    signal.throwIfAborted();
    await ask();
  }
}
