/** What one agent of a Compose fleet turned out to be, and what had to be said about it. */

/** Something a person should know, with where it stands. */
export interface Remark {
  /** Relative to the folder that was read. */
  readonly file: string;
  /** From 1; null for a whole file or folder. */
  readonly line: number | null;
  /** `warning`: it was not carried over, or something may differ. `note`: it is done otherwise from now on. */
  readonly level: 'warning' | 'note';
  readonly message: string;
}

export type Vendor = 'nvidia' | 'amd' | 'intel';

/** Devices as an agent's Compose file names them. */
export interface DeviceClaim {
  readonly by: 'none' | 'uuid' | 'index' | 'all' | 'count';
  readonly vendor: Vendor;
  readonly count: number;
  /** Named by UUID; of MIG instances too. */
  readonly uuids: readonly string[];
  /** As they are numbered on their host; of MIG instances `GPU:INSTANCE`. */
  readonly indexes: readonly string[];
  /** Beyond computing: graphics, video, display. */
  readonly capabilities: readonly string[];
}

/** A value that can stand in a config. */
export type Plain = string | number | boolean | readonly Plain[] | { readonly [key: string]: Plain };
export type PlainMap = { readonly [key: string]: Plain };

export interface Agent {
  /** Where its Compose file lies, relative to the folder that was read; `.` for that folder itself. */
  readonly folder: string;
  readonly file: string;
  readonly line: number;
  /** Its key under `services` in the Compose file. */
  readonly service: string;
  readonly name: string;
  /** null: not written. */
  readonly hostname: string | null;
  /** How many of it there are: replicas, or `--spawn`. */
  readonly times: number;
  /** File that it had its token from; null: none was named. */
  readonly tokenFile: string | null;
  /** Of the service's Agent API; null for Buildkite's own. */
  readonly endpoint: string | null;
  /** Whether there is a private key for secrets in its image. */
  readonly hasSecretsKey: boolean;
  readonly devices: DeviceClaim;
  /** Keys of its pool, but for `name`, `agents`, `devices` and `service`. */
  readonly keys: PlainMap;
  /** Lines of comment above its services: what people wrote down about the host. */
  readonly heading: string | null;
}

export const noDevices: DeviceClaim = { by: 'none', vendor: 'nvidia', count: 0, uuids: [], indexes: [], capabilities: [] };

/** Texts in the order in which people count: 2 before 10. */
export const byNumber = (one: string, other: string): number =>
  collator.compare(one, other) || (one < other ? -1 : one > other ? 1 : 0);

const collator = new Intl.Collator('en', { numeric: true });
