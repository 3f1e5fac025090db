/** Finds a job by what people remember of it: among those that live, and then among all that have ended. */
import { useEffect, useMemo, useState } from 'react';
import { jobHas } from '../../../src/verdict/shown.ts';
import { ask, query } from '../api.ts';
import { useLive } from '../live/store.ts';
import { jobHref } from '../route.ts';
import type { Job } from '../views.ts';
import { plain } from '../words/text.ts';
import { jobName, jobOrigin, jobState } from '../words/words.ts';
import { Dialog, problemText } from './dialog.tsx';
import { Age } from './time.tsx';

const shown = 12;

export function Find({ onClose }: { readonly onClose: () => void }) {
  const jobs = useLive(({ world }) => world?.jobs);
  const [text, setText] = useState('');
  /** Enter was pressed before the answer was there. */
  const [entered, setEntered] = useState(false);
  const wanted = text.trim();
  const live = useMemo(
    () => [...(jobs?.values() ?? [])].filter((job) => jobHas(job, wanted)).toSorted(newestFirst),
    [jobs, wanted],
  );
  const { ended, older, isReading, problem } = useEnded(wanted);
  const known = new Set(live.map(({ id }) => id));
  const over = ended.filter(({ id }) => !known.has(id));
  // Many that wait must not hide the one that has failed.
  const found = [...live.slice(0, shown - Math.min(over.length, shown / 2)), ...over].slice(0, shown);
  const go = (id: string) => {
    window.location.hash = jobHref(id);
    onClose();
  };
  const first = found[0]?.id;
  // biome-ignore lint/correctness/useExhaustiveDependencies: to go there is the same at any time
  useEffect(() => {
    if (entered && first !== undefined) go(first);
  }, [entered, first]);
  return (
    <Dialog title="Find a job" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (wanted !== '') setEntered(true);
        }}
      >
        {/* One of the type "search" takes the first Escape for itself. */}
        <input
          type="text"
          aria-label="Id, name, user, branch or command"
          placeholder="Id, name, user, branch or command"
          value={text}
          maxLength={200}
          enterKeyHint="go"
          onChange={(event) => {
            setText(event.currentTarget.value);
            setEntered(false);
          }}
          autoComplete="off"
          autoFocus
        />
        <ul className="found">
          {found.map((job) => (
            <li key={job.id}>
              <FoundJob job={job} onClick={() => go(job.id)} />
            </li>
          ))}
        </ul>
        <p className="nothing" role="status">
          {problem ?? stateText(found.length, isReading, older !== null)}
        </p>
        {older !== null && !isReading && (
          <button type="button" className="quiet" onClick={older}>
            Search older jobs
          </button>
        )}
      </form>
    </Dialog>
  );
}

function FoundJob({ job, onClick }: { readonly job: Job; readonly onClick: () => void }) {
  const about = [jobState(job).word, plain(job.pool), jobOrigin(job)].filter((part) => part !== '').join(', ');
  return (
    <button type="button" onClick={onClick}>
      <bdi>{jobName(job)}</bdi>
      <span className="nothing">
        <bdi>{about}</bdi>{' '}
        {job.endedAt !== null && (
          <>
            <Age at={job.endedAt} /> ago{' '}
          </>
        )}
        <span className="mono">{plain(job.id)}</span>
      </span>
    </button>
  );
}

function stateText(found: number, isReading: boolean, hasOlder: boolean): string {
  if (isReading) return 'Searching jobs that have ended …';
  if (found > 0) return '';
  return hasOlder ? 'Not among the newest jobs.' : 'No job fits.';
}

function newestFirst(a: Job, b: Job): number {
  const isOver = (job: Job) => (job.state === 'done' ? 1 : 0);
  return isOver(a) - isOver(b) || (b.submittedAt ?? 0) - (a.submittedAt ?? 0) || (a.array?.index ?? 0) - (b.array?.index ?? 0);
}

interface Answer {
  /** What was searched for. */
  readonly text: string;
  /** Newest first. */
  readonly jobs: readonly Job[];
  /** Where the daemon stopped; null: it has looked at all. */
  readonly next: string | null;
  readonly problem: string | null;
}

/** The daemon looks at some ended jobs for each request. So many requests are sent before somebody has to ask for more. */
const requestsAtOnce = 10;

/** ms without another key before the daemon is asked. */
const pause = 250;

/** `older`: searches further back; null: there is nothing more to look at, or enough was found. */
function useEnded(text: string) {
  const [answer, setAnswer] = useState<Answer>({ text: '', jobs: [], next: null, problem: null });
  const [from, setFrom] = useState<{ readonly text: string; readonly before: string } | null>(null);
  const before = from?.text === text ? from.before : null;
  useEffect(() => {
    if (text === '') return;
    const gone = new AbortController();
    const timer = setTimeout(
      () => {
        search(text, before, gone.signal).then(
          ({ jobs, next }) => setAnswer({ text, jobs, next, problem: null }),
          (error: unknown) => {
            if (!gone.signal.aborted) setAnswer({ text, jobs: [], next: null, problem: problemText(error) });
          },
        );
      },
      before === null ? pause : 0,
    );
    return () => {
      clearTimeout(timer);
      gone.abort();
    };
  }, [text, before]);
  const isMine = answer.text === text;
  const { next } = answer;
  const isReading = text !== '' && (!isMine || (before !== null && next === before));
  const older = isMine && next !== null && text !== '' ? () => setFrom({ text, before: next }) : null;
  return { ended: isMine ? answer.jobs : [], older, isReading, problem: isMine ? answer.problem : null };
}

async function search(text: string, before: string | null, signal: AbortSignal): Promise<Pick<Answer, 'jobs' | 'next'>> {
  const jobs: Job[] = [];
  let next = before;
  for (let n = 0; n < requestsAtOnce && jobs.length < shown; n += 1) {
    const response = await ask(`/v1/jobs${query({ all: true, text, limit: shown, before: next ?? undefined })}`, { signal });
    jobs.push(...((await response.json()) as Job[]).toReversed());
    next = response.headers.get('onejob-next');
    if (next === null) break;
  }
  return { jobs, next };
}
