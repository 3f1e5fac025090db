/** The service's requests as jobs that people can read. */
import type { JobId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import type { RemoteJob } from '../early/port.ts';
import type { AzureClient } from './client.ts';
import { type Build, type JobRequest, requestState } from './wire.ts';

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

const remembered = 256;
/** How often onejob asks for an unreadable build. */
const tries = 3;

export type Builds = ReturnType<typeof createBuilds>;

/** The build of a job, asked for once; never again after the credential turned out to have no right to it. */
export function createBuilds(client: Pick<AzureClient, 'build'>) {
  const read = new Map<string, Build | null>();
  const failures = new Map<string, number>();
  let isDenied = false;

  const placeOf = ({ planType, scopeId, owner }: JobRequest): { key: string; project: string; id: number } | null => {
    if (scopeId === null || owner === null || (planType !== null && planType !== 'Build')) return null;
    return { key: `${scopeId} ${owner.id}`, project: scopeId, id: owner.id };
  };
  const keep = <T>(map: Map<string, T>, key: string, value: T): void => {
    map.set(key, value);
    for (const old of [...map.keys()].slice(0, -remembered)) map.delete(old);
  };

  return {
    /** null: the job belongs to no build, or nobody may read it. */
    async of(request: JobRequest, signal: AbortSignal): Promise<Build | null> {
      const place = placeOf(request);
      if (isDenied || place === null) return null;
      const { key, project, id } = place;
      const found = read.get(key);
      const failed = failures.get(key) ?? 0;
      if (found !== undefined || failed >= tries) return found ?? null;
      try {
        const build = await client.build(project, id, signal);
        keep(read, key, build);
        return build;
      } catch (error) {
        signal.throwIfAborted();
        // The build is only for people: its job runs anyway.
        if (error instanceof OnejobError && error.code === 'E_CI_DENIED') isDenied = true;
        keep(failures, key, failed + 1);
        return null;
      }
    },
    known(request: JobRequest): Build | null {
      const place = placeOf(request);
      return place === null ? null : (read.get(place.key) ?? null);
    },
    get isDenied() {
      return isDenied;
    },
  };
}
