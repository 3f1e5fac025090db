/** What checks across keys get, those of services too, and what they ask of files. */
import { accessSync, constants, statSync } from 'node:fs';
import { codeOf } from '../base/errors.ts';
import type { Path, Place, Problem } from '../schema/problem.ts';
import { isFound } from '../system/real-path.ts';
import type { Config, PoolConfig, Written } from './config.ts';

export interface HostFacts {
  /** What `{host}` stands for. */
  readonly name: string;
  readonly cpus: number;
  /** Bytes. */
  readonly memory: number;
}

/** What every check gets, and how it reports problems. */
export interface Checking {
  readonly config: Config;
  readonly written: Written;
  /** The host that the config is for; null for another host. */
  readonly host: HostFacts | null;
  /** Whether a daemon starts with it. */
  readonly starting: boolean;
  /** Where pools are written. */
  readonly root: Path;
  /** Whether no problem was found in these keys, so that they hold what is written or the default. */
  sound(pool: PoolConfig, ...keys: readonly string[]): boolean;
  /** Whether the pool itself has the key, not `defaults`. */
  own(pool: PoolConfig, key: string): boolean;
  /** `path` begins with a key of the pool. The place is in `defaults` if the key is written there. */
  inPool(pool: PoolConfig, path: Path, message: string, level?: Problem['level']): void;
  at(path: Path, message: string, level?: Problem['level']): void;
  /** Why no job may see a path of the host; null when it may. */
  whyHidden(host: string): string | null;
}

/** Where keys are written. */
export interface Writing {
  /** Whether exactly this path is written. */
  has(path: Path): boolean;
  /** The place of the longest part of `path` that is written. */
  locate(path: Path, at?: 'key' | 'value'): Place;
}

/** Why a file cannot be read, as the end of a sentence; null if it can, or lies on a file server, which may be away. */
export function unreadable(path: string): string | null {
  if (isFound(path) === null) return null;
  try {
    if (!statSync(path).isFile()) return 'is not a file';
    accessSync(path, constants.R_OK);
    return null;
  } catch (error) {
    return codeOf(error) === 'ENOENT' ? 'does not exist' : 'cannot be read by this user';
  }
}
