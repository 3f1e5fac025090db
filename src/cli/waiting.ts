/** While a job waits, why it does: for a person at a terminal. */
import type { Client } from '../api/client.ts';
import type { JobView } from '../api/schema.ts';
import type { Session } from './session.ts';

const lookAgain = 1_000;

/**
 * Shows the job's place in its queue until the answer is called. Where a line that changes cannot be seen, such as in the
 * log of another CI system, each reason to wait is said once: nobody should look at a silent command for an hour.
 */
export function watchQueue({ output }: Session, client: () => Client, id: string): () => void {
  let stopped = false;
  const said = new Set<string>();
  const look = async () => {
    try {
      const jobs = await client().jobs({ all: false, pool: null });
      const job = jobs.find((each) => each.id === id);
      // What a sandbox in the making does, such as a pull, stands with its slot.
      const note = job?.state === 'reserved' ? await noteOf(client(), job.pool) : null;
      if (stopped || job === undefined) return;
      const line = waitingLine(job, jobs, note);
      if (output.showsProgress) output.progress(line);
      else if (job.state === 'queued' && job.reason !== null && line !== null && !said.has(job.reason)) {
        said.add(job.reason);
        output.say(line);
      }
      if (job?.state === 'running') stop();
    } catch {
      // Whoever follows the job notices a lost daemon, and says so.
    }
  };
  const timer = setInterval(look, lookAgain);
  timer.unref();
  const stop = () => {
    if (stopped) return;
    stopped = true;
    clearInterval(timer);
    output.progress(null);
  };
  return stop;
}

async function noteOf(client: Client, name: string): Promise<string | null> {
  const { pools } = await client.status();
  const slots = pools.find((pool) => pool.name === name)?.slots ?? [];
  return slots.find((slot) => slot.note !== null)?.note ?? null;
}

function waitingLine(job: JobView, jobs: readonly JobView[], note: string | null): string | null {
  const why = job.reason ?? note;
  const reason = why === null ? '' : `: ${why}`;
  if (job.state === 'reserved') return `an agent is being made for job ${job.id}${reason}`;
  if (job.state !== 'queued') return null;
  const ahead = jobs.filter((each) => each.state === 'queued' && each.pool === job.pool && comesBefore(each, job)).length;
  return `job ${job.id} waits in pool ${job.pool}, ${ahead === 0 ? 'next in line' : `${ahead} before it`}${reason}`;
}

function comesBefore(one: JobView, other: JobView): boolean {
  return one.priority === other.priority ? one.submittedAt < other.submittedAt : one.priority > other.priority;
}
