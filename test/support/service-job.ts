/** A job of a CI service that keeps its jobs itself. */
import type { ServiceJob } from '../../src/ports/service-job.ts';

export function serviceJob(id: string, change: Partial<ServiceJob> = {}): ServiceJob {
  return {
    id,
    service: 'azure',
    pool: 'lab',
    agent: null,
    title: 'app-ci #20260101.1 build',
    definition: 'app-ci',
    build: '20260101.1',
    repository: 'acme/app',
    branch: 'main',
    reason: 'pullRequest',
    link: 'https://dev.azure.com/acme/app/_build/results?buildId=7',
    demands: ['cuda'],
    state: 'running',
    result: null,
    outcome: null,
    failedIn: null,
    note: null,
    queuedAt: 1_000,
    startedAt: 2_000,
    endedAt: null,
    ...change,
  };
}
