/** The config as the rest of onejob sees it: complete, checked, read-only. `keys.ts` declares its keys. */
import { serviceType, type serviceTypes } from '../ci/types.ts';
import type { Mount, Recipe } from '../runtimes/runtime.ts';
import type { Look } from '../system/real-path.ts';
import { parseListen } from './check-api.ts';
import { resolveClouds, type WrittenCloud, type WrittenHost } from './clouds.ts';
import type { HostFacts } from './environment.ts';
import { complete } from './key.ts';
import {
  apiKeys,
  deviceKeys,
  diskKeys,
  imageKeys,
  notifyKeys,
  poolKeys,
  type TopFile,
  topKeys,
  trustKeys,
  unsafeKeys,
  type WrittenPool,
} from './keys.ts';
import type { Paths } from './paths.ts';
import type { Keys } from './service-keys.ts';
import { cachePath, isNamed } from './volumes.ts';

export type RuntimeName = 'docker' | 'process';

export type ServiceConfig = NonNullable<ReturnType<(typeof serviceTypes)[number]['resolve']>>;

/** The program of a CI service's agent: put into images onejob builds (Azure Pipelines), or mounted into any image (Buildkite). */
export interface AgentPackageConfig {
  /** null: the newest of the service; for Buildkite whatever `from` is. */
  readonly version: string | null;
  /**
   * https address, or absolute path of a `.tar.gz`; null: the service's own. For Buildkite also the absolute path of the program,
   * or `image`: each image brings its own.
   */
  readonly from: string | null;
  /** Lower-case hex, of the file that `from` names; null: as the service says. */
  readonly sha256: string | null;
}

export type Config = Readonly<ReturnType<typeof resolveConfig>>;
export type PoolConfig = Readonly<ReturnType<typeof resolvePool>> & {
  /** Whose machines in a cloud have its slots, and its name there. Absent: its slots are here. */
  readonly elsewhere?: { readonly host: string; readonly pool: string };
};
/** A job is trusted unless it is from a fork, another build triggered it, or a pattern does not name what it is from. */
export type TrustConfig = PoolConfig['trust'];
export type DeviceRequest = PoolConfig['devices'];
/** An image that onejob builds; `auto` chooses the base from architecture, driver and GPU generation. */
export type ImageRecipe = NonNullable<PoolConfig['imageRecipe']>;
export type NotifyConfig = NonNullable<Config['notify']>;
export type RepairCommand = NonNullable<Config['onQuarantine']>;

/** What is written of a service, parsed but without defaults. */
export type WrittenService = { readonly type: ServiceConfig['type']; readonly keys: Keys };

export type { WrittenCloud, WrittenHost } from './clouds.ts';

/** What a config file says, parsed but without defaults. */
export interface Written {
  readonly top: TopFile;
  readonly services: ReadonlyMap<string, WrittenService>;
  readonly defaults: WrittenPool;
  /** Each merged over the defaults; null when the file has no `pools`. */
  readonly pools: ReadonlyMap<string, WrittenPool> | null;
  readonly clouds: ReadonlyMap<string, WrittenCloud>;
  readonly hosts: ReadonlyMap<string, WrittenHost>;
  /** Keys with a problem (`pools.lab.agents`, `defaults.cpus`), whose values are not known. */
  readonly broken: ReadonlySet<string>;
}

export const nothingWritten: Written = {
  ...{ top: {}, services: new Map(), defaults: {}, pools: null, clouds: new Map(), hosts: new Map(), broken: new Set() },
};

/** What decides about the pools where none are written. */
export interface Usual {
  /** Whether this host has GPUs that jobs could use. */
  readonly gpus: boolean;
  /** Whether the daemon ends with its last job. */
  readonly temporary: boolean;
}

/**
 * The pools without `pools` in the file, or without a file, as `onejob init own-queue` writes them: a job that asks for no devices
 * must not take one. A daemon that stays keeps an agent on each device; one that is there for a job takes devices only for jobs
 * that ask for them, because other managers of the host may want them.
 */
