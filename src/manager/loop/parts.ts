/** What the loop is made of. */
import type { Log } from '../../base/log.ts';
import type { Config } from '../../config/config.ts';
import type { Environment } from '../../config/environment.ts';
import type { Clock } from '../../core/clock.ts';
import type { JobId, Slot } from '../../core/slot.ts';
import type { ToolRunner } from '../../gpu/run.ts';
import type { LogFolder } from '../../logs/log-file.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Runtimes } from '../../runtimes/choose.ts';
import type { Store } from '../../store/store.ts';

export interface LoopParts {
  readonly config: Config;
  readonly env: Environment;
  readonly store: Store;
  readonly runtimes: Runtimes;
  /** By the names that pools use in `service`. */
  readonly services: ReadonlyMap<string, CiService>;
  readonly clock: Clock;
  readonly log: Log;
  readonly logs: LogFolder;
  /** How the loop and the end of its manager depend on each other. */
  readonly end: {
    /** Called after each commit that left a slot empty. */
    readonly emptied: () => void;
    /** Aborts when the manager no longer waits for the artifacts and logs of ended jobs. */
    readonly hurry: AbortSignal;
  };
  /** Called after each commit that changed a slot. */
  readonly changed?: ((before: Slot, after: Slot) => void) | undefined;
  /** Called when a job is held, and when it no longer is. */
  readonly heldChanged?: ((job: JobId) => void) | undefined;
  /** Runs the tools of GPU vendors. Default: as processes. */
  readonly runner?: ToolRunner | undefined;
}
