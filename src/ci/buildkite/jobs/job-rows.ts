/** The service's jobs that this host has or had, for people. */
import { type JobAbout, LateRows } from '../../kit/job-rows.ts';
import { shownRepository } from '../../kit/repository.ts';
import type { RowWriterParts } from '../../kit/row-writer.ts';
import { type GivenJob, jobFacts } from './job-facts.ts';

export type JobRows = LateRows<GivenJob>;

/** `service`: its name in the config. */
export const createJobRows = (service: string, parts: RowWriterParts): JobRows => new LateRows(service, parts, aboutOf);

function aboutOf(job: GivenJob): JobAbout {
  const { pipeline, build, repository, branch, source, buildUrl, title } = jobFacts(job);
  return {
    id: job.id,
    definition: pipeline,
    build,
    branch,
    reason: source,
    link: buildUrl,
    title: [pipeline, build === null ? null : `#${build}`, title].filter((part) => part !== null).join(' '),
    repository: repository === null ? null : shownRepository(repository),
  };
}