function usualPools({ gpus, temporary }: Usual, defaults: WrittenPool): ReadonlyMap<string, WrittenPool> {
  const pools = new Map<string, WrittenPool>([['default', { agents: 2, ...defaults }]]);
  // What "defaults" says was meant for the one pool that there was.
  if (!gpus || Object.keys(defaults).length > 0) return pools;
  return pools.set('gpu', { agents: 'per-device', devices: { count: 1 }, ...(temporary && { standby: false }) });
}

export function resolveConfig(written: Written, paths: Paths, host: HostFacts, usual: Usual = { gpus: false, temporary: false }) {
  const top = complete(topKeys, written.top);
  const services: readonly ServiceConfig[] = [...written.services].flatMap(
    ([name, { type, keys }]) => serviceType(type).resolve(name, keys) ?? [],
  );
  const ownNames = new Set(services.filter((service) => service.type === 'own-queue').map((service) => service.name));
  // From what is written: a service with problems has the same kind of pools.
  const typeOf = (service = '') => serviceType(written.services.get(service)?.type);
  const writtenPools = written.pools ?? usualPools(usual, written.defaults);
  const stateDir = paths.stateDir.path;
  const pools: readonly PoolConfig[] = [...writtenPools].map(([name, pool]) => {
    return resolvePool(name, pool, { ownNames, isInImages: typeOf(pool.service).agent !== null, stateDir });
  });
  return Object.freeze({
    /** null without a file. */
    path: paths.config?.path ?? null,
    /** What `{host}` stands for in agent names: the host's short name, 24 characters at most. */
    host: host.name,
    stateDir,
    socket: paths.socket.path,
    api: resolveApi(top.api),
    /** Bytes of log kept per agent. */
    logLimit: top.log_limit,
    /** Share of the disk, 0 to 1, below which nothing is released. */
    diskMinFree: complete(diskKeys, top.disk).min_free,
    /** ms */
    keepJobs: top.keep_jobs,
    /** What happens to running agents when the manager stops (S10). */
    onStop: top.on_stop,
    /** A program, by its path or its name on the `PATH`, and its arguments. Killed after `timeout`, ms. null: none. */
    onQuarantine: top.on_quarantine === undefined ? null : { command: top.on_quarantine, timeout: top.on_quarantine_timeout },
    /** Where messages for people go; null: nowhere. */
    notify: top.notify === undefined ? null : resolveNotify(top.notify),
    /** Private key that decrypts secrets of jobs; null if not set. */
    secretsKey: top.secrets?.key ?? null,
    /** Public key of minisign that signs releases; null: none needs to be signed. */
    upgradeKey: top.upgrade?.key ?? null,
    services,
    pools,
    /** Where host paths of its pools led when they were checked; empty if they are not of this host. */
    places: new Map() as ReadonlyMap<string, Look>,
    ...resolveClouds(written, (name, pool) =>
      resolvePool(name, pool, { ownNames, isInImages: typeOf(pool.service).agent !== null, stateDir }),
    ),
  });
}

function resolveNotify(given: NonNullable<TopFile['notify']>) {
  const { webhook = null, command = null, timeout } = complete(notifyKeys, given);
  return Object.freeze({
    /** The address, or where it is; null: `command` is set. */
    webhook,
    /** A program, by its path or its name on the `PATH`, and its arguments; null: `webhook` is set. */
    command,
    /** ms for one message. */
    timeout,
  });
}

/** Access over TCP; null without `listen`. */
export type ApiConfig = NonNullable<Config['api']>;

function resolveApi(given: TopFile['api']) {
  const { listen: written = '', tls_cert: cert, tls_key: key, behind_proxy: behindProxy, hosts } = complete(apiKeys, given);
  const listen = parseListen(written);
  if (listen === null) return null;
  const tls = cert === undefined || key === undefined ? null : { cert, key };
  return Object.freeze({ listen, tls, behindProxy, hosts });
}

interface Surroundings {
  /** Services of type `own-queue`. */
  readonly ownNames: ReadonlySet<string>;
  /** Whether its agents are programs in images. */
  readonly isInImages: boolean;
  readonly stateDir: string;
}

