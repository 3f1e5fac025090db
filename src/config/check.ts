/** Checks across keys. Each problem is reported at one key, names the other, and says what would go wrong. */
import { formatSize } from '../base/units.ts';
import { formatPath, type Path, type Problem, suggest } from '../schema/problem.ts';
import { countsSlots, expandName, templateProblem } from '../schema/template.ts';
import { isNamed, untrustedFolder } from '../schema/volumes.ts';
import { looksSecret } from '../schema/webhook.ts';
import { checkApi } from './check-api.ts';
import { checkBenchmark } from './check-benchmark.ts';
import { checkContainers } from './check-containers.ts';
import { checkDevices, checkPartition, checkRepair } from './check-devices.ts';
import { checkMounts, checkNesting, hostPathProblem } from './check-mounts.ts';
import { checkNetworks } from './check-network.ts';
import { checkOciRuntime } from './check-oci-runtime.ts';
import { checkPeople } from './check-people.ts';
import { type Checking, type HostFacts, unreadable, type Writing } from './checking.ts';
import { checkClouds } from './clouds.ts';
import type { Config, PoolConfig, ServiceConfig, Written } from './config.ts';
import type { RuntimeType } from './runtime-type.ts';
import type { ServiceType } from './service-type.ts';
import { hasImages, runtimeType, serviceType, type Types, tellingOrigin, titlesWith } from './types.ts';

export function checkAcross(
  config: Config,
  written: Written,
  writing: Writing,
  types: Types,
  host: HostFacts | null,
  starting = false,
): Problem[] {
  const problems: Problem[] = [];
  const isBroken = (path: Path): boolean => written.broken.has(formatPath(path));
  /** `root`: where pools are written. */
  const checkingOf = (given: Pick<Checking, 'config' | 'written' | 'host'>, root: Path): Checking => ({
    ...given,
    starting,
    root,
    whyHidden: (path) => hostPathProblem({ host: path }, config),
    sound: (pool, ...keys) => !keys.some((key) => isBroken([...root, pool.name, key]) || isBroken(['defaults', key])),
    own: (pool, key) => writing.has([...root, pool.name, key]),
    inPool(pool, path, message, level = 'error') {
      const own = [...root, pool.name, ...path];
      const shared = ['defaults', ...path];
      const place = !writing.has(own) && writing.has(shared) ? writing.locate(shared) : writing.locate(own);
      problems.push({ ...place, level, key: formatPath(own), message });
    },
    at(path, message, level = 'error') {
      problems.push({ ...writing.locate(path, 'key'), level, key: formatPath(path), message });
    },
  });
  const checking = checkingOf({ config, written, host }, ['pools']);
  if (written.pools?.size === 0) checking.at(['pools'], 'is empty: onejob would run nothing; write a pool, or remove the key');
  const guests = guestsOf(checking).map((guest) => checkingOf({ ...guest, host: null }, ['hosts', guest.name, 'pools']));
  for (const where of [checking, ...guests]) {
    for (const pool of where.config.pools) {
      checkPoolService(pool, where, types);
      checkPoolRuntime(pool, where, types);
      checkDevices(pool, where);
      checkBenchmark(pool, where);
      checkRecipe(pool, where);
      checkContainers(pool, where);
      checkOciRuntime(pool, where);
      // A Dockerfile of a machine is there, not here.
      if (where === checking) checkImage(pool, where);
      checkMounts(pool, where);
    }
    checkNesting(where);
    checkNames(where);
    checkNetworks(where);
  }
  checkServices(checking, types);
  checkApi(checking);
  checkPeople(checking);
  checkClouds(checking, types);
  checkPartition(checking);
  checkRepair(checking);
  checkSums(checking);
  checkNotify(checking);
  return problems;
}

/** The config of the machines of each host, as far as it decides about their pools. */
function guestsOf({ config, written }: Checking) {
  return config.hosts.map(({ host: name, pools }) => {
    const own = written.hosts.get(name)?.pools ?? null;
    const there = pools.map(({ elsewhere, ...pool }): PoolConfig => {
      const named = elsewhere?.pool ?? pool.name;
      return { ...pool, name: named, agents: own?.get(named)?.agents ?? 1 };
    });
    // As long as the name of a machine.
    return {
      name,
      config: { ...config, host: `${name}-000000`, pools: there, places: new Map() },
      written: { ...written, pools: own },
    };
  });
}

/** Names of variables that usually hold a secret. */
const secretName = /(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|PRIVATE_KEY|API_KEY|ACCESS_KEY)$/i;
const limits = 'core cpu data fsize locks memlock msgqueue nice nofile nproc rss rtprio rttime sigpending stack'.split(' ');

