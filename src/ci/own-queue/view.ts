/** A job as the API shows it. */
import type { JobView } from '../../api/schema.ts';
import type { Job } from './job.ts';

/** `reasonFor` says why jobs of a pool wait; what happened to this very job goes before it. */
export function viewOf(job: Job, reasonFor: (pool: string) => string | null): JobView {
  const { id, request, progress, submittedAt } = job;
  const { state, attempt, agent, result, cold, startedAt, endedAt, note } = progress;
  const reason = state === 'queued' ? (note ?? reasonFor(request.pool)) : result === null ? null : note;
  return {
    id,
    service: 'own',
    pool: request.pool,
    command: [...request.command],
    name: request.name,
    user: request.user,
    about: null,
    state,
    priority: request.priority,
    attempt,
    agent,
    result,
    reason,
    cold,
    artifacts: [...request.artifacts],
    submittedAt,
    startedAt,
    endedAt,
  };
}
