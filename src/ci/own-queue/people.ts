/** What a job of a person may ask for: what the person's group says, and nothing that would give root's power. */
import { OnejobError } from '../../base/errors.ts';
import { glob } from '../../base/glob.ts';
import { formatDuration } from '../../base/units.ts';
import { contains } from '../../config/host-places.ts';
import type { PeopleTable, Person } from '../../config/people.ts';
import type { Mount } from '../../ports/runtime.ts';
import type { StoredRequest } from '../../store/jobs.ts';
import { realOf } from '../../system/real-path.ts';
import { type MountProblem, type QueuePool, sameMount } from './request.ts';

/** Pools in which a person may run jobs, of these. */
export function poolsOf<P>({ group }: Person, pools: ReadonlyMap<string, P>): ReadonlyMap<string, P> {
  if (group.role === 'operate') return pools;
  return new Map([...pools].filter(([name]) => group.role === 'submit' && group.pools.includes(name)));
}

/** Why jobs of a person may not start in a pool, as a clause; null: they may. `person` null: in no group any more. */
export function whyNot(person: Person | null, uid: number, pool: string): string | null {
  if (person === null) return `user ${uid} is in no group of "people" any more`;
  const { name, group } = person;
  if (group.role === 'operate' || (group.role === 'submit' && group.pools.includes(pool))) return null;
  return `${name} is in the group "${group.name}", which may ${group.role === 'look' ? 'only look' : `not run jobs in pool "${pool}"`}`;
}

/** The same of an image; null also for that of the pool. */
export function whyNotImage({ name, group }: Person, image: string | null, pool: QueuePool | undefined): string | null {
  if (group.role === 'operate' || image === null || image === pool?.recipe.image) return null;
  if (group.images.some((pattern) => glob(pattern)(image))) return null;
  return `the group "${group.name}" of ${name} may use only ${[...group.images, 'the image of the pool'].join(', ')}`;
}

/** @throws OnejobError E_API_ROLE */
export function checkPerson(request: StoredRequest, person: Person, pool: QueuePool | undefined): void {
  const { name, group } = person;
  if (group.role === 'operate') return;
  const refuse = (what: string, why: string, hint: string): never => {
    throw new OnejobError('E_API_ROLE', `Cannot queue the job ${what}: ${why}.`, {
      hint: `${hint} "people" in the config says who may do what.`,
    });
  };
  const of = `the group "${group.name}" of ${name}`;
  const no = whyNot(person, person.uid, request.pool);
  if (no !== null) refuse(`in pool "${request.pool}"`, no, `Choose one of: ${group.pools.join(', ') || 'none'}.`);
  const { image, priority, volumes, timeout } = request;
  const other = whyNotImage(person, image, pool);
  if (other !== null) refuse(`in image "${image}"`, other, 'Omit --image.');
  if (priority > 0) refuse(`with priority ${priority}`, `${of} may not go before others`, 'Omit --priority, or give one below 0.');
  const most = pool?.timeout ?? null;
  if (most !== null && timeout !== null && timeout > most)
    refuse(`for ${formatDuration(timeout)}`, `${of} may have an agent of the pool for ${formatDuration(most)}`, 'Omit --timeout.');
  if (request.attemptOf !== null) refuse('as an attempt of another', 'only another onejob submits that', 'Submit it as a job.');
  // The machines of a cloud, not this host, know where a path leads.
  const extra = volumes.filter((mount) => pool === undefined || !pool.recipe.mounts.some((one) => sameMount(one, mount)));
  const [first] = pool?.elsewhere === undefined ? [] : extra;
  if (first !== undefined) refuse(`with ${first.host}`, `${of} may not bring volumes to machines of a cloud`, 'Omit --volume.');
}

/** The problem of a volume of a job, or null. A person's must lie in the folders of the group, also where links lead. */
export function mountsOf(people: PeopleTable | null, uid: number | undefined, problem: MountProblem): MountProblem {
  if (people === null || uid === undefined) return problem;
  return (mount) => {
    const person = people.of(uid);
    if (person === null) return `user ${uid} is in no group of "people" any more`;
    return problem(mount) ?? (person.group.role === 'operate' ? null : outside(person, mount));
  };
}

/** Mounts of a job, with the folders of which one must have each of a person's: only a file server knows where its links lead. */
export function heldWithin(people: PeopleTable | null, uid: number | undefined, mounts: readonly Mount[]): readonly Mount[] {
  const group = uid === undefined ? undefined : people?.of(uid)?.group;
  if (group === undefined || group.role === 'operate') return mounts;
  return mounts.map((mount) => {
    const folders = group.volumes.filter(({ readOnly }) => mount.readOnly || !readOnly);
    return { ...mount, within: folders.map(({ host }) => host) };
  });
}

function outside({ name, group }: Person, { host, readOnly }: Mount): string | null {
  const real = realOf(host);
  const isIn = (folder: string): boolean =>
    (contains(folder, host) || contains(realOf(folder), host)) && contains(realOf(folder), real);
  const holds = group.volumes.filter((one) => isIn(one.host));
  if (holds.some((one) => readOnly || !one.readOnly)) return null;
  const what = holds.length > 0 ? `may only read ${host}` : `may not have it, nor what it leads to`;
  return `the group "${group.name}" of ${name} ${what}`;
}

export function submitterGone(uid: number): never {
  throw new OnejobError('E_API_ROLE', `Cannot queue the job: user ${uid} is in no group of "people".`);
}
