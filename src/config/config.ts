/** The config as the rest of onejob sees it: complete, checked, read-only. `keys.ts` declares its keys, `resolve.ts` makes it. */
import type { Listen } from '../http/address.ts';
import type { Recipe } from '../ports/runtime.ts';
import type { HostConfig } from '../schema/host-config.ts';
import type { hostKeys } from '../schema/host-keys.ts';
import type { Complete, WrittenKeys } from '../schema/key.ts';
import type { SecretReference } from '../schema/secret-reference.ts';
import type { Keys } from '../schema/service-keys.ts';
import type { Look } from '../system/file-server.ts';
import type { benchmarkKeys, deviceKeys, imageKeys, notifyKeys, TopFile, topKeys, trustKeys, WrittenPool } from './keys.ts';
import type { PeopleConfig } from './people.ts';

/** `docker`, `process`, or a key of `runtimes`. */
export type RuntimeName = string;

/** An entry of `runtimes`, with the keys of its type. */
export interface RuntimeConfig {
  readonly type: string;
  /** Key in `runtimes`. */
  readonly name: string;
}

/** An entry of `services`, with the keys of its type. */
export interface ServiceConfig {
  readonly type: string;
  /** Key in `services`. */
  readonly name: string;
}

/** An entry of `clouds`, with the keys of its type. */
export interface CloudConfig {
  readonly type: string;
  /** Key in `clouds`. */
  readonly name: string;
}

/** A job is trusted unless it is from a fork, another build triggered it, or a pattern does not name what it is from. */
export type TrustConfig = Readonly<Complete<typeof trustKeys>>;
export type DeviceRequest = Readonly<Omit<Complete<typeof deviceKeys>, 'uuid' | 'capabilities' | 'numa'>> & {
  /** Only these; empty: any. */
  readonly uuids: readonly string[];
};
/** What slots for measurements need: `cpus` of their own, a locked `clock` (MHz), and a card that is cool (°C, ms). */
export type BenchmarkConfig = Readonly<Complete<typeof benchmarkKeys>>;
/** An image that onejob builds; `auto` chooses the base from architecture, driver and GPU generation. */
export type ImageRecipe = Readonly<Complete<typeof imageKeys>>;

/** A pool, resolved: what all its slots have in common. */
export interface PoolConfig {
  readonly name: string;
  /** Key in `services`, or `own` for the own queue. */
  readonly service: string;
  /** null: the best one available. Never null for a pool with an image. */
  readonly runtime: RuntimeName | null;
  /** The queue at the CI service; for the own queue the pool's name. */
  readonly queue: string;
  readonly priority: number;
  /** Template; expand it with `expandName`. */
  readonly agentName: string;
  /** Number of slots; `per-device`: one for each device that fits. */
  readonly agents: number | 'per-device';
  /** Devices of this host that each agent needs, with conditions on them. None if an engine grants them: see `recipe.wants`. */
  readonly devices: DeviceRequest;
  /** Absent: its slots are not for measurements. */
  readonly benchmark?: BenchmarkConfig;
  readonly tags: readonly string[];
  readonly standby: boolean;
  /** ms */
  readonly standbyMaxAge: number;
  /** ms a job may take to end after TERM. */
  readonly stopGrace: number;
  /** ms a job may run; null for no limit. */
  readonly timeout: number | null;
  /** Bytes that the files of a job may take on disk; null for no limit. */
  readonly disk: number | null;
  /** ms that the sandbox of a failed job is kept; null: not at all. */
  readonly holdFailed: number | null;
  readonly trust: TrustConfig;
  /** `none`: credentials of a CI service may enter a sandbox that does not hide them from other jobs (S8). */
  readonly isolation: 'full' | 'none';
  /** Folders of the host for agents that support them; null: none. */
  readonly hooks: string | null;
  readonly plugins: string | null;
  /** Who shares a named cache of a slot. */
  readonly cacheFor: 'slot' | 'project';
  /** Bytes for each named cache of a slot. */
  readonly cacheLimit: number;
  /** null unless onejob chooses or builds the image; then `recipe.image` is null until it has. */
  readonly imageRecipe: ImageRecipe | null;
  readonly recipe: Recipe;
  /** Whose machines in a cloud have its slots, and its name there. Absent: its slots are here. */
  readonly elsewhere?: { readonly host: string; readonly pool: string };
}

export interface NotifyConfig {
  /** The address, or where it is; null: `command` is set. */
  readonly webhook: NonNullable<Complete<typeof notifyKeys>['webhook']> | null;
  /** A program, by its path or its name on the `PATH`, and its arguments; null: `webhook` is set. */
  readonly command: readonly [program: string, ...args: string[]] | null;
  /** ms for one message. */
  readonly timeout: number;
}

