/** The service's requests as jobs that people can read. */
import type { JobId } from '../../core/slot.ts';
import type { RemoteJob } from '../early/port.ts';
import type { Builds } from './builds.ts';
import { type JobRequest, requestState } from './wire.ts';

/** `service`: its name in the config. */
export function jobIdOf(service: string, request: Pick<JobRequest, 'requestId'>): JobId {
  return `${service}-${request.requestId}`;
}

export function jobOf(request: JobRequest, service: string, builds: Pick<Builds, 'known' | 'of'>): RemoteJob {
  return {
    id: jobIdOf(service, request),
    state: requestState(request),
    facts() {
      const build = builds.known(request);
      const definition = request.definition?.name ?? build?.definition?.name ?? null;
      const number = build?.buildNumber ?? request.owner?.name ?? null;
      const name = request.jobName ?? null;
      const parts = [definition, number === null ? null : `#${number}`, name].filter((part) => part !== null);
      return {
        title: parts.length === 0 ? `request ${request.requestId}` : parts.join(' '),
        definition,
        build: number,
        repository: build?.repository?.name ?? build?.repository?.id ?? null,
        branch: build?.sourceBranch?.replace(/^refs\/heads\//, '') ?? null,
        reason: build?.reason ?? null,
        link: request.owner?.link ?? build?.link ?? request.definition?.link ?? null,
        demands: request.demands,
        result: request.result,
        queuedAt: request.queueTime,
        startedAt: request.receiveTime ?? request.assignTime,
        endedAt: request.finishTime,
      };
    },
    ...(builds.known(request) === null && { describe: async (signal) => (await builds.of(request, signal)) !== null }),
  };
}
