/** Jobs and their output from the store, while no daemon runs. Read-only. */
import { join } from 'node:path';
import type { Client } from '../api/client.ts';
import { OnejobError } from '../base/errors.ts';
import { jobView } from '../ci/own-queue/job.ts';
import { everyOutcome } from '../contract/history.ts';
import { newestLast } from '../contract/job-pages.ts';
import { jobsListed } from '../contract/manager.ts';
import type { JobView, StatusView } from '../contract/schema.ts';
import { agentsOf } from '../core/slot.ts';
import { createLogFolder } from '../logs/log-file.ts';
import { Logs } from '../manager/logs.ts';
import { createServiceJobs } from '../manager/services/service-jobs.ts';
import type { StoredJob } from '../store/jobs.ts';
import { openToRead } from '../store/open-to-read.ts';
import { openExisting } from '../system/files.ts';
import { systemClock as clock } from '../system/system-clock.ts';
import { endedJobs, jobHistory } from '../verdict/history.ts';
import { waitingWords } from './connect.ts';

/** What a daemon and an archive can both answer. */
export type JobReader = Pick<Client, 'jobs' | 'endedJobs' | 'history' | 'job' | 'arrayJobs' | 'logs' | 'artifacts'> & {
  status(): Promise<Pick<StatusView, 'pools'>>;
};

/** The state directory of a daemon that does not run. */
export interface Archive extends Disposable {
  readonly reader: JobReader;
  /** What waits for a daemon, in clauses. */
  readonly waiting: readonly string[];
}

/** @throws OnejobError E_STATE_OLDER and the like */
export function openArchive(stateDir: string): Archive {
  const store = openToRead(stateDir);
  const slots = store.slots().map(({ slot }) => slot);
  const places = new Map(slots.flatMap((slot) => agentsOf(slot).map((agent) => [agent, slot.key] as const)));
  const placeOf = (agent: string) => places.get(agent);
  const reasonFor = () => 'No daemon is running.';
  const view = (job: StoredJob) => jobView(job, reasonFor, store.outcomes.get(job.id));
  const ownJob = (id: string): JobView | null => {
    const job = store.jobs.get(id);
    return job === null ? null : view(job);
  };
  const elsewhere = createServiceJobs({
    services: [],
    table: store.serviceJobs,
    outcomes: store.outcomes,
    reconciler: { slots, pools: [], placeOf },
    reasonFor,
    clock,
  });
  const logs = new Logs({
    clock,
    reconciler: { placeOf, slot: (key) => slots.find((slot) => slot.key === key) },
    output: createLogFolder(join(stateDir, 'logs')),
    queue: { job: ownJob, onChange: () => () => {} },
    serviceJobs: elsewhere,
    history: store.history,
    services: [],
    stateDir,
  });
  const reader: JobReader = {
    status: async () => ({ pools: [] }),
    async jobs({ all, limit = all ? jobsListed : undefined }) {
      const own = all ? store.jobs.list({ pool: null, limit: limit ?? jobsListed }).reverse() : store.jobs.open();
      const jobs = newestLast([...own.map(view), ...elsewhere.jobs(all ? (limit ?? jobsListed) : null)]);
      return limit === undefined ? jobs : jobs.slice(-limit);
    },
    async endedJobs({ limit = jobsListed, ...given }) {
      const jobOf = (id: string) => ownJob(id) ?? elsewhere.job(id);
      return endedJobs(store.outcomes, jobOf, { ...everyOutcome, text: null, ...given, limit }).jobs;
    },
    history: async (query) => jobHistory(store.outcomes, query),
    async job(id) {
      const job = ownJob(id) ?? elsewhere.job(id);
      if (job !== null) return job;
      throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'Type "onejob jobs --all" to list all jobs.' });
    },
    arrayJobs: async (id) => store.jobs.ofArray(id).map(view),
    async artifacts(id) {
      const path = join(stateDir, 'artifacts', `${id}.tar`);
      return store.jobs.get(id) === null ? null : ((await openExisting(path))?.createReadStream() ?? null);
    },
    logs: (source, { own = false, tail = null, signal = new AbortController().signal }) =>
      own ? logs.own(source, { tail }, signal) : logs.read(source, { follow: false, tail }, signal),
  };
  return { reader, waiting: waitingWords(store.jobs.open()), [Symbol.dispose]: () => store[Symbol.dispose]() };
}
