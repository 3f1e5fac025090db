/** The jobs of the page Now: those that run, wait and have just ended. */
import { type ReactNode, useEffect, useMemo, useState } from 'react';
import { get, path } from '../api.ts';
import { useNamed, useTimed } from '../live/store.ts';
import type { World } from '../live/world.ts';
import { JobItem, JobLink, JobTime } from '../parts/job.tsx';
import type { Job, Pool } from '../views.ts';
import { countsText, type Entry, entriesOf, indicesText, queuesOf } from '../words/queue.ts';
import { plain, plural } from '../words/text.ts';
import { isWaiting, jobName, jobOrigin, poolsFor, whenStartsShort, whyWaitsBriefly } from '../words/words.ts';

/** At first, of each list and queue. */
const [jobsShown, queuedShown] = [25, 8];

export function Jobs({ world: { jobs, pools, host } }: { readonly world: World }) {
  const groups = useMemo(() => {
    const waiting: Job[] = [];
    const running: Job[] = [];
    const ended: Job[] = [];
    for (const job of jobs.values()) (isWaiting(job) ? waiting : job.state === 'done' ? ended : running).push(job);
    return {
      queues: queuesOf(waiting),
      waiting: waiting.length,
      running: running.length,
      entries: entriesOf(running.toReversed()),
      arrays: new Set(running.flatMap(({ array }) => array?.id ?? [])),
      ended: ended
        .toReversed()
        .toSorted((a, b) => (b.endedAt ?? 0) - (a.endedAt ?? 0))
        .slice(0, 10)
        .map((job) => ({ key: job.id, jobs: [job] })),
    };
  }, [jobs]);
  const isFirst = jobs.size === 0 && pools.some(({ service }) => service === 'own');
  return (
    <div className="now-right">
      <Section title="Running" count={groups.running}>
        {groups.running === 0 && <p className="nothing">No job runs.</p>}
        {isFirst && (
          <p className="nothing">
            Submit a first one: <code>onejob run -- echo hello</code>
          </p>
        )}
        {jobs.size === 0 && host.config === null && (
          <p className="nothing">
            Connect a CI service: <code>onejob init</code>
          </p>
        )}
        <Entries entries={groups.entries} first={jobsShown} of={({ jobs: of }) => <RunningEntry jobs={of} />} />
      </Section>
      <Section title="Waiting" count={groups.waiting}>
        {groups.waiting === 0 && <p className="nothing">No job waits.</p>}
        {groups.queues.map(({ key, jobs: of }) => (
          <Queue key={key} jobs={of} pools={pools} begun={groups.arrays} />
        ))}
      </Section>
      {groups.ended.length > 0 && (
        <Section title="Just ended" count={groups.ended.length}>
          <Entries entries={groups.ended} first={jobsShown} of={({ jobs: [job] }) => job && <JobItem job={job} />} />
        </Section>
      )}
      <p className="more">
        <a href="#/history">All jobs that ended</a>
      </p>
    </div>
  );
}

interface SectionProps {
  readonly title: string;
  readonly count: number;
  readonly children: ReactNode;
}

function Section({ title, count, children }: SectionProps) {
  const id = `jobs-${title.toLowerCase().replaceAll(' ', '-')}`;
  return (
    <section aria-labelledby={id} className="panel">
      <h2 id={id}>
        {title} <span className="count">{count > 0 && count}</span>
      </h2>
      {children}
    </section>
  );
}

interface EntriesProps {
  readonly entries: readonly Entry[];
  readonly first: number;
  readonly of: (entry: Entry) => ReactNode;
}

function Entries({ entries, first, of }: EntriesProps) {
  const [shown, setShown] = useState(first);
  const more = entries.slice(shown).reduce((sum, { jobs }) => sum + jobs.length, 0);
  return (
    <>
      <ul className="jobs">
        {entries.slice(0, shown).map((entry) => (
          <EntryItem key={entry.key}>{of(entry)}</EntryItem>
        ))}
      </ul>
      {more > 0 && (
        <button type="button" className="quiet" onClick={() => setShown(shown + 100)}>
          {plural(more, 'more job')}
        </button>
      )}
    </>
  );
}

