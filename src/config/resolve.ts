/** What holds: what a config says, with the defaults. */
import { parseListen } from '../http/address.ts';
import type { Mount, Recipe } from '../ports/runtime.ts';
import { complete } from '../schema/key.ts';
import type { SecretReference } from '../schema/secret-reference.ts';
import type { Keys } from '../schema/service-keys.ts';
import { cachePath, isNamed } from '../schema/volumes.ts';
import type { HostFacts } from './checking.ts';
import { resolveClouds } from './clouds.ts';
import type { ApiConfig, Config, NotifyConfig, PoolConfig, RuntimeName, Written } from './config.ts';
import {
  apiKeys,
  benchmarkKeys,
  containerKeys,
  deviceKeys,
  diskKeys,
  imageKeys,
  notifyKeys,
  peopleGroupKeys,
  peopleKeys,
  poolKeys,
  type TopFile,
  topKeys,
  trustKeys,
  unsafeKeys,
  type WrittenPool,
} from './keys.ts';
import type { Paths } from './paths.ts';
import type { PeopleConfig, PeopleGroup } from './people.ts';
import type { RuntimeType } from './runtime-type.ts';
import { cloudType, hasImages, runtimeType, serviceType, type Types, tellingOrigin } from './types.ts';

export const nothingWritten: Written = {
  top: {},
  services: new Map(),
  defaults: {},
  pools: null,
  runtimes: new Map(),
  clouds: new Map(),
  hosts: new Map(),
  broken: new Set(),
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

export function resolveConfig(
  written: Written,
  paths: Paths,
  host: HostFacts,
  types: Types,
  usual: Usual = { gpus: false, temporary: false },
): Config {
  const top = complete(topKeys, written.top);
  const services = [...written.services].flatMap(([name, { type, keys }]) => serviceType(types, type).resolve(name, keys) ?? []);
  const ownNames = new Set(services.filter((service) => service.type === 'own-queue').map((service) => service.name));
  // From what is written: a service with problems has the same kind of pools.
  const typeOf = (service = '') => serviceType(types, written.services.get(service)?.type);
  const writtenPools = written.pools ?? usualPools(usual, written.defaults);
  const stateDir = paths.stateDir.path;
  const surroundings = (pool: WrittenPool): Surroundings => ({
    ownNames,
    isInImages: typeOf(pool.service).agent !== null,
    stateDir,
    engine: runtimeType(types, written.runtimes, pool.runtime) ?? null,
  });
  const pools: readonly PoolConfig[] = [...writtenPools].map(([name, pool]) => resolvePool(name, pool, surroundings(pool)));
  const runtimes = [...written.runtimes].flatMap(
    ([name, { keys }]) => runtimeType(types, written.runtimes, name)?.resolve(name, keys) ?? [],
  );
  const secretsKey = top.secrets?.key ?? null;
  const notify = top.notify === undefined ? null : resolveNotify(top.notify);
  const machines = resolveClouds(written, types, (name, pool) => resolvePool(name, pool, surroundings(pool)));
  return Object.freeze({
    path: paths.config?.path ?? null,
    host: host.name,
    stateDir,
    socket: paths.socket.path,
    api: resolveApi(top.api),
    people: resolvePeople(top.people),
    logLimit: top.log_limit,
    diskMinFree: complete(diskKeys, top.disk).min_free,
    keepJobs: top.keep_jobs,
    onStop: top.on_stop,
    onQuarantine: top.on_quarantine === undefined ? null : { command: top.on_quarantine, timeout: top.on_quarantine_timeout },
    notify,
    secretsKey,
    secrets: secretsOf(types, { secretsKey, notify, services, clouds: machines.clouds }),
    upgradeKey: top.upgrade?.key ?? null,
    services,
    origins: tellingOrigin(types, services),
    pools,
    runtimes,
    places: new Map(),
    ...machines,
  });
}

type Referring = Pick<Config, 'secretsKey' | 'notify' | 'services' | 'clouds'>;

function secretsOf(types: Types, { secretsKey, notify, services, clouds }: Referring): [string, SecretReference][] {
  const found: [string, SecretReference][] = secretsKey === null ? [] : [['secrets.key', secretsKey]];
  if (notify !== null && typeof notify.webhook === 'object' && notify.webhook !== null)
    found.push(['notify.webhook', notify.webhook]);
  for (const service of services)
    for (const [key, secret] of serviceType(types, service.type).secrets(service))
      found.push([`services.${service.name}.${key}`, secret]);
  for (const cloud of clouds)
    for (const [key, secret] of cloudType(types, cloud.type).secrets(cloud)) found.push([`clouds.${cloud.name}.${key}`, secret]);
  return found;
}

function resolveNotify(given: NonNullable<TopFile['notify']>): NotifyConfig {
  const { webhook = null, command = null, timeout } = complete(notifyKeys, given);
  return Object.freeze({
    webhook,
    command,
    timeout,
  });
}

function resolveApi(given: TopFile['api']): ApiConfig | null {
  const { listen: written = '', tls_cert: cert, tls_key: key, behind_proxy: behindProxy, hosts } = complete(apiKeys, given);
  const listen = parseListen(written);
  if (listen === null) return null;
  const tls = cert === undefined || key === undefined ? null : { cert, key };
  return Object.freeze({ listen, tls, behindProxy, hosts });
}

function resolvePeople(given: TopFile['people']): PeopleConfig | null {
  if (given === undefined) return null;
  const { groups = {}, half_life: halfLife } = complete(peopleKeys, given);
  const all = Object.entries(groups).map(([name, written]): PeopleGroup => {
    const { cards_each: cardsEach, volumes, ...rest } = complete(peopleGroupKeys, written);
    const folders = volumes.map((text) => {
      const [host = '', mode] = text.split(':');
      return { host: host.replace(/(?<=.)\/+$/, ''), readOnly: mode !== 'rw' };
    });
    return { name, ...rest, cardsEach, volumes: folders };
  });
  return Object.freeze({ groups: all, halfLife });
}

interface Surroundings {
  /** Services of type `own-queue`. */
  readonly ownNames: ReadonlySet<string>;
  /** Whether its agents are programs in images. */
  readonly isInImages: boolean;
  readonly stateDir: string;
  /** The type of its runtime, if an engine places its sandboxes. */
  readonly engine: RuntimeType | null;
}

/** What a pool asks of this host, or of the engine that grants it devices instead. */
function resolveDevices({ devices: written, benchmark }: WrittenPool) {
  const asked = typeof written === 'object' ? written : { count: written ?? 0 };
  // Only a whole card has a temperature and clocks of its own, and only NVIDIA's tool is known to lock them.
  const measured = benchmark ? { vendor: 'nvidia' as const, mig: false } : {};
  const { uuid = [], capabilities, numa, ...conditions } = complete(deviceKeys, { ...measured, ...asked });
  return { devices: Object.freeze({ ...conditions, uuids: [uuid].flat() }), capabilities, numa };
}

function resolvePool(name: string, given: WrittenPool, { ownNames, isInImages, stateDir, engine }: Surroundings): PoolConfig {
  // What waits there keeps others from devices.
  const usual = engine === null ? {} : { standby: false };
  const pool = complete(poolKeys, { ...usual, ...given }, isInImages);
  const service = ownNames.has(pool.service) ? 'own' : pool.service;
  const { devices, capabilities, numa } = resolveDevices(given);
  const { privileged, pid_host: pidHost, seccomp_unconfined: seccompUnconfined } = complete(unsafeKeys, given.unsafe);
  const best: RuntimeName | null =
    isInImages || given.image !== undefined || pool.containers || pool.oci_runtime !== null ? 'docker' : null;
  const { timeout, standby, standby_max_age: standbyMaxAge } = pool;
  const written = engine === null ? {} : ((given as Readonly<Record<string, Keys | undefined>>)[engine.type] ?? {});
  const wants = engine?.wants({ devices, timeout, standby, standbyMaxAge, written });
  const isImage = hasImages({ runtime: pool.runtime, recipe: { ...(wants !== undefined && { wants }) } });
  const image = pool.image === 'auto' ? { base: pool.image } : pool.image;
  // `{name}` in variables and mounts is expanded for each slot by `expandRecipe`.
  const recipe: Recipe = {
    image: typeof image === 'string' && isImage ? image : null,
    ...(wants !== undefined && { wants }),
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
    ...(pool.oci_runtime !== null && { ociRuntime: pool.oci_runtime }),
    grant: { way: pool.grant, capabilities: [...new Set(capabilities)], numa },
    ...(pool.containers && { containers: resolveContainers(pool.containers, pool.pull) }),
    unsafe: { privileged, pidHost, seccompUnconfined },
  };
  return {
    name,
    service,
    runtime: pool.runtime === 'best' ? best : pool.runtime,
    queue: service === 'own' ? name : (given.queue ?? name),
    priority: pool.priority,
    agentName: pool.name,
    agents: pool.agents,
    devices: engine === null ? devices : resolveDevices({}).devices,
    ...(pool.benchmark && { benchmark: complete(benchmarkKeys, pool.benchmark === true ? {} : pool.benchmark) }),
    tags: resolveTags(given.tags),
    standby,
    standbyMaxAge,
    stopGrace: pool.stop_grace,
    timeout,
    disk: pool.disk,
    holdFailed: pool.hold_failed,
    trust: Object.freeze(complete(trustKeys, given.trust)),
    isolation: pool.isolation,
    hooks: pool.hooks,
    plugins: pool.plugins,
    cacheFor: pool.cache_for,
    cacheLimit: pool.cache_limit,
    imageRecipe: typeof image === 'string' ? null : Object.freeze(complete(imageKeys, image)),
    recipe,
  };
}

/** What is not written is not there, so that sandboxes stay what they were before there was such a key. */
function resolveContainers(written: WrittenPool['containers'], pull: Recipe['pull']): NonNullable<Recipe['containers']> {
  const {
    images,
    learn: limit,
    pull: patterns,
    logins,
    mirrors,
  } = complete(containerKeys, typeof written === 'object' ? written : {});
  const ready = { images, pull, logins, ...(limit !== null && { learn: { limit, pull: patterns } }) };
  return {
    image: null,
    ...((images.length > 0 || limit !== null) && { ready }),
    ...(mirrors.length > 0 && { mirrors }),
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
