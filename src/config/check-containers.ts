/** Whether jobs of a pool can have an engine of their own, and with what else of the pool that works. */
import { join } from 'node:path';
import { isOwnName } from '../base/image-reference.ts';
import type { Mount } from '../ports/runtime.ts';
import { isNamed } from '../schema/volumes.ts';
import { type Checking, unreadable } from './checking.ts';
import type { PoolConfig } from './config.ts';
import { contains } from './host-places.ts';

/** What root runs or reads in the container of an engine, before its user has it. */
const engineFiles = [
  ...[
    '/bin',
    '/usr/bin',
    '/lib64',
    '/usr/lib64',
    '/usr/share/perl',
    '/usr/share/perl5',
    '/usr/local/share/perl',
    '/usr/local/lib/site_perl',
  ],
  ...['/lib', '/usr/lib', '/usr/local/lib'].flatMap((path) => ['x86_64', 'aarch64'].map((arch) => `${path}/${arch}-linux-gnu`)),
  ...['perl', 'ld.so.cache', 'ld.so.preload', 'nsswitch.conf', 'passwd', 'group', 'subuid', 'subgid'].map((name) => `/etc/${name}`),
  ...['/home', '/run', '/var/run'].flatMap((path) => ['engine', 'untrusted'].map((name) => `${path}/${name}`)),
];

/** Why no folder may be mounted there if jobs have an engine, as a clause: root would run what a job has written. null: it may. */
export function engineFileProblem(container: string): string | null {
  const file = engineFiles.find((one) => contains(one, container) || contains(container, one));
  if (file === undefined) return null;
  return `with "containers", ${file} is where the engine has its programs and settings; choose another container path`;
}

export function checkContainers(pool: PoolConfig, { sound, inPool, written }: Checking): void {
  const { recipe, holdFailed, name, runtime } = pool;
  if (recipe.containers === undefined || !sound(pool, 'containers', 'runtime')) return;
  const refuse = (why: string): void =>
    inPool(pool, ['containers'], `is ${recipe.containers?.ready === undefined ? 'true' : 'set'}, but ${why}`);
  if (runtime !== 'docker') {
    refuse(`"runtime" is ${runtime}, which cannot give jobs an engine for containers; write "runtime: docker", or remove the key`);
    return;
  }
  if (name === 'engine') refuse('the pool is named "engine", like the image of such engines; give the pool another name');
  if (sound(pool, 'network') && recipe.network === 'host')
    refuse('"network" is host: containers of jobs would open ports of this host; write "default"');
  // Folders of named caches are open to every user of a sandbox.
  const isForeign = ({ cache, readOnly }: Mount) => !readOnly && !isNamed(cache);
  for (const { host, cache } of recipe.mounts.filter(isForeign)) {
    const key = cache === null ? 'volumes' : 'caches';
    const why =
      'with "containers", jobs run as users that own nothing on this host; see "Folders of this host" in docs/job-containers.md';
    if (sound(pool, key))
      inPool(pool, [key], `${host} must be open to others, or belong to the users of sandboxes: ${why}`, 'warning');
  }
  for (const { container, cache } of recipe.mounts) {
    const key = cache === null ? 'volumes' : 'caches';
    const why = engineFileProblem(container);
    if (why !== null && sound(pool, key)) inPool(pool, [key], `uses the container path ${container}, but ${why}`);
  }
  if (sound(pool, 'hold_failed') && holdFailed !== null)
    refuse('"hold_failed" is set, and files of such jobs go with their engine; remove one of the two');
  for (const [at, image] of (recipe.containers.ready?.images ?? []).entries()) {
    const why = imageObstacle(image);
    if (why !== null) inPool(pool, ['containers', 'images', at], `${image} ${why}`);
  }
  const given = written.pools?.get(name)?.containers;
  if (typeof given === 'object') checkLearning(given, pool, inPool);
  if (typeof given !== 'object' || given.logins === undefined) return;
  const file = join(given.logins, 'config.json');
  const why = unreadable(file);
  if ((recipe.containers.ready?.images ?? []).length > 0 && pool.trust.containers === 'allow')
    inPool(pool, ['containers', 'logins'], 'pulls images that untrusted jobs can read ("trust.containers" is allow)', 'warning');
  if (recipe.containers.ready === undefined)
    inPool(pool, ['containers', 'logins'], 'is not used: there are no "images", and no "learn"', 'warning');
  else if (why !== null)
    inPool(pool, ['containers', 'logins'], `${file} ${why}: images would be pulled as by a stranger`, 'warning');
}

type Written = { readonly learn?: number | null | undefined; readonly pull?: readonly string[] | undefined };

function checkLearning({ learn, pull = [] }: Written, pool: PoolConfig, inPool: Checking['inPool']): void {
  if (learn == null) {
    if (pull.length > 0) inPool(pool, ['containers', 'pull'], 'is not used: there is no "learn"', 'warning');
  } else if (pull.length === 0)
    inPool(
      pool,
      ['containers'],
      'has only one of "learn" and "pull"; write what jobs may teach, such as pull: ["docker.io/library/*"]',
    );
  else if (pool.recipe.pull === 'never')
    inPool(
      pool,
      ['containers', 'learn'],
      'is set, but "pull" of the pool is never, so nothing would be pulled; remove one of the two',
    );
}

/** Why jobs cannot have an image under its name, as the end of a sentence; null if they can. */
function imageObstacle(image: string): string | null {
  if (isOwnName(image)) return 'has the name of images that onejob builds itself; write the name of another image';
  return /^[^@]*:[^@/]+@|^[^@]*$/.test(image) ? null : 'has no tag, by which jobs would name it; write NAME:TAG@sha256:…';
}