function resolvePool(name: string, given: WrittenPool, { ownNames, isInImages, stateDir }: Surroundings) {
  const pool = complete(poolKeys, given, isInImages);
  const service = ownNames.has(pool.service) ? 'own' : pool.service;
  const asked = typeof pool.devices === 'object' ? pool.devices : { count: pool.devices };
  const { uuid = [], capabilities, numa, ...conditions } = complete(deviceKeys, asked);
  const { privileged, pid_host: pidHost, seccomp_unconfined: seccompUnconfined } = complete(unsafeKeys, given.unsafe);
  const best: RuntimeName | null = isInImages || given.image !== undefined ? 'docker' : null;
  const image = pool.image === 'auto' ? { base: pool.image } : pool.image;
  // `{name}` in variables and mounts is expanded for each slot by `expandRecipe`.
  const recipe: Recipe = {
    image: typeof image === 'string' && pool.runtime !== 'process' ? image : null,
    pull: pool.pull,
    env: { ...given.env, ...cpuVariable(pool) },
    mounts: [...(given.volumes ?? []), ...(given.caches ?? []).map((cache) => placeCache(cache, name, stateDir))],
    cpus: pool.cpus,
    memory: pool.memory,
    pids: pool.pids,
    shmSize: pool.shm_size,
    ulimits: Object.entries(given.ulimits ?? {}).map(([limit, { soft, hard }]) => ({ name: limit, soft, hard })),
    network: pool.network,
    user: given.user ?? null,
    readOnly: pool.read_only,
    tmpfs: given.tmpfs ?? {},
    capAdd: given.cap_add ?? [],
    oomScoreAdj: pool.oom_score_adj,
    grant: { way: pool.grant, capabilities: [...new Set(capabilities)], numa },
    unsafe: { privileged, pidHost, seccompUnconfined },
  };
  return {
    name,
    /** Key in `services`, or `own` for the own queue. */
    service,
    /** null: the best one available. Never null for a pool with an image. */
    runtime: pool.runtime === 'best' ? best : pool.runtime,
    /** The queue at the CI service; for the own queue the pool's name. */
    queue: service === 'own' ? name : (given.queue ?? name),
    priority: pool.priority,
    /** Template; expand it with `expandName`. */
    agentName: pool.name,
    /** Number of slots; `per-device`: one for each device that fits. */
    agents: pool.agents,
    /** Devices that each agent needs, with conditions on them. */
    devices: Object.freeze({ ...conditions, uuids: [uuid].flat() }),
    tags: resolveTags(given.tags),
    standby: pool.standby,
    /** ms */
    standbyMaxAge: pool.standby_max_age,
    /** ms a job may take to end after TERM. */
    stopGrace: pool.stop_grace,
    /** ms a job may run; null for no limit. */
    timeout: pool.timeout,
    /** Bytes that the files of a job may take on disk; null for no limit. */
    disk: pool.disk,
    /** ms that the sandbox of a failed job is kept; null: not at all. */
    holdFailed: pool.hold_failed,
    trust: Object.freeze(complete(trustKeys, given.trust)),
    /** `none`: credentials of a CI service may enter a sandbox that does not hide them from other jobs (S8). */
    isolation: pool.isolation,
    /** Folders of the host for agents that support them; null: none. */
    hooks: pool.hooks,
    plugins: pool.plugins,
    /** Bytes for each named cache of a slot. */
    cacheLimit: pool.cache_limit,
    /** null unless onejob chooses or builds the image; then `recipe.image` is null until it has. */
    imageRecipe: typeof image === 'string' ? null : Object.freeze(complete(imageKeys, image)),
    recipe,
  };
}

function cpuVariable({ cpu_env: name, cpus }: Pick<WrittenPool, 'cpu_env' | 'cpus'>): Record<string, string> {
  return typeof name !== 'string' || typeof cpus !== 'number' ? {} : { [name]: String(Math.max(1, Math.floor(cpus))) };
}

/** A named cache has a folder for each slot. */
function placeCache(mount: Mount, pool: string, stateDir: string): Mount {
  return isNamed(mount.cache) ? { ...mount, host: cachePath(stateDir, pool, '{name}', mount.cache.name) } : mount;
}

/** `key=value` each: a list gives a tag several values; a text is split at its commas. */
function resolveTags(tags: WrittenPool['tags']): readonly string[] {
  if (typeof tags === 'string') return tags.split(',').flatMap((tag) => tag.trim() || []);
  return Object.entries(tags ?? {}).flatMap(([key, value]) => [value].flat().map((one) => `${key}=${one}`));
}
