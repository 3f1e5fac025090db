/** What `doctor` says of the config of pools: trust, volumes and homes, folders of the owner, keys, times, disk. */
import { readdir, realpath, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { type Finding, fine, problem, warning } from '../../../base/finding.ts';
import { formatDuration, formatSize } from '../../../base/units.ts';
import { acceptedOutsiders } from '../../../config/check-trust.ts';
import type { PoolConfig } from '../../../config/config.ts';
import { contains, whyNoStranger } from '../../../config/host-places.ts';
import { isReachable } from '../../../system/file-server.ts';
import { realOf } from '../../../system/real-path.ts';
import { saidOf } from '../../kit/doctor.ts';
import type { DoctorParts } from './parts.ts';

type PoolFindingParts = Pick<DoctorParts, 'pools' | 'keys' | 'stateDir' | 'places'>;

export async function poolFindings(parts: PoolFindingParts): Promise<Finding[]> {
  const { pools, places } = parts;
  const found = await Promise.all(
    pools.map(async (pool) => [...ofTrust(pool), ...ofVolumes(pool, places), ...ofTimes(pool), ...(await ofFolders(pool, places))]),
  );
  const ofSecrets = await ofKeys(parts);
  const homes = ofSecrets.length > 0 ? pools.flatMap(ofHomes) : [];
  return [...found.flat(), ...homes, ...ofSecrets, ...(await ofCaches(parts))];
}

const subjectOf = ({ name }: PoolConfig): string => `pool ${name}`;

/** Whether jobs that are not trusted may run in it. */
export function isOpenToUntrusted({ trust }: Pick<PoolConfig, 'trust'>): boolean {
  return acceptedOutsiders(trust).length > 0;
}

function ofTrust(pool: PoolConfig): Finding[] {
  const { privileged, pidHost, seccompUnconfined } = pool.recipe.unsafe;
  if (!(privileged || pidHost || seccompUnconfined) || !isOpenToUntrusted(pool)) return [];
  const message =
    'Its trusted jobs have "unsafe", and it accepts untrusted jobs: those run without "unsafe", but on the same devices, and after jobs that could do anything.';
  const hint = 'Write "trust: { forks: refuse, others: refuse }", or give untrusted jobs a pool of their own.';
  return [warning(subjectOf(pool), message, hint)];
}

/** Folders of a host that contain private files. */
const delicate = /^\/(?:root|etc)(?:\/|$)/;

/** Which volumes untrusted jobs can read, and which they do not get. */
function ofVolumes(pool: PoolConfig, places: PoolFindingParts['places']): Finding[] {
  if (!isOpenToUntrusted(pool)) return [];
  const mounts = pool.recipe.mounts.filter(({ cache }) => cache === null);
  const volumes = mounts.map(({ host }) => ({ host, why: whyNoStranger(host, places) }));
  const left = volumes
    .filter(({ why }) => why !== null)
    .map(({ host, why }) => fine(subjectOf(pool), `Untrusted jobs do not get ${host}: ${why}.`));
  const read = volumes.filter(({ host, why }) => why === null && delicate.test(host)).map(({ host }) => host);
  if (read.length === 0) return left;
  const message = `Untrusted jobs can read ${read.join(' and ')} of this host ("volumes").`;
  const hint =
    'Mount only what anyone may read, give untrusted jobs a pool of their own, or write "trust: { forks: refuse, others: refuse }".';
  return [...left, warning(subjectOf(pool), message, hint)];
}

/**
 * Homes that outlive jobs, in pools whose trusted jobs have secrets. Programs run what they find there, such as start-up files.
 * What one job leaves there runs in the next job, with its secrets.
 */
function ofHomes(pool: PoolConfig): Finding[] {
  const { pipelines } = pool.trust;
  // A single pipeline can only harm itself.
  if (pipelines?.length === 1 && !/[*?{}()[\]|]/.test(pipelines[0] ?? '')) return [];
  return pool.recipe.mounts
    .filter(({ container, readOnly }) => !readOnly && isHome(container, pool))
    .map(({ container, cache }) => {
      const message = `${container} is a home and outlives jobs ("${cache === null ? 'volumes' : 'caches'}"): what a job of one pipeline leaves there runs in the next job of another pipeline, with its secrets.`;
      const hint =
        'Keep only folders of it, such as "depot:/root/.julia", or give each pipeline a pool of its own with "trust: { pipelines: [ORGANISATION/PIPELINE] }".';
      return warning(subjectOf(pool), message, hint);
    });
}

/** Of any user: nobody knows which one an image chooses. */
function isHome(container: string, { recipe }: Pick<PoolConfig, 'recipe'>): boolean {
  return /^\/(root|home(\/[^/]+)?)$/.test(container) || container === recipe.env.HOME;
}

/** ms that a cancelled job needs before it is killed. */
const enough = 15_000;

function ofTimes(pool: PoolConfig): Finding[] {
  if (pool.stopGrace >= enough) return [];
  const message = `A cancelled job is killed after ${formatDuration(pool.stopGrace)} ("stop_grace"), and the agent needs 5s of that for the end of its log.`;
  return [warning(subjectOf(pool), message, `Write "stop_grace: ${formatDuration(35_000)}", or remove it.`)];
}

/** Hooks run in every later job, with its secrets. */
async function ofFolders(pool: PoolConfig, places: PoolFindingParts['places']): Promise<Finding[]> {
  const found: Finding[] = [];
  for (const key of ['hooks', 'plugins'] as const) {
    const folder = pool[key];
    if (folder === null) continue;
    if (!(await isReachable(folder))) {
      found.push(warning(subjectOf(pool), `The folder ${folder} ("${key}") is on a file server that does not answer.`, null));
      continue;
    }
    const real = await realpath(folder).catch(() => null);
    if (real === null) {
      found.push(problem(subjectOf(pool), `The folder ${folder} ("${key}") does not exist.`, 'Create it, or fix its path.'));
      continue;
    }
    for (const { host, readOnly, container } of pool.recipe.mounts) {
      if (readOnly) continue;
      const place = places.get(host)?.real ?? realOf(host);
      if (!contains(place, real) && !contains(real, place)) continue;
      const message = `Jobs can write to ${folder} ("${key}"), as ${container}: what one job puts there runs in later jobs.`;
      found.push(warning(subjectOf(pool), message, `Take ${host} out of "volumes" and "caches", or mount it read-only.`));
    }
    const open = await openPath(real);
    if (open !== null) {
      const message = `Every user of this host can write to ${open} ("${key}"), and jobs run what is there.`;
      found.push(warning(subjectOf(pool), message, `Type "chmod o-w ${open}".`));
    }
  }
  return found;
}

/** The folder, or the first entry of it, that everybody may write to. */
async function openPath(folder: string): Promise<string | null> {
  const names = await readdir(folder).catch((): string[] => []);
  for (const path of [folder, ...names.slice(0, 100).map((name) => join(folder, name))]) {
    const found = await stat(path).catch(() => null);
    if (found !== null && (found.mode & 0o002) !== 0) return path;
  }
  return null;
}

/** Empty when config names no keys. */
async function ofKeys({ keys, pools }: PoolFindingParts): Promise<Finding[]> {
  const subject = 'secrets.key';
  try {
    const found = await keys();
    if (found === null) return [];
    const list = found.keys.map(({ kind, id }) => `${kind} ${id}`).join(', ');
    const said = (message: string, where: (trust: PoolConfig['trust']) => boolean): Finding[] => {
      const names = pools.filter(({ trust }) => where(trust)).map(({ name }) => name);
      const which = `${names.length === 1 ? 'pool' : 'pools'} ${names.join(', ')}`;
      return names.length === 0 ? [] : [fine(subject, `In ${which} ${message}`)];
    };
    return [
      fine(subject, `It opens secrets with ${list}.`),
      ...said(
        'anyone who can push a branch is trusted with secrets; "trust" can limit that to pipelines and branches.',
        ({ pipelines, branches }) => pipelines === null && branches === null,
      ),
      ...said('builds of tags get no secrets; list in "trust.tags" the tags that do.', ({ tags }) => tags === null),
      ...said(
        'anyone who can create a build by hand may name any commit of a trusted branch; "trust.sources" can limit that to webhooks.',
        ({ branches, sources }) => branches !== null && sources === null,
      ),
    ];
  } catch (error) {
    const { message, hint } = saidOf(error);
    return [problem(subject, message, hint ?? 'Type "onejob secret keygen" for a new one.')];
  }
}

async function ofCaches({ pools, stateDir }: PoolFindingParts): Promise<Finding[]> {
  const cached = pools.filter(({ recipe }) => recipe.mounts.some(({ cache }) => cache !== null && cache.name !== null));
  if (cached.length === 0) return [];
  const wanted = cached.reduce((sum, { agents, cacheLimit }) => sum + cacheLimit * (agents === 'per-device' ? 1 : agents), 0);
  const disk = await statfs(stateDir).catch(() => null);
  if (disk === null || wanted <= disk.blocks * disk.bsize) return [];
  const message = `Caches of ${cached.map(({ name }) => name).join(', ')} may grow to ${formatSize(wanted)}, more than the disk of ${stateDir} has.`;
  const hint =
    'Make "cache_limit" smaller, or move "state_dir"; when the disk runs full, onejob removes the least recently used caches.';
  return [warning('caches', message, hint)];
}
