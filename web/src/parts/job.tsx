/** A job in one line, and what people may do with it. */
import { memo } from 'react';
import { path, post } from '../api.ts';
import { useNamed } from '../live/store.ts';
import { jobHref } from '../route.ts';
import type { Job } from '../views.ts';
import { formatAge } from '../words/text.ts';
import { endReason, jobName, jobOrigin, jobState } from '../words/words.ts';
import type { Question } from './dialog.tsx';
import { HeldMark } from './held.tsx';
import { Badge } from './icon.tsx';
import { Age } from './time.tsx';

export function JobLink({ job }: { readonly job: Job }) {
  return (
    <a className="job-name" href={jobHref(job.id)} title={jobName(job)}>
      <bdi>{jobName(job)}</bdi>
    </a>
  );
}

/** A job that has begun, and perhaps ended. */
export const JobItem = memo(function JobItem({ job }: { readonly job: Job }) {
  const origin = jobOrigin(job);
  return (
    <>
      <div className="job-head">
        <Badge {...jobState(job)} />
        <JobLink job={job} />
        <JobTime job={job} />
      </div>
      {job.state === 'done' && <Ended job={job} />}
      <div className="job-facts">
        {job.pool !== '' && <span>pool {job.pool}</span>}
        {job.service !== 'own' && <span>{job.service}</span>}
        <HeldMark job={job} />
        {origin !== '' && <bdi>{origin}</bdi>}
      </div>
    </>
  );
});

export function JobTime({ job: { state, submittedAt, startedAt, endedAt } }: { readonly job: Job }) {
  const at = state === 'done' ? endedAt : (startedAt ?? submittedAt);
  if (at === null) return null;
  return (
    <span className="job-time">
      <Age at={at} />
      {state === 'done' ? ' ago' : ''}
    </span>
  );
}

function Ended({ job }: { readonly job: Job }) {
  const took = job.startedAt === null || job.endedAt === null ? '' : `, after ${formatAge(job.endedAt - job.startedAt)}`;
  const why = useNamed()(endReason(job));
  return why === '' && took === '' ? null : <p className="why">{`${why}${took}`}</p>;
}

export function cancelQuestion(job: Job): Question {
  const runs = job.state === 'running' ? 'It runs now; its commands are ended.' : 'It has not begun, and will not.';
  return {
    title: `Cancel ${jobName(job)}?`,
    text: `${runs} Its log stays.`,
    confirm: 'Cancel the job',
    danger: true,
    async run() {
      await post(path`/v1/jobs/${job.id}/cancel`);
      return `Job ${job.id} is being cancelled.`;
    },
  };
}
