/** The files of a failed job that are kept for people (`hold_failed`). */
import { path, post } from '../api.ts';
import { useMay, useTimed } from '../live/store.ts';
import type { Job } from '../views.ts';
import { plain } from '../words/text.ts';
import { isHeld, jobName } from '../words/words.ts';
import { type Question, useAsk } from './dialog.tsx';
import { Badge } from './icon.tsx';
import { Age, Clock } from './time.tsx';

/** In a list: that they are, and for how long. */
export function HeldMark({ job }: { readonly job: Job }) {
  const isShown = useTimed((now) => isHeld(job, now));
  if (!isShown || job.held == null) return null;
  return (
    <span className="held-mark">
      <Badge word="files held" tone="calm" /> <Age at={job.held.until} until /> left
    </span>
  );
}

/** At the job: what to type to look at them, and their end for those who may end it. */
export function HeldFiles({ job }: { readonly job: Job }) {
  const ask = useAsk();
  const may = useMay();
  const isShown = useTimed((now) => isHeld(job, now));
  if (!isShown || job.held == null) return null;
  const { until } = job.held;
  return (
    <section aria-label="Its files" className="outcome tone-busy held">
      <p>
        <b>
          Its files are held for <Age at={until} until />
        </b>
        , until <Clock at={until} />. To look at them, type on this host:
      </p>
      <code className="command">onejob shell {plain(job.id)}</code>
      {may && (
        <button type="button" className="danger" onClick={() => ask(unholdQuestion(job))}>
          End the hold
        </button>
      )}
    </section>
  );
}

function unholdQuestion(job: Job): Question {
  return {
    title: `End the hold of ${jobName(job)}?`,
    text: 'Its files are removed now, and shells that look at them end. Its output and artifacts stay.',
    confirm: 'Remove the files',
    danger: true,
    async run() {
      await post(path`/v1/jobs/${job.id}/unhold`);
      return `The files of job ${job.id} were removed.`;
    },
  };
}