function EntryItem({ children }: { readonly children: ReactNode }) {
  return <li className="job">{children}</li>;
}

function RunningEntry({ jobs }: { readonly jobs: readonly Job[] }) {
  const [job] = jobs;
  if (job === undefined) return null;
  return job.array === undefined ? <JobItem job={job} /> : <ArrayRow jobs={jobs} id={job.array.id} isWhole />;
}

interface QueueProps {
  readonly jobs: readonly Job[];
  readonly pools: readonly Pool[];
  /** Arrays of which something runs, so that *Running* says how all of it stands. */
  readonly begun: ReadonlySet<string>;
}

/** Jobs that wait in one pool, and once why. */
function Queue({ jobs, pools, begun }: QueueProps) {
  const named = useNamed();
  const [first] = jobs;
  const why = useTimed((now) => (first === undefined ? '' : whyWaitsBriefly(first, poolsFor(first, pools), now)));
  const entries = useMemo(() => entriesOf(jobs), [jobs]);
  if (first === undefined) return null;
  return (
    <div className="queue">
      <p className="why">
        <b>{first.pool === '' ? plain(first.service) : plain(first.pool)}</b>, {plural(jobs.length, 'job')}: {named(why)}.
      </p>
      <Entries
        entries={entries}
        first={queuedShown}
        of={({ jobs: of }) => {
          const [job] = of;
          if (job === undefined) return null;
          const when = whenStartsShort(job, poolsFor(job, pools));
          if (job.array === undefined) return <JobLine job={job} when={when} />;
          return <ArrayRow jobs={of} id={job.array.id} isWhole={!begun.has(job.array.id)} when={when} />;
        }}
      />
    </div>
  );
}

/** A job in one line. */
function JobLine({ job, when }: { readonly job: Job; readonly when: string }) {
  return (
    <div className="job-line">
      <JobLink job={job} />
      <span className="job-facts">
        {when !== '' && <span className="when">{when}</span>}
        <bdi>{jobOrigin(job)}</bdi>
      </span>
      <JobTime job={job} />
    </div>
  );
}

interface ArrayRowProps {
  /** Those of the list that it is in. */
  readonly jobs: readonly Job[];
  readonly id: string;
  /** Whether it says how all jobs of the array stand. */
  readonly isWhole: boolean;
  readonly when?: string;
}

function ArrayRow({ jobs, id, isWhole, when = '' }: ArrayRowProps) {
  const [open, setOpen] = useState(false);
  const all = useArray(isWhole ? id : null) ?? jobs;
  const [job] = jobs;
  if (job === undefined) return null;
  const counted = isWhole ? all : jobs;
  const { array: _, ...plainJob } = job;
  return (
    <details className="array" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <span className="array-name">
          <bdi>{jobName(plainJob)}</bdi> {indicesText(counted)}
        </span>{' '}
        <span className="array-counts">{countsText(counted)}</span> {when !== '' && <span className="when">{when}</span>}
      </summary>
      {open && (
        <Entries
          entries={jobs.map((each) => ({ key: each.id, jobs: [each] }))}
          first={jobsShown}
          of={({ jobs: [each] }) => each && <JobLine job={each} when="" />}
        />
      )}
    </details>
  );
}

/** All jobs of an array, also those that have ended, read now and then; null: not yet. */
function useArray(id: string | null): readonly Job[] | null {
  const [read, setRead] = useState<readonly Job[] | null>(null);
  const turn = useTimed((now) => (id === null ? 0 : Math.floor(now / 10_000)));
  // biome-ignore lint/correctness/useExhaustiveDependencies: its turn is a reason to read again
  useEffect(() => {
    if (id === null) return;
    const gone = new AbortController();
    get<Job[]>(path`/v1/job-arrays/${id}`, gone.signal).then(
      (found) => setRead(found.length > 0 ? found : null),
      () => {},
    );
    return () => gone.abort();
  }, [id, turn]);
  return id === null ? null : read;
}
