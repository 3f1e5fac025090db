/** From what is written to a complete config. Pure; checks nothing and reads nothing. */
import { serviceType } from '../ci/types.ts';
import type { Mount, Recipe } from '../runtimes/runtime.ts';
import { cachePath } from './caches.ts';
import type { Config, DeviceRequest, ImageRecipe, PoolConfig, RepairCommand, TrustConfig } from './config.ts';
import { imagePoolDefaults, onlyPool, poolDefaults, topDefaults } from './defaults.ts';
import type { HostFacts } from './environment.ts';
import type { Paths } from './paths.ts';
import type { WrittenPool } from './schema.ts';
import { isNamed } from './volumes.ts';
import type { Written } from './written.ts';

export function resolveConfig(written: Written, paths: Paths, host: HostFacts): Config {
  const { top } = written;
  const services = [...written.services].flatMap(([name, { type, keys }]) => serviceType(type).resolve(name, keys) ?? []);
  const ownNames = new Set(services.filter((service) => service.type === 'own-queue').map((service) => service.name));
  /** Read from what is written: a service with a problem of its own has the same kind of pools. */
  const typeOf = (service = '') => serviceType(written.services.get(service)?.type);
  const pools = written.pools ?? new Map([[onlyPool.name, { agents: onlyPool.agents, ...written.defaults }]]);
  return Object.freeze({
    path: paths.config?.path ?? null,
    host: host.name,
    stateDir: paths.stateDir.path,
    socket: paths.socket.path,
    logLimit: top.log_limit ?? topDefaults.log_limit,
    diskMinFree: top.disk?.min_free ?? topDefaults.disk.min_free,
    keepJobs: top.keep_jobs ?? topDefaults.keep_jobs,
    onStop: top.on_stop ?? topDefaults.on_stop,
    onQuarantine: resolveRepair(top),
    secretsKey: top.secrets?.key ?? null,
    services,
    pools: [...pools].map(([name, pool]) =>
      resolvePool(name, pool, {
        ownNames,
        defaults: typeOf(pool.service).agent === null ? poolDefaults : imagePoolDefaults,
        stateDir: paths.stateDir.path,
      }),
    ),
  });
}

function resolveRepair({ on_quarantine: command, on_quarantine_timeout: timeout }: Written['top']): RepairCommand | null {
  return command === undefined ? null : { command, timeout: timeout ?? topDefaults.on_quarantine_timeout };
}

interface Surroundings {
  /** Services that are the own queue. */
  readonly ownNames: ReadonlySet<string>;
  readonly defaults: typeof poolDefaults | typeof imagePoolDefaults;
  readonly stateDir: string;
}

function resolvePool(name: string, given: WrittenPool, { ownNames, defaults, stateDir }: Surroundings): PoolConfig {
  const pool = { ...defaults, ...given };
  const service = ownNames.has(pool.service) ? 'own' : pool.service;
  const imageRecipe = resolveImage(pool.image);
  return {
    name,
    service,
    runtime: pool.runtime !== 'best' ? pool.runtime : defaults.runtime === 'best' && given.image === undefined ? null : 'docker',
    queue: service === 'own' ? name : (given.queue ?? name),
    priority: pool.priority,
    agentName: pool.name,
    agents: pool.agents,
    devices: resolveDevices(pool.devices),
    tags: resolveTags(given.tags),
    standby: pool.standby,
    standbyMaxAge: pool.standby_max_age,
    stopGrace: pool.stop_grace,
    timeout: pool.timeout,
    disk: pool.disk,
    trust: resolveTrust(given.trust),
    isolation: pool.isolation,
    hooks: pool.hooks,
    plugins: pool.plugins,
    cacheLimit: pool.cache_limit,
    imageRecipe,
    recipe: {
      image: imageRecipe === null && typeof pool.image === 'string' && pool.runtime !== 'process' ? pool.image : null,
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
      grant: resolveGrant(pool.grant, pool.devices),
      unsafe: {
        privileged: given.unsafe?.privileged ?? false,
        pidHost: given.unsafe?.pid_host ?? false,
        seccompUnconfined: given.unsafe?.seccomp_unconfined ?? false,
      },
    },
  };
}

function resolveTrust(given: WrittenPool['trust']): TrustConfig {
  const { trust } = poolDefaults;
  return {
    forks: given?.forks ?? trust.forks,
    pipelines: given?.pipelines ?? null,
    branches: given?.branches ?? null,
    tags: given?.tags ?? null,
    sources: given?.sources ?? null,
    repositories: given?.repositories ?? null,
    triggered: given?.triggered ?? trust.triggered,
    others: given?.others ?? trust.others,
    caches: given?.caches ?? trust.caches,
    image: given?.image ?? null,
    network: given?.network ?? trust.network,
  };
}

/** Whole CPUs, for programs that take the number of their threads from it. */
function cpuVariable({ cpu_env: name, cpus }: Pick<WrittenPool, 'cpu_env' | 'cpus'>): Record<string, string> {
  return typeof name !== 'string' || typeof cpus !== 'number' ? {} : { [name]: String(Math.max(1, Math.floor(cpus))) };
}

/** A named cache has a folder for each slot. */
function placeCache(mount: Mount, pool: string, stateDir: string): Mount {
  return isNamed(mount.cache) ? { ...mount, host: cachePath(stateDir, pool, '{name}', mount.cache.name) } : mount;
}

function resolveImage(image: NonNullable<WrittenPool['image']>): ImageRecipe | null {
  if (image === 'auto') return { base: 'auto', packages: [], dockerfile: null, flavour: 'devel', distribution: null };
  if (typeof image === 'string') return null;
  return {
    base: image.base ?? null,
    packages: image.packages ?? [],
    dockerfile: image.dockerfile ?? null,
    flavour: image.flavour ?? 'devel',
    distribution: image.distribution ?? null,
  };
}

function resolveDevices(devices: NonNullable<WrittenPool['devices']>): DeviceRequest {
  const asked: Extract<typeof devices, object> = typeof devices === 'object' ? devices : { count: devices };
  return {
    count: asked.count ?? 1,
    mig: asked.mig ?? null,
    model: asked.model ?? null,
    uuids: [asked.uuid ?? []].flat(),
    vendor: asked.vendor ?? null,
    memory: asked.memory ?? null,
    compute: asked.compute ?? null,
    share: asked.share ?? 1,
    display: asked.display ?? 'allow',
  };
}

function resolveGrant(way: NonNullable<WrittenPool['grant']>, devices: NonNullable<WrittenPool['devices']>): Recipe['grant'] {
  const { capabilities = [], numa = false } = typeof devices === 'object' ? devices : {};
  return { way, capabilities: [...new Set(capabilities)], numa };
}

/** `key=value` each: a list gives a tag several values; a text is split at its commas. */
function resolveTags(tags: WrittenPool['tags']): string[] {
  if (tags === undefined) return [];
  if (typeof tags === 'string')
    return tags
      .split(',')
      .map((tag) => tag.trim())
      .filter((tag) => tag !== '');
  return Object.entries(tags).flatMap(([key, value]) => [value].flat().map((one) => `${key}=${one}`));
}
