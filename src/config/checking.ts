/** What every rule of `check.ts` is given to look at, and how it says what is wrong where. */
import type { Config, PoolConfig } from './config.ts';
import type { HostFacts } from './environment.ts';
import type { Path, Problem } from './problem.ts';
import type { Written } from './written.ts';

export interface Checking {
  readonly config: Config;
  readonly written: Written;
  /** The host that it is checked for; null where that is another one, of which nothing is known. */
  readonly host: HostFacts | null;
  /** True when the key holds what was written or the default: no problem was found in it. */
  sound(pool: PoolConfig, ...keys: readonly string[]): boolean;
  /** Whether the pool itself, not `defaults`, has the key. */
  own(pool: PoolConfig, key: string): boolean;
  /** `path` begins with the pool's key; its place is in `defaults` when it is written there. */
  inPool(pool: PoolConfig, path: Path, message: string, level?: Problem['level']): void;
  at(path: Path, message: string, level?: Problem['level']): void;
}
