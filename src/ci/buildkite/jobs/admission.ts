/** Decides about a job of Buildkite before any of it runs. */
import { type AdmissionParts, admitJob, type Admission as Decision } from '../../kit/admission.ts';
import { type GivenJob, type JobFacts, jobFacts } from './job-facts.ts';

export type Admission = Decision<JobFacts>;

/** @throws as `admitJob` */
export const admit = (job: GivenJob, parts: AdmissionParts): Promise<Admission> => admitJob(jobFacts(job), job.env, parts);
