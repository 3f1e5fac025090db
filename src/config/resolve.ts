/** From what is written to a complete config. Pure; checks nothing and reads nothing. */

import type { Recipe } from '../runtimes/runtime.ts';
import type { Config, DeviceRequest, ImageRecipe, PoolConfig, RepairCommand } from './config.ts';
import { imagePoolDefaults, onlyPool, poolDefaults, topDefaults } from './defaults.ts';
import type { HostFacts } from './environment.ts';
import type { Paths } from './paths.ts';
import { resolveService } from './resolve-service.ts';
import type { WrittenPool } from './schema.ts';
import type { Written } from './written.ts';

export function resolveConfig(written: Written, paths: Paths, host: HostFacts): Config {
  const { top } = written;
  const services = [...written.services].flatMap(([name, service]) => resolveService(name, service) ?? []);
  const ownNames = new Set(services.filter((service) => service.type === 'own-queue').map((service) => service.name));
  /** Read from what is written: a service with a problem of its own has the same kind of pools. */
  const inImage = (service: string | undefined) => written.services.get(service ?? '')?.type === 'azure-pipelines';
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
      resolvePool(name, pool, ownNames, inImage(pool.service) ? imagePoolDefaults : poolDefaults),
    ),
  });
}

function resolveRepair({ on_quarantine: command, on_quarantine_timeout: timeout }: Written['top']): RepairCommand | null {
  return command === undefined ? null : { command, timeout: timeout ?? topDefaults.on_quarantine_timeout };
}

function resolvePool(
  name: string,
  given: WrittenPool,
  ownNames: ReadonlySet<string>,
  defaults: typeof poolDefaults | typeof imagePoolDefaults,
): PoolConfig {
  const pool = { ...defaults, ...given };
  const service = ownNames.has(pool.service) ? 'own' : pool.service;
  const imageRecipe = resolveImage(pool.image);
  return {
    name,
    service,
    runtime: pool.runtime !== 'best' ? pool.runtime : defaults.runtime === 'best' ? null : defaults.runtime,
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
    trust: given.trust?.forks === undefined ? null : { forks: given.trust.forks },
    isolation: pool.isolation,
    imageRecipe,
    recipe: {
      image: imageRecipe === null && typeof pool.image === 'string' && pool.runtime !== 'process' ? pool.image : null,
      pull: pool.pull,
      env: given.env ?? {},
      mounts: [...(given.volumes ?? []), ...(given.caches ?? [])],
      cpus: pool.cpus,
      memory: pool.memory,
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
