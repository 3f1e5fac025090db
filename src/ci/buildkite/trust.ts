/**
 * What a job is trusted with, from what the service says of it and what the pool's owner allows.
 *
 * A job from another repository than its pipeline's is never trusted, whatever else is said of it. What is not known counts
 * against the job.
 */
import type { TrustConfig } from '../../config/config.ts';
import type { JobFacts } from './job-facts.ts';
import { matches, matchesPipeline } from './pattern.ts';
import { isSameRepository } from './repository.ts';

/** `why` is a sentence for the job's log: it names the rule. */
export type Verdict =
  | { readonly kind: 'trusted' }
  | { readonly kind: 'untrusted'; readonly why: string }
  | { readonly kind: 'refused'; readonly why: string };

type Judged = Pick<JobFacts, 'organisation' | 'pipeline' | 'branch' | 'repository' | 'pullRequest'>;

/** Pure. The stricter of all rules that speak of the job holds. */
export function decideTrust(facts: Judged, trust: TrustConfig): Verdict {
  const fork = whyFork(facts);
  const pipeline = trust.pipelines === null ? null : whyOtherPipeline(facts, trust.pipelines);
  // Who forks chooses the names of branches there: being called `main` must not help, nor being called otherwise harm.
  const branch = trust.branches === null || fork !== null ? null : whyOtherBranch(facts, trust.branches);
  const others = pipeline ?? branch;
  if (fork !== null && trust.forks === 'refuse') return refused(fork, 'forks');
  if (others !== null && trust.others === 'refuse') return refused(others, 'others');
  if (fork !== null) return untrusted(fork, 'forks');
  return others === null ? { kind: 'trusted' } : untrusted(others, 'others');
}

function refused(why: string, rule: 'forks' | 'others'): Verdict {
  return { kind: 'refused', why: `This pool does not run the job: ${why} (rule "trust.${rule}: refuse").` };
}

function untrusted(why: string, rule: 'forks' | 'others'): Verdict {
  return { kind: 'untrusted', why: `The job runs without secrets: ${why} (rule "trust.${rule}: run-without-secrets").` };
}

/** Why a job is taken for one from a fork, as the middle of a sentence; null when it is from the pipeline's own repository. */
export function whyFork({ pullRequest, repository, branch }: Pick<Judged, 'pullRequest' | 'repository' | 'branch'>): string | null {
  // git allows no colon in the name of a branch: the service writes one between the owner of a fork and its branch.
  if (branch?.includes(':')) return `its branch ${JSON.stringify(shown(branch))} is one of a fork`;
  // Who builds such a ref by hand builds what anybody may have sent, and the service calls it no pull request.
  if (branch !== null && /^(refs\/)?(pull|pull-requests|merge-requests)\/\d+(\/|$)/.test(branch))
    return `its branch ${JSON.stringify(shown(branch))} is that of a pull request, which may be a fork's`;
  if (pullRequest === null) return null;
  if (isSameRepository(pullRequest.repository, repository)) return null;
  const it = pullRequest.number === null ? 'it may be a pull request' : `it is pull request ${pullRequest.number}`;
  if (pullRequest.repository === null) return `${it} of which the service does not say where it is from`;
  if (repository === null) return `${it} from ${address(pullRequest.repository)}, and the pipeline's own repository is not known`;
  return `${it} from ${address(pullRequest.repository)}, not from ${address(repository)}`;
}

/** Which repository an untrusted job is from: whose private caches it may have. null when nobody knows. */
export function sourceRepository(facts: Pick<Judged, 'pullRequest' | 'repository' | 'branch'>): string | null {
  if (facts.pullRequest !== null) return facts.pullRequest.repository;
  return whyFork(facts) === null ? facts.repository : null;
}

function whyOtherPipeline({ organisation, pipeline }: Judged, patterns: readonly string[]): string | null {
  if (organisation === null || pipeline === null) return 'the service does not say which pipeline it is of';
  if (matchesPipeline(patterns, organisation, pipeline)) return null;
  return `its pipeline ${shown(`${organisation}/${pipeline}`)} is none that "trust.pipelines" names`;
}

function whyOtherBranch({ branch }: Judged, patterns: readonly string[]): string | null {
  if (branch === null) return 'the service does not say which branch it is of';
  return matches(patterns, branch) ? null : `its branch ${shown(branch)} is none that "trust.branches" names`;
}

/** Without a password that may stand in it. */
function address(repository: string): string {
  return shown(repository.replace(/^([a-z+]+:\/\/)[^/]*@/i, '$1'));
}

function shown(text: string): string {
  return text.length <= 120 ? text : `${text.slice(0, 119)}…`;
}
