/** What people who may not do everything can ask of jobs: only of their own, whatever id they name. */
import { OnejobError } from '../base/errors.ts';
import type { Person } from '../config/people.ts';
import type { Call, Concern } from '../contract/calls.ts';
import type { Manager } from '../contract/manager.ts';
import type { Caller } from './caller.ts';
import type { ApiRequest } from './route.ts';

type Jobs = Pick<Manager, 'job' | 'arrayJobs'>;

/** @throws OnejobError E_API_ROLE if it is somebody else's, or may be */
export function checkConcern({ person }: Caller, { own }: Pick<Call, 'own'>, asked: ApiRequest, jobs: Jobs): void {
  if (person === null || person.group.role === 'operate' || own === undefined) return;
  concerns[own](person, asked, jobs);
}

const concerns: Readonly<Record<Concern, (person: Person, asked: ApiRequest, jobs: Jobs) => void>> = {
  job: (person, { params }, jobs) => checkJob(person, idIn(params), jobs),
  array(person, { params }, { arrayJobs }) {
    const id = idIn(params);
    if (!arrayJobs(id).every((job) => job.person === person.uid)) throw notTheirs(person, `array ${id}`);
  },
  output(person, { query }, jobs) {
    const { job = null, own = false } = query as { readonly job?: string; readonly own?: boolean };
    if (person.group.logs === 'all' && !own) return;
    // What an agent or a slot printed may be of others' jobs.
    if (job === null || own) throw notTheirs(person, 'output that is not of a job');
    checkJob(person, job, jobs);
  },
};

function checkJob(person: Person, id: string, { job }: Jobs): void {
  const found = job(id);
  // Its output may still be there.
  if (found === null)
    throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'List jobs with "onejob jobs --all".' });
  if (found.person !== person.uid) throw notTheirs(person, `job ${id}`);
}

function idIn(params: unknown): string {
  return (params as { readonly id: string }).id;
}

function notTheirs({ name, group }: Person, what: string): OnejobError {
  return new OnejobError(
    'E_API_ROLE',
    `Cannot do that with ${what} as ${name}: the group "${group.name}" may only do so with own jobs.`,
    {
      hint: 'Ask who submitted it, or an operator of this host.',
    },
  );
}
