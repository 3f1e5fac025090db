/** What an agent of a service that keeps its jobs itself goes through, as lines of the log: nobody else tells whoever sits before it. */
import type { ServiceJob } from '../ci/ci-service.ts';
import type { AgentLane, JobId, Slot } from '../core/slot.ts';
import type { Log } from '../log.ts';

export function tellProgress(before: Slot, after: Slot, log: Log, jobOf: (id: JobId) => ServiceJob | null): void {
  const [was, is] = [before.agent, after.agent];
  const slot = after.key;
  const title = (job: JobId | null): string | null => (job === null ? null : (jobOf(job)?.title ?? job));
  if (is.kind === 'idle' && is.online && !(was.kind === 'idle' && was.online)) log.info('agent online', { slot, agent: is.agent });
  if (is.kind === 'busy' && was.kind !== 'busy') log.info('job began', { slot, agent: is.agent, job: title(is.job) });
  if ('agent' in was && hasBegun(was) && !('agent' in is && is.agent === was.agent && is.kind !== 'proving'))
    log.info('agent ended', { slot, agent: was.agent, job: 'job' in was ? title(was.job) : null });
}

function hasBegun(lane: AgentLane): boolean {
  if (lane.kind === 'stopping' || lane.kind === 'killing') return lane.released;
  return lane.kind === 'busy' || lane.kind === 'idle';
}