function checkRecipe(pool: PoolConfig, { written, sound, own, inPool }: Checking): void {
  const { recipe, imageRecipe } = pool;
  if (sound(pool, 'image') && imageRecipe !== null) {
    if (imageRecipe.base === null && imageRecipe.dockerfile === null) {
      inPool(pool, ['image'], 'has neither "base" nor "dockerfile": there is nothing to build on');
    } else if (imageRecipe.base !== null && imageRecipe.dockerfile !== null) {
      inPool(pool, ['image', 'base'], 'conflicts with "dockerfile": a Dockerfile names its own base; remove one of the two');
    }
  }
  const image = own(pool, 'image') ? written.pools?.get(pool.name)?.image : undefined;
  if (typeof image === 'object' && image.base !== 'auto') {
    for (const key of ['flavour', 'distribution'] as const) {
      if (image[key] !== undefined) inPool(pool, ['image', key], 'is not used: "base" is not auto', 'warning');
    }
  }
  if (!hasImages(pool) && own(pool, 'image')) {
    inPool(pool, ['image'], `is not used: "runtime" is ${pool.runtime}, which has no images`, 'warning');
  }
  if (sound(pool, 'shm_size', 'memory') && recipe.shmSize !== null && recipe.memory !== null && recipe.shmSize > recipe.memory) {
    const [shm, memory] = [formatSize(recipe.shmSize), formatSize(recipe.memory)];
    inPool(pool, ['shm_size'], `is ${shm}, more than "memory" (${memory}): a job that filled it would be killed`);
  }
  for (const { name, soft, hard } of recipe.ulimits) {
    if (!limits.includes(name)) inPool(pool, ['ulimits', name], `unknown limit; ${suggest(name, limits)}`);
    const above = hard !== -1 && (soft === -1 || soft > hard);
    if (above) inPool(pool, ['ulimits', name], `"soft" is above "hard": the sandbox would not start`);
  }
  const { env = {}, cpu_env: cpuVariable } = written.pools?.get(pool.name) ?? written.defaults;
  if (typeof cpuVariable === 'string' && sound(pool, 'cpu_env', 'env', 'cpus')) {
    if (Object.hasOwn(env, cpuVariable)) {
      inPool(pool, ['cpu_env'], `is ${cpuVariable}, which "env" sets too; remove one of the two`);
    } else if (recipe.cpus === null) {
      inPool(pool, ['cpu_env'], `is ${cpuVariable}, but "cpus" is not set, so the variable would have no value; set both`);
    } else if (cpuVariable.startsWith('ONEJOB_')) {
      inPool(pool, ['cpu_env'], 'names that begin with ONEJOB_ are set by onejob itself');
    }
  }
  for (const [key, value] of Object.entries(env)) {
    const path = ['env', key];
    if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(key))
      inPool(pool, path, 'is not a valid variable name: use letters, digits and "_", and do not begin with a digit');
    else if (key.startsWith('ONEJOB_')) inPool(pool, path, 'names that begin with ONEJOB_ are set by onejob itself');
    if (/^SECRET_./.test(key) && pool.service !== 'own') {
      const why = 'onejob decrypts only values that come from a pipeline; remove it from this file';
      inPool(pool, path, `is passed to every job of the pool still encrypted: ${why}`, 'warning');
    } else if (secretName.test(key) && value !== '') {
      const why = 'every job of the pool can read it, and so can everyone who can read this file';
      inPool(pool, path, `looks like a secret: ${why}`, 'warning');
    }
  }
}

