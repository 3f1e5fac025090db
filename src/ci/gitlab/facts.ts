/**
 * Where a job comes from, as the server says. A pipeline may set variables that GitLab sets too, and both are sent (GitLab's
 * `lib/gitlab/ci/variables/collection.rb`): a variable with two values counts as unknown. No pipeline can change repository, project,
 * ref and commit, because they do not come as variables.
 */
import { masked } from '../kit/masked.ts';
import { shownRepository } from '../kit/repository.ts';
import type { TrustFacts } from '../kit/trust.ts';
import type { GivenJob } from './wire.ts';

export interface GitlabJobFacts extends TrustFacts {
  /** In the server's word. */
  readonly reason: string | null;
  readonly id: string;
  readonly build: string | null;
  readonly link: string | null;
  readonly title: string;
}

/** In the words of `trust.sources`. */
const madeBy: Readonly<Record<string, string>> = {
  push: 'webhook',
  merge_request_event: 'webhook',
  schedule: 'schedule',
  web: 'ui',
  api: 'api',
  pipeline: 'trigger_job',
  trigger: 'trigger_job',
  parent_pipeline: 'trigger_job',
};
/** Set in pipelines of merge requests. */
const mergeNames = ['CI_MERGE_REQUEST_IID', 'CI_MERGE_REQUEST_PROJECT_URL', 'CI_MERGE_REQUEST_SOURCE_PROJECT_URL'];
const triggers: ReadonlySet<string> = new Set(['pipeline', 'trigger']);
/** In pipelines of merge requests the ref is one of these (`refs/merge-requests/12/head`). */
const mergeRef = /^refs\/(merge-requests|pipelines|keep-around)\//;

export function jobFacts({ id, job_info: job, git_info: git, variables }: GivenJob): GitlabJobFacts {
  const values = (name: string) => [...new Set(variables.filter(({ key }) => key === name).map(({ value }) => value))];
  const of = (name: string, most = 255): string | null => {
    const [value, ...others] = values(name);
    return others.length > 0 ? null : whole(value, most);
  };
  const [, organisation = null, pipeline = null] = /^(.+)\/([^/]+)$/.exec(whole(job.project_full_path, 1024) ?? '') ?? [];
  const isMerge = mergeRef.test(git.ref) || mergeNames.some((name) => values(name).some((value) => value !== ''));
  const isExternal = values('CI_EXTERNAL_PULL_REQUEST_IID').some((value) => value !== '');
  const isTag = git.ref_type === 'tag';
  const ref = whole(git.ref, 255);
  // A fork chooses the names of its branches, so for a merge request nothing follows from this one.
  const branch = mergeRef.test(git.ref) ? of('CI_MERGE_REQUEST_SOURCE_BRANCH_NAME') : ref;
  const sources = values('CI_PIPELINE_SOURCE');
  const source = of('CI_PIPELINE_SOURCE', 64);
  const link = of('CI_JOB_URL', 2048);
  return {
    organisation,
    pipeline,
    branch: isTag ? null : branch,
    tag: isTag ? ref : null,
    commit: whole(git.sha, 255),
    refspec: null,
    hidden: ref === null ? 'its ref' : null,
    repository: git.repo_url === '' ? null : shownRepository(git.repo_url),
    // GitLab runs the merge request of a fork in the fork, unless a member of the target starts it.
    pullRequest: isMerge
      ? {
          number: of('CI_MERGE_REQUEST_IID', 18),
          repository: of('CI_MERGE_REQUEST_SOURCE_PROJECT_URL', 2048),
          target: of('CI_MERGE_REQUEST_PROJECT_URL', 2048),
        }
      : isExternal
        ? { number: of('CI_EXTERNAL_PULL_REQUEST_IID', 18), repository: null }
        : null,
    source: source !== null && Object.hasOwn(madeBy, source) ? (madeBy[source] ?? null) : null,
    reason: source,
    /** By a pipeline of another project, or with a trigger's token. */
    triggeredBy: sources.some((source) => triggers.has(source)) ? { pipeline: null } : null,
    // The server does not say whether the runner is one for the whole instance, and a fork has branches of all names.
    ofAnyProject: true,
    // The server itself finds the commit of a ref; nobody can type another one.
    isResolved: true,
    id: String(id),
    build: of('CI_PIPELINE_ID', 20),
    link: link !== null && /^https?:\/\/[^\s"'<>#]+$/.test(link) ? link : null,
    title: masked(whole(job.name, 200) ?? 'a job without a name'),
  };
}

/** null for a missing, empty or too long text, and for control characters. */
function whole(text: string | undefined, most: number): string | null {
  if (text === undefined || text === '' || text.length > most) return null;
  return /[\p{Cc}\p{Cf}\u2028\u2029]/u.test(text) ? null : text;
}
