/** What an event changed, as a sentence for the list of changes; null if nobody needs to know. */
import type { Device, Job, Pool } from '../views.ts';
import { deviceReason, type Names } from './names.ts';
import { plain, shortUuid } from './text.ts';
import { deviceState, endReason, jobName, jobState } from './words.ts';

interface Told {
  readonly what: string;
  readonly bad: boolean;
}

export function jobChange(before: Job | null, after: Job): Told | null {
  if (before?.state === after.state) return null;
  const name = `Job ${jobName(after)}`;
  switch (after.state) {
    case 'queued':
    case 'waiting':
      return before === null ? { what: `${name} was submitted`, bad: false } : { what: `${name} waits again`, bad: true };
    case 'running':
      return { what: `${name} began${after.pool === '' ? '' : ` in pool ${plain(after.pool)}`}`, bad: false };
    case 'done': {
      const { word, tone } = jobState(after);
      const why = endReason(after);
      return { what: `${name} ended: ${word}${why === '' ? '' : `, ${plain(why)}`}`, bad: tone === 'bad' };
    }
    default:
      return null;
  }
}

export function deviceChange(before: Device | null, after: Device, names: Names): Told | null {
  if (before?.state === after.state) return null;
  // Leased and free change with every job.
  const usual = (state: Device['state'] | undefined) => state === undefined || state === 'free' || state === 'leased';
  if (usual(before?.state) && usual(after.state)) return null;
  const { word, tone } = deviceState(after);
  const why = deviceReason(after, names);
  return {
    what: `${names.get(after.uuid) ?? shortUuid(after.uuid)} is ${word}${why === null ? '' : `: ${why}`}`,
    bad: tone === 'bad',
  };
}

export function poolChange(before: Omit<Pool, 'slots'> | null, after: Omit<Pool, 'slots'>): Told | null {
  const name = `Pool ${plain(after.name)}`;
  if (before === null) return { what: `${name} is new`, bad: false };
  if (before.paused.length === 0 && after.paused.length > 0) {
    const what = after.paused.some((held) => held.startsWith('by ')) ? 'was paused' : 'starts nothing new';
    return { what: `${name} ${what}: ${plain(after.paused.join('; '))}`, bad: false };
  }
  if (!before.draining && after.draining) return { what: `${name} drains`, bad: false };
  if ((before.paused.length > 0 || before.draining) && after.paused.length === 0 && !after.draining) {
    const isResumed = before.draining || before.paused.some((held) => held.startsWith('by '));
    return { what: `${name} ${isResumed ? 'was resumed' : 'starts jobs again'}`, bad: false };
  }
  if (before.backoff === null && after.backoff !== null) {
    return { what: `${name} cannot start agents: ${plain(after.backoff.reason)}`, bad: true };
  }
  if (before.backoff !== null && after.backoff === null) return { what: `${name} starts agents again`, bad: false };
  return null;
}
