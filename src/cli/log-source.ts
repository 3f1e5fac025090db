/** Whose output is meant by what a person typed: a slot, a job's id or the beginning of one, an agent's id or its name. */
import type { LogSource } from '../api/manager.ts';
import type { JobView } from '../api/schema.ts';
import { OnejobError } from '../errors.ts';
import type { JobReader } from './archive.ts';

/** An agent's name at a CI service that is told one of its own: its name in the config, eight digits of the installation, its id. */
const nameElsewhere = /-[0-9a-f]{8}-([0-9a-z]+)$/;
/** Letters that the beginning of a job's id needs. */
export const leastOfId = 4;
/** How many ids are named where a beginning is of several. */
const named = 5;

/** Slots have a slash in them; what is no job is taken for an agent. @throws OnejobError E_USAGE */
export async function findSource(client: JobReader, target: string, previous: boolean): Promise<LogSource> {
  if (target.includes('/')) return { slot: target, previous };
  if (previous) {
    throw new OnejobError(
      'E_USAGE',
      `--previous asks for the agent before the present one, so it needs a slot, and ${target} is none.`,
      {
        hint: 'Slots are named like default/1; "onejob status" lists them.',
      },
    );
  }
  const job = await tryJob(client, target);
  if (job !== null) return { job: job.id };
  // Before jobs are gone through: a name is whole, and a beginning could be of anything.
  const slot = await slotNamed(client, target);
  if (slot !== null) return { slot, previous: false };
  const begun = onlyOne(target, await jobsBegun(client, target));
  return begun === null ? { agent: nameElsewhere.exec(target)?.[1] ?? target } : { job: begun.id };
}

/** Jobs whose id begins so, over or not, as far as they are remembered; none for fewer than four letters that are no whole id. */
export async function jobsBegun(client: JobReader, start: string): Promise<JobView[]> {
  if (start.length < leastOfId) return [];
  return (await client.jobs({ all: true, pool: null })).filter(({ id }) => id.startsWith(start.toLowerCase()));
}

export async function tryJob(client: JobReader, id: string): Promise<JobView | null> {
  try {
    return await client.job(id);
  } catch (error) {
    if (error instanceof OnejobError && error.code === 'E_JOB_UNKNOWN') return null;
    throw error;
  }
}

/** The job with this id, or the only one whose id begins so. @throws OnejobError E_USAGE when there are several */
export async function findJob(client: JobReader, id: string): Promise<JobView | null> {
  return (await tryJob(client, id)) ?? onlyOne(id, await jobsBegun(client, id));
}

function onlyOne(start: string, found: readonly JobView[]): JobView | null {
  if (found.length < 2) return found[0] ?? null;
  const ids = found.slice(-named).map(({ id }) => id);
  const more = found.length > ids.length ? ` and ${found.length - ids.length} more` : '';
  throw new OnejobError('E_USAGE', `${found.length} jobs begin with ${start}: ${ids.join(', ')}${more}.`, {
    hint: 'Type more of the id.',
  });
}

async function slotNamed(client: JobReader, name: string): Promise<string | null> {
  const { pools } = await client.status();
  return pools.flatMap(({ slots }) => slots).find((slot) => slot.name === name)?.key ?? null;
}
