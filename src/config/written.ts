/** What a config file says, understood but not yet completed. Types only: without a file nothing of the schema is loaded. */
import type { ServiceConfig } from './config.ts';
import type { TopFile, WrittenPool } from './schema.ts';
import type { Keys } from './service-keys.ts';

export interface WrittenService {
  readonly type: ServiceConfig['type'];
  readonly keys: Keys;
}

export interface Written {
  readonly top: TopFile;
  readonly services: ReadonlyMap<string, WrittenService>;
  readonly defaults: WrittenPool;
  /** Each with the defaults under it; null when the file has no `pools`. */
  readonly pools: ReadonlyMap<string, WrittenPool> | null;
  /** Keys that had a problem (`pools.lab.agents`, `defaults.cpus`): what they hold is not known. */
  readonly broken: ReadonlySet<string>;
}

export const nothingWritten: Written = {
  top: {},
  services: new Map(),
  defaults: {},
  pools: null,
  broken: new Set(),
};
