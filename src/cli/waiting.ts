/** While a job waits, why it does: for a person at a terminal. */
import type { Client } from '../api/client.ts';
import type { JobView } from '../api/schema.ts';
import type { Session } from './session.ts';

/** ms between two looks: at first often, for a job that soon begins; then seldom, as hundreds may wait. */
const firstLook = 1_000;
const longestWait = 5_000;

/**
 * Shows the job's place in its queue until the answer is called. Where a line that changes cannot be seen, such as in the
 * log of another CI system, each reason to wait is said once: nobody should look at a silent command for an hour.
 */
export function watchQueue({ output }: Session, client: () => Client, id: string): () => void {
  let stopped = false;
  const said = new Set<string>();
  const look = async () => {
    try {
      const job = await client().job(id);
      // What a sandbox in the making does, such as a pull, stands with its slot.
      const note = job.state === 'reserved' ? await noteOf(client(), job.pool) : null;
      if (stopped) return;
      const line = waitingLine(job, note);
      if (output.showsProgress) output.progress(line);
      else if (job.state === 'queued' && job.reason !== null && line !== null && !said.has(job.reason)) {
        said.add(job.reason);
        output.say(line);
      }
      if (job.state === 'running') stop();
    } catch {
      // Whoever follows the job notices a lost daemon, and says so.
    }
  };
  let timer: NodeJS.Timeout | null = null;
  const lookIn = (ms: number): void => {
    timer = setTimeout(async () => {
      await look();
      if (!stopped) lookIn(Math.min(ms * 1.5, longestWait));
    }, ms).unref();
  };
  lookIn(firstLook);
  const stop = () => {
    if (stopped) return;
    stopped = true;
    if (timer !== null) clearTimeout(timer);
    output.progress(null);
  };
  return stop;
}

async function noteOf(client: Client, name: string): Promise<string | null> {
  const { pools } = await client.status();
  const slots = pools.find((pool) => pool.name === name)?.slots ?? [];
  return slots.find((slot) => slot.note !== null)?.note ?? null;
}

function waitingLine(job: JobView, note: string | null): string | null {
  const why = job.reason ?? note;
  const reason = why === null ? '' : `: ${why}`;
  if (job.state === 'reserved') return `an agent is being made for job ${job.id}${reason}`;
  if (job.state !== 'queued') return null;
  const { ahead = 0 } = job;
  return `job ${job.id} waits in pool ${job.pool}, ${ahead === 0 ? 'next in line' : `${ahead} before it`}${reason}`;
}
