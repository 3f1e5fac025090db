/** Jobs on their way into the own queue: each is checked, and on disk with all others of its array before anybody is told. */
import { randomBytes } from 'node:crypto';
import { OnejobError } from '../../base/errors.ts';
import type { PeopleTable } from '../../config/people.ts';
import { arrayLimit, type JobRequest } from '../../contract/job.ts';
import type { Submitter } from '../../contract/people.ts';
import type { JobView } from '../../contract/schema.ts';
import type { StoredRequest } from '../../store/jobs.ts';
import type { Store } from '../../store/store.ts';
import { arrayJobId, hasPassed, type Job, newJob } from './job.ts';
import type { JobBook } from './job-book.ts';
import { checkPerson, mountsOf, poolsOf, submitterGone } from './people.ts';
import { checkRequest, type MountProblem } from './request.ts';

/** What a job may ask of this host. */
export interface HostChecks {
  /** Why a job may not have this volume, as a clause, or null. */
  readonly mountProblem: MountProblem;
  /** Whether this host has a path; by default nobody looks. */
  readonly isThere?: ((path: string) => boolean) | undefined;
  /** Who may submit what; null: everybody who asks. */
  readonly people: PeopleTable | null;
}

export class Submissions {
  readonly #book: JobBook;
  readonly #checks: HostChecks;

  constructor(book: JobBook, checks: HostChecks) {
    this.#book = book;
    this.#checks = checks;
  }

  /** Checks as `submit`, except for the workspace. */
  verify(request: JobRequest, by?: number): void {
    this.check(request, by);
    this.#unmet(request.needs);
  }

  /** The request with its pool chosen, of a person. @throws OnejobError E_POOL_UNKNOWN, E_JOB_REQUEST, E_API_ROLE */
  check(request: JobRequest, by?: number): StoredRequest {
    const { mountProblem, isThere, people } = this.#checks;
    const { pools } = this.#book;
    const person = people === null || by === undefined ? null : (people.of(by) ?? submitterGone(by));
    const among = person === null || request.pool !== null ? pools : poolsOf(person, pools);
    const checked = checkRequest(request, among, mountsOf(people, by, mountProblem), isThere);
    if (person !== null) checkPerson(checked, person, pools.get(checked.pool));
    return checked;
  }

  /** Accepts a job for each index, all of them or none; `indices` null: one job without an array. */
  submit(request: JobRequest, indices: readonly number[] | null, by: Submitter | null = null): JobView[] {
    const book = this.#book;
    const [first = 0] = indices ?? [];
    const same = request.id === null ? null : book.find(indices === null ? request.id : arrayJobId(request.id, first));
    if (same !== null) {
      checkSame(same, by);
      // An earlier answer may have been that it could not be synced.
      book.store.syncNow();
      return (indices ?? [null]).map((at) => book.view(book.known(at === null ? same.id : arrayJobId(request.id ?? '', at))));
    }
    const { workspace } = request;
    try {
      return this.#accept(request, indices, by);
    } catch (error) {
      // A refused workspace is useless, and may have 2 GiB.
      if (workspace !== null) book.spool.dropWorkspace(workspace, by?.uid);
      throw error;
    }
  }

  #accept(request: JobRequest, indices: readonly number[] | null, by: Submitter | null): JobView[] {
    const { store, index, clock, temporary } = this.#book;
    const checked = { ...this.check(request, by?.uid), ...(by !== null && { user: by.name, person: by.uid }) };
    const { workspace } = checked;
    if (workspace !== null) this.#book.spool.checkWorkspace(workspace, by?.uid);
    if (request.id !== null) for (const job of this.#book.ofArray(request.id)) checkSame(job, by);
    if (request.id !== null && by !== null)
      for (const at of indices ?? [null]) checkForgotten(store, at === null ? request.id : arrayJobId(request.id, at), request.id);
    const cold = this.#book.isCold(checked);
    const id = request.id ?? randomBytes(6).toString('hex');
    const more = { temporary, blockedBy: this.#unmet(checked.needs) };
    checkNeeded(more.blockedBy.length, indices?.length ?? 1);
    const jobs = (indices ?? [null]).map((at) =>
      at === null
        ? newJob(id, checked, cold, clock.wall(), more)
        : newJob(arrayJobId(id, at), { ...checked, array: { id, index: at } }, cold, clock.wall(), more),
    );
    this.#book.commitAhead(() => {
      for (const job of jobs) index.put({ ...job, seq: store.jobs.insert(job) });
    });
    return jobs.map((job) => this.#book.view(this.#book.known(job.id)));
  }

  /** Jobs that a new job waits for; an array stands for its jobs. @throws OnejobError E_JOB_REQUEST for one that is unknown, or did not pass */
  #unmet(needs: readonly string[]): string[] {
    const book = this.#book;
    const needed = new Map<string, Job>();
    for (const need of needs) {
      const job = book.find(need);
      const jobs = job === null ? book.ofArray(need) : [job];
      if (jobs.length === 0) throw cannotNeed(need, 'there is no such job or array in the own queue');
      for (const one of jobs) needed.set(one.id, one);
    }
    const unmet = [...needed.values()].filter((job) => !hasPassed(job));
    for (const job of unmet) {
      if (job.progress.state === 'done') throw cannotNeed(job.id, 'that job has ended and did not pass');
      const held = 'this daemon is temporary and does not run that job, which another daemon accepted';
      if (book.isHeld(job)) throw cannotNeed(job.id, held, 'Type "onejob up" to start a daemon that runs both.');
    }
    checkNeeded(unmet.length, 1);
    return unmet.map(({ id }) => id);
  }
}

/** An id that is taken says nothing of the job that has it, nor adds to an array of somebody else. @throws OnejobError E_API_ROLE */
function checkSame({ id, request }: Job, by: Submitter | null): void {
  if (by === null || request.person === by.uid) return;
  throw new OnejobError('E_API_ROLE', `Cannot queue the job: the id ${request.array?.id ?? id} is one of somebody else.`, {
    hint: 'Submit it without an id, or with another.',
  });
}

/** What is left of the output of a forgotten job would be that of a new job with its id. @throws OnejobError E_API_ROLE */
function checkForgotten({ history }: Pick<Store, 'history'>, job: string, id: string): void {
  if (history.ofJob(job, 1).length === 0) return;
  throw new OnejobError('E_API_ROLE', `Cannot queue the job: the id ${id} was one of a job whose output is still here.`, {
    hint: 'Submit it without an id, or with another.',
  });
}

/** Most ids of needed jobs that one submission writes down: each of its jobs has its own list. */
const neededLimit = 1_000_000;

/** `needed`: how many jobs each of `jobs` needs. @throws OnejobError E_JOB_REQUEST */
function checkNeeded(needed: number, jobs: number): void {
  if (needed > arrayLimit)
    throw new OnejobError('E_JOB_REQUEST', `Cannot queue a job that needs ${needed} jobs: at most ${arrayLimit} are possible.`, {
      hint: 'Need a job that needs a part of them.',
    });
  if (needed * jobs > neededLimit)
    throw new OnejobError('E_JOB_REQUEST', `Cannot queue the array: there are ${needed} jobs that each of ${jobs} jobs needs.`, {
      hint: 'Submit one job between the two arrays: it needs the first, and the second needs it.',
    });
}

function cannotNeed(id: string, why: string, hint = 'See "onejob jobs --all".'): OnejobError {
  return new OnejobError('E_JOB_REQUEST', `Cannot queue a job that needs ${id}: ${why}.`, { hint });
}