export interface RepairCommand {
  /** A program, by its path or its name on the `PATH`, and its arguments. */
  readonly command: readonly [program: string, ...args: string[]];
  /** ms after which it is killed. */
  readonly timeout: number;
}

/** Access over TCP. */
export interface ApiConfig {
  readonly listen: Listen;
  /** Paths of the certificate and its key; null: without TLS. */
  readonly tls: { readonly cert: string; readonly key: string } | null;
  readonly behindProxy: boolean;
  readonly hosts: readonly string[];
}

/** A host with what its machines run. */
export interface CloudHost extends HostConfig {
  /** As its machines will have them, each named `HOST.POOL` here, and without agents on this host. */
  readonly pools: readonly PoolConfig[];
  readonly guest: WrittenHost['guest'];
}

export interface JoinConfig {
  /** null: machines join through the cloud. */
  readonly listen: Listen | null;
  /** Without a slash at its end; null: as `listen`. */
  readonly url: string | null;
  readonly tls: { readonly cert: string; readonly key: string } | null;
  /** Path of a certificate that machines accept; null: those of public authorities. */
  readonly ca: string | null;
  /** Path of a file, or an address. */
  readonly package: string;
  /** null: that of the file. */
  readonly sha256: string | null;
}

export interface Config {
  /** null without a file. */
  readonly path: string | null;
  /** What `{host}` stands for in agent names: the host's short name, 24 characters at most. */
  readonly host: string;
  readonly stateDir: string;
  readonly socket: string;
  /** null without `listen`. */
  readonly api: ApiConfig | null;
  /** null: who may open the socket may do everything. */
  readonly people: PeopleConfig | null;
  /** Bytes of log kept per agent. */
  readonly logLimit: number;
  /** Share of the disk, 0 to 1, below which nothing is released. */
  readonly diskMinFree: number;
  /** ms */
  readonly keepJobs: number;
  /** What happens to running agents when the manager stops (S10). */
  readonly onStop: Complete<typeof topKeys>['on_stop'];
  /** null: none. */
  readonly onQuarantine: RepairCommand | null;
  /** Where messages for people go; null: nowhere. */
  readonly notify: NotifyConfig | null;
  /** Private key that decrypts secrets of jobs; null if not set. */
  readonly secretsKey: SecretReference | null;
  /** Public key of minisign that signs releases; null: none needs to be signed. */
  readonly upgradeKey: string | null;
  /** Every secret that it refers to, by its key. */
  readonly secrets: readonly (readonly [key: string, secret: SecretReference])[];
  readonly services: readonly ServiceConfig[];
  /** Services that say where their jobs come from, so that trust rules work. */
  readonly origins: ReadonlySet<string>;
  readonly pools: readonly PoolConfig[];
  readonly runtimes: readonly RuntimeConfig[];
  /** Where host paths of its pools led when they were checked; empty if they are not of this host. */
  readonly places: ReadonlyMap<string, Look>;
  readonly clouds: readonly (CloudConfig & { readonly owner: string | null })[];
  readonly hosts: readonly CloudHost[];
  readonly join: JoinConfig | null;
}

/** An entry of `services`, `runtimes` or `clouds`, parsed but without defaults. */
export interface WrittenEntry {
  readonly type: string;
  readonly keys: Keys;
}

/** An entry of `hosts`, parsed but without defaults. */
export interface WrittenHost {
  readonly keys: WrittenKeys<typeof hostKeys>;
  /** Each merged over `defaults`. */
  readonly pools: ReadonlyMap<string, WrittenPool>;
  /** What its machines get as their config, as it is written. */
  readonly guest: Readonly<Record<'services' | 'defaults' | 'secrets' | 'pools', Readonly<Record<string, unknown>>>>;
}

/** What a config file says, parsed but without defaults. */
export interface Written {
  readonly top: TopFile;
  readonly services: ReadonlyMap<string, WrittenEntry>;
  readonly defaults: WrittenPool;
  /** Each merged over the defaults; null when the file has no `pools`. */
  readonly pools: ReadonlyMap<string, WrittenPool> | null;
  readonly runtimes: ReadonlyMap<string, WrittenEntry>;
  readonly clouds: ReadonlyMap<string, WrittenEntry>;
  readonly hosts: ReadonlyMap<string, WrittenHost>;
  /** Keys with a problem (`pools.lab.agents`, `defaults.cpus`), whose values are not known. */
  readonly broken: ReadonlySet<string>;
}
