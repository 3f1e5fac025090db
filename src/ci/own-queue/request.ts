/** What a job may ask for, and the script that it becomes: everything that could only fail later is refused when it is submitted. */

import { OnejobError } from '../../base/errors.ts';
import { inQuotes } from '../../base/quoted.ts';
import { formatSize } from '../../base/units.ts';
import { engineFileProblem } from '../../config/check-containers.ts';
import type { PoolConfig } from '../../config/config.ts';
import { contains } from '../../config/host-places.ts';
import { hasImages } from '../../config/types.ts';
import type { JobRequest } from '../../contract/job.ts';
import type { AgentContext } from '../../ports/ci-service.ts';
import type { Mount, Recipe } from '../../ports/runtime.ts';
import { mountPathProblem, tidyMount } from '../../schema/volumes.ts';
import type { StoredRequest } from '../../store/jobs.ts';
import { realOf } from '../../system/real-path.ts';
import { jobImageProblem } from '../kit/job-image.ts';
import { checkGlobs } from './globs.ts';
import type { Job } from './job.ts';

export type QueuePool = Pick<PoolConfig, 'name' | 'runtime' | 'timeout' | 'recipe' | 'devices' | 'standby' | 'elsewhere'>;

/** Why a job may not have this volume, as a clause, or null. */
export type MountProblem = (mount: Mount) => string | null;

/** The request with its pool chosen. `isThere`: whether this host has a path. @throws OnejobError E_POOL_UNKNOWN, E_JOB_REQUEST */
export function checkRequest(
  request: JobRequest,
  pools: ReadonlyMap<string, QueuePool>,
  mountProblem: MountProblem = mountPathProblem,
  isThere: (path: string) => boolean = () => true,
): StoredRequest {
  const pool = choosePool(request, pools);
  // Checks names and NUL bytes.
  jobScript('/', request);
  if (request.command[0] === '') throw new OnejobError('E_JOB_REQUEST', 'Cannot run a command with an empty name.');
  checkGlobs(request.artifacts);
  checkImage(request.image, pool);
  checkFolders(request.volumes, pool);
  const volumes = request.volumes.map((mount) => (mountPathProblem(mount) === null ? tidyMount(mount) : mount));
  // What this host may show to jobs says nothing about the machines that have the pool; they look themselves.
  checkMounts(volumes, pool.recipe, pool.elsewhere === undefined ? mountProblem : mountPathProblem);
  // A job that it needs may make them, and an engine with nodes of its own mounts theirs.
  const isHere = pool.elsewhere === undefined && pool.recipe.wants === undefined;
  if (isHere && request.needs.length === 0) checkThere(volumes, pool.recipe, isThere);
  if (request.attended && pool.elsewhere !== undefined)
    throw new OnejobError('E_JOB_REQUEST', `Cannot run programs in a job of pool "${pool.name}": it runs on machines of a cloud.`, {
      hint: 'Choose a pool of this host with --pool.',
    });
  checkLimits(request, pool);
  checkDevices(request, pool, pools);
  return { ...request, volumes, pool: pool.name, array: null };
}

/** @throws OnejobError E_JOB_REQUEST */
function checkImage(image: string | null, { name, runtime, recipe }: QueuePool): void {
  if (image !== null && !hasImages({ runtime, recipe })) {
    const message = `Cannot run the job in image "${image}": pool "${name}" runs its jobs as processes, which have no images.`;
    const where = recipe.wants === undefined ? 'this host' : 'the node';
    const hint = `Omit --image to run it with the programs of ${where}, or choose a pool of containers with --pool.`;
    throw new OnejobError('E_JOB_REQUEST', message, { hint });
  }
  const why = image === null || image === recipe.image ? null : jobImageProblem(image);
  if (why === null) return;
  const hint = 'Name an image of a registry, such as debian:stable-slim, or leave it out to run in the image of the pool.';
  throw new OnejobError('E_JOB_REQUEST', `Cannot run the job in image "${image}": ${why}.`, { hint });
}

/** @throws OnejobError E_JOB_REQUEST */
function checkFolders([volume]: readonly Mount[], { name, recipe }: QueuePool): void {
  if (volume === undefined || recipe.wants?.folders !== false) return;
  const message = `Cannot mount ${volume.host} at ${volume.container}: the agents of pool "${name}" see no folders of hosts.`;
  throw new OnejobError('E_JOB_REQUEST', message, { hint: 'Omit --volume, or choose another pool with --pool.' });
}

