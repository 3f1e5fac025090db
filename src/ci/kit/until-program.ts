/** Holds the pools of a service until the program of its agents is there: a sandbox without it would be a folder with its name. */

import { toFailure } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { CiEvent, CiService } from '../../ports/ci-service.ts';
import type { AgentProgram } from './agent-program.ts';

/** ms between two tries to find the program. */
const readAgain = 30_000;

/** `observe`: of the service, whose own holds come second. */
export function untilProgram(
  {
    program,
    clock,
    pools,
  }: { readonly program: Pick<AgentProgram, 'ready'>; readonly clock: Clock; readonly pools: readonly string[] },
  observe: CiService['observe'],
  emit: (event: CiEvent) => void,
  signal: AbortSignal,
): void {
  let missing: string | null = 'looking for the agent';
  let beginning = true;
  const own = new Map<string, string | null>();
  const tell = (pool: string): void => {
    const reason = missing ?? own.get(pool) ?? null;
    emit({ kind: 'hold', pool, reason, ...(missing !== null && beginning && { beginning }) });
  };
  const find = async (): Promise<void> => {
    while (!signal.aborted && missing !== null) {
      try {
        await program.ready(signal);
        if (signal.aborted) return;
        missing = null;
      } catch (error) {
        if (signal.aborted) return;
        missing = toFailure(error).message;
        beginning = false;
      }
      for (const pool of pools) tell(pool);
      if (missing !== null) await sleep(clock, readAgain, signal);
    }
  };
  for (const pool of pools) tell(pool);
  void find();
  observe((event) => {
    if (event.kind !== 'hold') {
      emit(event);
      return;
    }
    own.set(event.pool, event.reason);
    tell(event.pool);
  }, signal);
}
