/** What may be asked about images that onejob builds: of a daemon through its API, or of this process where there is none. */
import type { ImageOutcome, ImageView } from './image-schema.ts';

export type ImageProgress = (pool: string, line: string) => void;

/** All methods throw OnejobError. */
export interface ImageDesk {
  /** Built by this installation, newest first. */
  list(signal: AbortSignal): Promise<ImageView[]>;
  /**
   * `build`: what `up` would build, where it is not there. `refresh`: as things are now, with the newest agent. `pools`: none
   * for all. A pool that fails is an outcome. @throws OnejobError E_POOL_UNKNOWN
   */
  make(what: 'build' | 'refresh', pools: readonly string[], progress: ImageProgress, signal: AbortSignal): Promise<ImageOutcome[]>;
  /** Removes those of this installation that no pool uses and no container was made from; their names. */
  prune(signal: AbortSignal): Promise<string[]>;
}