/** A job's volumes must not show what no job may see (S8), unless its pool has them too. @throws OnejobError E_JOB_REQUEST */
export function checkMounts(volumes: readonly Mount[], pool: Recipe, mountProblem: MountProblem): void {
  const taken = new Set<string>();
  for (const mount of volumes) {
    const twice = taken.has(mount.container) ? 'another of its volumes is already mounted there' : null;
    taken.add(mount.container);
    const above = volumes.find((one) => !one.readOnly && one.host !== mount.host && contains(one.host, mount.host));
    // Its next attempt would have whatever it put there.
    const within = above === undefined ? null : `it lies in ${above.host}, which the job can write to`;
    const engine = pool.containers === undefined ? null : engineFileProblem(mount.container);
    const why = twice ?? within ?? engine ?? (pool.mounts.some((one) => sameMount(one, mount)) ? null : mountProblem(mount));
    if (why === null) continue;
    const hint = 'Write volumes as /host/path:/container/path, and choose a path that jobs may see.';
    throw new OnejobError('E_JOB_REQUEST', `Cannot mount ${mount.host} at ${mount.container}: ${why}.`, { hint });
  }
}

/**
 * A job's volumes for its sandbox, checked once more: what they lead to now is what is checked, and nothing else may be mounted. A
 * folder may have become a link to a forbidden place since the job was submitted. @throws OnejobError E_JOB_REQUEST
 */
export function volumesNow(volumes: readonly Mount[], pool: Recipe, mountProblem: MountProblem): Mount[] {
  const now = volumes.map((mount) => ({ ...mount, real: realOf(mount.host) }));
  checkMounts(now, pool, (mount) => mountProblem(mount) ?? mountProblem({ ...mount, host: mount.real ?? mount.host }));
  return now;
}

/** The job's own volumes only: what is wrong with its pool's is not its fault. @throws OnejobError E_JOB_REQUEST */
function checkThere(volumes: readonly Mount[], pool: Recipe, isThere: (path: string) => boolean): void {
  const missing = volumes.find((mount) => !pool.mounts.some((one) => sameMount(one, mount)) && !isThere(mount.host));
  if (missing === undefined) return;
  const { host, container } = missing;
  throw new OnejobError('E_JOB_REQUEST', `Cannot mount ${host} at ${container}: ${host} does not exist on this host.`, {
    hint: 'Create it, or correct --volume.',
  });
}

/** @throws OnejobError E_JOB_REQUEST for more than the pool gives its agents */
function checkLimits({ memory, cpus }: JobRequest, { name, recipe }: QueuePool): void {
  const over = (what: string, asked: string, most: string) =>
    new OnejobError('E_JOB_REQUEST', `Cannot give the job ${asked}: agents of pool "${name}" have only ${most}.`, {
      hint: `Ask for at most that with --${what}, or choose another pool with --pool.`,
    });
  if (memory !== null && recipe.memory !== null && memory > recipe.memory)
    throw over('memory', `${formatSize(memory)} of memory`, formatSize(recipe.memory));
  if (cpus !== null && recipe.cpus !== null && cpus > recipe.cpus) throw over('cpus', `${cpus} CPUs`, String(recipe.cpus));
}

/** The recipe of a job with its own image, limits or volumes; null: the pool's. */
export function recipeOfJob(
  request: Pick<JobRequest, 'image' | 'volumes' | 'memory' | 'cpus' | 'devices' | 'attended'>,
  pool: Recipe,
): Recipe | null {
  const image = request.image ?? pool.image;
  const memory = request.memory ?? pool.memory;
  const cpus = request.cpus ?? pool.cpus;
  const added = request.volumes.filter((mount) => !pool.mounts.some((one) => sameMount(one, mount)));
  // Devices of this host are leased, and no part of a recipe.
  const wants = pool.wants === undefined ? {} : { wants: { ...pool.wants, gpus: request.devices ?? pool.wants.gpus } };
  const isAlike = image === pool.image && memory === pool.memory && cpus === pool.cpus && wants.wants?.gpus === pool.wants?.gpus;
  if (isAlike && added.length === 0) return null;
  // A job's volume replaces the pool's at the same path.
  const kept = pool.mounts.filter((mount) => !added.some((one) => one.container === mount.container));
  // An attended job is one of gitlab-runner, whose image a pipeline names.
  const rights = request.attended && image !== pool.image ? { publicOnly: true as const } : {};
  return { ...pool, ...wants, image, memory, cpus, mounts: [...kept, ...added], ...rights };
}

/** Of each of its agents: leased by this host, or granted by an engine. */
function devicesOf({ devices, recipe }: QueuePool): number | 'all' {
  return recipe.wants?.gpus ?? devices.count;
}

/** Whether an agent of this pool can have so many. A pool that leases per job gives what the job asks for. */
function hasDevices(pool: QueuePool, count: number): boolean {
  const most = devicesOf(pool);
  return most === count || (!pool.standby && most !== 0 && count > 0);
}