function checkSums({ config, host, at }: Checking): void {
  if (host === null) return;
  let cpus = 0;
  let memory = 0;
  for (const { agents, recipe } of config.pools) {
    // An engine has hosts of its own, and keeps the books of them.
    if (recipe.wants !== undefined) continue;
    const slots = agents === 'per-device' ? 1 : agents;
    cpus += slots * (recipe.cpus ?? 0);
    memory += slots * (recipe.memory ?? 0);
  }
  if (cpus > host.cpus) {
    const sum = `${Number(cpus.toFixed(2))} CPUs, but this host has ${host.cpus}`;
    at(['pools'], `"cpus" and "agents" add up to ${sum}: jobs would slow each other down`, 'warning');
  }
  if (memory > host.memory) {
    const gib = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)}GiB`;
    const sum = `${gib(memory)}, but this host has ${gib(host.memory)}`;
    at(['pools'], `"memory" and "agents" add up to ${sum}: the kernel may end jobs`, 'warning');
  }
}

function checkNotify({ config: { notify }, written, at }: Checking): void {
  if (notify === null || [...written.broken].some((key) => /^notify(\W|$)/.test(key))) return;
  const { webhook, command } = notify;
  if (webhook === null && command === null) at(['notify'], 'has neither "webhook" nor "command": messages would go nowhere');
  if (webhook !== null && command !== null)
    at(['notify', 'command'], 'conflicts with "webhook": messages go one way; remove one of the two');
  if (typeof webhook === 'string' && looksSecret(webhook)) {
    const how = 'put the address into a file, and write webhook: { file: /etc/onejob/webhook.url }';
    at(
      ['notify', 'webhook'],
      `contains what looks like a token, and everyone who can read this file can use it; ${how}`,
      'warning',
    );
  }
}

/** The Dockerfile of a pool. A mistake keeps only this pool from starting, so it is a warning. */
function checkImage(pool: PoolConfig, { sound, inPool }: Checking): void {
  const { base = null, dockerfile: path = null } = pool.imageRecipe ?? {};
  // Another check reports a base next to a Dockerfile.
  if (path === null || base !== null || !sound(pool, 'image')) return;
  const why = unreadable(path);
  if (why !== null) inPool(pool, ['image', 'dockerfile'], `${path} ${why}: the image could not be built`, 'warning');
}

/** A name is also a host name: https://man7.org/linux/man-pages/man7/hostname.7.html allows 64, Docker 63. */
const longest = 63;

/** Each slot of this host needs a unique name that every runtime and CI service accepts. */
function checkNames({ config, sound, inPool }: Checking): void {
  const taken = new Map<string, PoolConfig>();
  for (const pool of config.pools) {
    if (!sound(pool, 'name', 'agents') || templateProblem(pool.agentName) !== null) continue;
    const slots = pool.agents === 'per-device' ? 1 : pool.agents;
    const written = JSON.stringify(pool.agentName);
    if (!countsSlots(pool.agentName) && (pool.agents === 'per-device' || pool.agents > 1)) {
      const why = `"agents" is ${pool.agents}; add {n} or {1..}`;
      inPool(pool, ['name'], `${written} gives all slots of the pool the same name, but ${why}`);
      continue;
    }
    for (let n = 1; n <= slots; n++) {
      const name = expandName(pool.agentName, { host: config.host, pool: pool.name, n });
      const other = taken.get(name);
      if (name.length > longest) {
        inPool(pool, ['name'], `${written} becomes ${JSON.stringify(name)}, which has more than ${longest} characters`);
        break;
      }
      if (name === untrustedFolder && pool.recipe.mounts.some(({ cache }) => isNamed(cache))) {
        const why = 'which is reserved for the folder with the caches of untrusted jobs; choose another name';
        inPool(pool, ['name'], `is ${name}, ${why}`);
        break;
      }
      if (other !== undefined) {
        const both = `pools.${other.name} and pools.${pool.name}`;
        const why = `${JSON.stringify(name)}, which another slot already has: the names of ${both} must differ`;
        inPool(pool, ['name'], `${written} gives a slot the name ${why}`);
        break;
      }
      taken.set(name, pool);
    }
  }
}

/** The runtime of a pool, and the keys that only its type has. */
function checkPoolRuntime(pool: PoolConfig, checking: Checking, types: Types): void {
  const { config, written, root, sound, own, inPool } = checking;
  if (!sound(pool, 'runtime')) return;
  const entries = Object.keys(written.top.runtimes ?? {});
  const known = ['docker', 'process', ...entries];
  if (pool.runtime !== null && !known.includes(pool.runtime))
    inPool(pool, ['runtime'], `"runtimes" has no ${JSON.stringify(pool.runtime)}; ${suggest(pool.runtime, ['best', ...known])}`);
  else if (pool.runtime !== null && entries.includes(pool.runtime) && root[0] === 'hosts')
    inPool(pool, ['runtime'], `is ${pool.runtime}, a key of "runtimes", but machines of clouds only have docker and process`);
  const type = runtimeType(types, written.runtimes, pool.runtime);
  for (const other of types.runtimes)
    if (own(pool, other.type) && other !== type)
      inPool(pool, [other.type], `is not used: "runtime" is not of type ${other.type}`, 'warning');
  const service = config.services.find(({ name }) => name === pool.service);
  if (service !== undefined) checkAgentThere(pool, service, type, checking, types);
  if (type === undefined) return;
  const { devices } = written.pools?.get(pool.name) ?? written.defaults;
  const unused = typeof devices === 'object' ? Object.keys(devices).filter((key) => key !== 'count' && key !== 'model') : [];
  for (const key of unused)
    inPool(
      pool,
      ['devices', key],
      `is not used: ${type.title} grants the devices, and is only told "count" and "model"`,
      'warning',
    );
  const asked = typeof devices === 'object' ? devices.count : devices;
  if (asked === 'all') inPool(pool, ['devices'], `is all, but ${type.title} grants the devices: write a number`);
  const entry = config.runtimes.find(({ name }) => name === pool.runtime);
  const agent = service === undefined ? null : serviceType(types, service.type).agent;
  if (entry !== undefined) type.checkPool(pool, entry, checking, agent);
}

/** Whether the runtime has a way to the service's agent, and the agent one to a job. `type`: of an engine that places sandboxes. */
function checkAgentThere(
  pool: PoolConfig,
  service: ServiceConfig,
  type: RuntimeType | undefined,
  { sound, inPool }: Checking,
  types: Types,
): void {
  const { agent, title, tellsWaiting } = serviceType(types, service.type);
  const of = `"service" is ${service.name}`;
  const tells = tellsWaiting?.(service, pool) ?? tellingOrigin(types, [service]).has(service.name);
  // An engine's own sandboxes may have images that pools name for them.
  if (agent === 'in-image' && type === undefined && !hasImages(pool)) {
    const how = `whose ${title} agent is part of an image: there would be no agent; write docker`;
    inPool(pool, ['runtime'], `is ${pool.runtime}, but ${of}, ${how}`);
  } else if (type !== undefined && sound(pool, 'standby') && !pool.standby && !tells) {
    const how = `which gives jobs only to agents that wait already: ${type.title} would never be asked for one`;
    inPool(pool, ['standby'], `is false, but ${of}, ${how}; write "standby: true"`);
  }
}

function checkPoolService(pool: PoolConfig, checking: Checking, types: Types): void {
  const { config, written, sound, own, inPool } = checking;
  if (!sound(pool, 'service')) return;
  const known = ['own', ...Object.keys(written.top.services ?? {})];
  if (pool.service !== 'own' && !known.includes(pool.service)) {
    inPool(pool, ['service'], `"services" has no ${JSON.stringify(pool.service)}; ${suggest(pool.service, known)}`);
  }
  if (pool.service === 'own' && own(pool, 'queue')) {
    inPool(pool, ['queue'], 'is not used: "service" is the own queue, whose jobs ask for a pool by its name', 'warning');
  }
  const service = config.services.find((one) => one.name === pool.service);
  if (service !== undefined) serviceType(types, service.type).checkPool(pool, service, checking);
  // A service with problems may still have a known type.
  const found = pool.service === 'own' ? types.services[0].type : Object(written.top.services?.[pool.service]).type;
  const type = types.services.find((one) => one.type === found);
  if (type !== undefined) checkUnused(pool, type, checking, types);
}

/** Keys that only some services support; `defaults` may have them for pools of other services. */
function checkUnused(pool: PoolConfig, { poolKeys }: ServiceType, { own, inPool }: Checking, types: Types): void {
  const of =
    pool.service === 'own' ? 'jobs of the own queue come from users of this host' : `service ${pool.service} does not report that`;
  if (own(pool, 'trust') && !poolKeys.includes('trust'))
    inPool(pool, ['trust'], `is not used: it depends on where jobs come from, and ${of}`, 'warning');
  if (own(pool, 'cache_for') && pool.cacheFor === 'project' && !poolKeys.includes('trust'))
    inPool(pool, ['cache_for'], `is not used: it depends on where jobs come from, and ${of}`, 'warning');
  for (const key of ['hooks', 'plugins'] as const) {
    if (own(pool, key) && pool[key] !== null && !poolKeys.includes(key))
      inPool(pool, [key], `is not used: only agents of ${titlesWith(types, key)} support ${key}`, 'warning');
  }
  if (own(pool, 'isolation') && pool.isolation === 'none' && pool.service === 'own') {
    inPool(pool, ['isolation'], 'is not used: the own queue has no credentials that a job could read', 'warning');
  }
}

function checkServices(checking: Checking, types: Types): void {
  const { config, at } = checking;
  for (const service of config.services) serviceType(types, service.type).check(service, checking);
  if (config.secretsKey !== null && config.origins.size === 0) {
    const known = types.services.filter(({ poolKeys }) => poolKeys.includes('trust')).map(({ type }) => type);
    at(['secrets', 'key'], `is not used: only jobs of a service of type ${known.join(' or ')} bring encrypted secrets`, 'warning');
  }
}
