/** Waiting for a sandbox's first process to be known. */

import { type Clock, deadline } from '../../core/clock.ts';
import { watchFolders } from '../watch.ts';
import { firstProcessOf } from './folder.ts';

/** ms a sandbox may take to start its first process. */
export const startTimeout = 10_000;

/** Resolves true when it is known, false when the sandbox has ended (`over`), or does not start in time. */
export async function untilStarted(
  clock: Clock,
  path: string,
  over: () => boolean,
  ...outer: readonly AbortSignal[]
): Promise<boolean> {
  using limit = deadline(clock, startTimeout, ...outer);
  const { signal } = limit;
  using watch = watchFolders(clock, [path], signal);
  while (firstProcessOf(path) === null) {
    if (signal.aborted || over()) return false;
    await watch.next(500);
  }
  return true;
}