function choosePool({ pool: name, devices }: JobRequest, pools: ReadonlyMap<string, QueuePool>): QueuePool {
  const names = [...pools.keys()];
  if (name === null) {
    const inOrder = [...pools.values()];
    const usual = pools.get('default') ?? (pools.size === 1 ? inOrder[0] : undefined);
    // A job with devices needs a pool with them; one without must not take one by accident. In the order of the file.
    const able = inOrder.find((one) => hasDevices(one, devices ?? 0));
    const pool = devices === null ? (usual ?? able) : (able ?? usual);
    if (pool !== undefined) return pool;
    if (names.length === 0) {
      const hint = 'Give a pool "service: own" in the config.';
      throw new OnejobError('E_POOL_UNKNOWN', 'Cannot queue the job: no pool takes jobs of the own queue.', { hint });
    }
    if (devices !== null) {
      const many = devicesText(devices);
      const why = `Cannot give the job ${many}: no pool of the own queue has agents with ${many}.`;
      throw new OnejobError('E_JOB_REQUEST', why, { hint: devicesHint(devices) });
    }
    const why = `it names no pool, no pool is called "default", and all ${names.length} pools have devices`;
    const hint = `Choose a pool with --pool: ${names.join(', ')}.`;
    throw new OnejobError('E_POOL_UNKNOWN', `Cannot queue the job: ${why}.`, { hint });
  }
  const pool = pools.get(name);
  if (pool !== undefined) return pool;
  const hint = names.length === 0 ? 'Give a pool "service: own" in the config.' : `There are: ${names.join(', ')}.`;
  throw new OnejobError('E_POOL_UNKNOWN', `Cannot queue the job: no pool of the own queue is called "${name}".`, { hint });
}

function checkDevices(request: JobRequest, pool: QueuePool, pools: ReadonlyMap<string, QueuePool>): void {
  const { devices } = request;
  if (devices === null || hasDevices(pool, devices)) return;
  const fitting = [...pools.values()].filter((one) => hasDevices(one, devices)).map((one) => one.name);
  const why = `Cannot give the job ${devicesText(devices)}: agents of pool "${pool.name}" have ${devicesOf(pool)}.`;
  const none = `No pool has that many. ${devicesHint(devices)}`;
  const hint = fitting.length === 0 ? none : `Choose a pool that has enough with --pool: ${fitting.join(', ')}.`;
  throw new OnejobError('E_JOB_REQUEST', why, { hint });
}

function devicesText(count: number): string {
  return `${count} ${count === 1 ? 'device' : 'devices'}`;
}

/** What gives a job as many, where no pool does. */
function devicesHint(count: number): string {
  if (count === 0) return 'Give the config a pool without devices, or leave out "--devices 0".';
  return 'A pool with devices and "standby: false" gives a job as many as it asks for.';
}

export function sameMount(a: Mount, b: Mount): boolean {
  return a.host === b.host && a.container === b.container && a.readOnly === b.readOnly && a.variable === b.variable;
}

/** `text` as one word of a POSIX shell. @throws OnejobError for a NUL byte, which no shell can carry */
export function quote(text: string): string {
  if (text.includes('\0')) throw new OnejobError('E_JOB_REQUEST', 'A command or variable cannot contain a NUL byte.');
  return inQuotes(text);
}

const variableName = /^[A-Za-z_][A-Za-z0-9_]*$/;
// Assigning these ends a shell (bash: readonly variable).
const shellsOwn = new Set(['BASHOPTS', 'BASH_VERSINFO', 'EUID', 'PPID', 'SHELLOPTS', 'UID']);

/** @throws OnejobError E_JOB_REQUEST for a name that a shell cannot export */
function checkVariable(name: string): void {
  if (variableName.test(name) && !shellsOwn.has(name)) return;
  const why = shellsOwn.has(name)
    ? 'shells do not allow setting it'
    : 'its name must consist of letters, digits and underscores, and must not begin with a digit';
  const hint = 'Choose another name, or set it in the command itself with "env".';
  throw new OnejobError('E_JOB_REQUEST', `Cannot set the environment variable ${JSON.stringify(name)}: ${why}.`, { hint });
}

/** Every job's environment; the request may only override `CI`. */
export function jobEnvironment({ id, request, progress }: Job, context: AgentContext): Record<string, string> {
  const { job, attempt, array } = request.attemptOf ?? { job: id, attempt: progress.attempt, array: request.array };
  return {
    CI: 'true',
    ...request.env,
    ONEJOB: 'true',
    ONEJOB_JOB_ID: job,
    ...(array !== null && { ONEJOB_ARRAY_ID: array.id, ONEJOB_ARRAY_INDEX: String(array.index) }),
    ONEJOB_POOL: context.pool,
    ONEJOB_SLOT: context.slot,
    ONEJOB_AGENT: context.name,
    ONEJOB_ATTEMPT: String(attempt),
    ONEJOB_WORKSPACE: context.workspace,
  };
}

/**
 * A job as a script: go to the workspace, set the environment, become the command, so that TERM reaches it and its exit code
 * counts, also 127. @throws OnejobError E_JOB_REQUEST when a shell could not carry it
 */
export function jobScript(workspace: string, { env, command }: Pick<JobRequest, 'env' | 'command'>): string {
  // Some shells would show where the gate was.
  const lines = [`cd ${quote(workspace)} || exit 125`, 'unset OLDPWD'];
  for (const [name, value] of Object.entries(env)) {
    checkVariable(name);
    lines.push(`export ${name}=${quote(value)}`);
  }
  lines.push(`exec ${command.map(quote).join(' ')}`);
  return lines.join('\n');
}
