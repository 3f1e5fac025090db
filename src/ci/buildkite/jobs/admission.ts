/** Decides about a job of Buildkite before any of it runs. */
import { type AdmissionParts, admitJob, type Admission as Decision } from '../../kit/admission.ts';
import { type BuildkiteJobFacts, type GivenJob, jobFacts } from './job-facts.ts';

export type BuildkiteAdmission = Decision<BuildkiteJobFacts>;

/** @throws as `admitJob` */
export const admit = (job: GivenJob, parts: AdmissionParts): Promise<BuildkiteAdmission> => admitJob(jobFacts(job), job.env, parts);
