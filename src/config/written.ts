/** What a config file says, understood but not yet completed. Types only: without a file nothing of the schema is loaded. */
import type { TopFile, WrittenPool } from './schema.ts';
import type { ServiceType } from './service-schema.ts';

export interface WrittenService {
  readonly type: ServiceType;
  readonly keys: Readonly<Record<string, unknown>>;
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
