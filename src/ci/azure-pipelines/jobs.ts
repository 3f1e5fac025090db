/** The service's requests as jobs that people can read. */
import type { AgentId, JobId } from '../../core/slot.ts';
import type { ServiceJob } from '../ci-service.ts';
import { type Build, type JobRequest, requestState } from './wire.ts';

export interface JobPlace {
  /** Name of the service in the config. */
  readonly service: string;
  readonly pool: string;
  readonly agent: AgentId | null;
}

export function jobIdOf(service: string, request: Pick<JobRequest, 'requestId'>): JobId {
  return `${service}-${request.requestId}`;
}

/** `build`: what is known of it beyond the request; null when nothing is. */
export function jobOf(request: JobRequest, { service, pool, agent }: JobPlace, build: Build | null): ServiceJob {
  const definition = request.definition?.name ?? build?.definition?.name ?? null;
  const number = build?.buildNumber ?? request.owner?.name ?? null;
  const name = request.jobName ?? null;
  const parts = [definition, number === null ? null : `#${number}`, name].filter((part) => part !== null);
  return {
    id: jobIdOf(service, request),
    service,
    pool,
    agent,
    title: parts.length === 0 ? `request ${request.requestId}` : parts.join(' '),
    definition,
    build: number,
    repository: build?.repository?.name ?? build?.repository?.id ?? null,
    branch: build?.sourceBranch?.replace(/^refs\/heads\//, '') ?? null,
    reason: build?.reason ?? null,
    link: request.owner?.link ?? build?.link ?? request.definition?.link ?? null,
    demands: request.demands,
    state: requestState(request),
    result: request.result,
    note: null,
    queuedAt: request.queueTime,
    startedAt: request.receiveTime ?? request.assignTime,
    endedAt: request.finishTime,
  };
}
