/** What a signal to stop means for jobs that run, as a line of the log: who pressed Ctrl-C sits before it and waits. */
import { formatDuration } from '../config/units.ts';
import type { Slot } from '../core/slot.ts';
import type { Log } from '../log.ts';

/** `first`: whether it is the first signal; after it whoever sends them knows. Says nothing where no job runs. */
export function tellStop(slots: readonly Slot[], how: 'end' | 'drain' | 'leave', first: boolean, log: Log): void {
  const running = slots.filter(({ agent }) => 'job' in agent && agent.job !== null);
  if (!first || running.length === 0) return;
  const jobs = running.length;
  const next = 'a second Ctrl-C kills them';
  if (how === 'leave') log.info('leaving jobs that run', { jobs, hint: 'the next daemon takes them over' });
  else if (how === 'drain') log.info('waiting for jobs that run', { jobs, hint: next });
  else
    log.info('ending jobs that run', { jobs, within: formatDuration(Math.max(...running.map(({ grace }) => grace))), hint: next });
}
