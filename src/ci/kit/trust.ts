/**
 * Which trust a job gets, from what the service says of it and what the pool's owner allows. A job from another repository than its
 * pipeline's is never trusted. What is unknown counts against the job.
 */
import type { TrustConfig } from '../../config/config.ts';
import { isSameRepository, matches, matchesPipeline, matchesRepository, shownRepository } from './repository.ts';

/** `why` names the rule: a sentence for the job's log; of a refused job the part behind a colon. */
export type TrustVerdict =
  | { readonly kind: 'trusted' }
  | { readonly kind: 'untrusted'; readonly why: string }
  | { readonly kind: 'refused'; readonly why: string };

/** Where a job comes from, as its service says. Texts are whole or null. */
export interface Origin {
  readonly branch: string | null;
  /** Mostly hex digits, but it may be any ref. */
  readonly commit: string | null;
  /** What is fetched instead of commit or branch: refspecs between spaces. */
  readonly refspec: string | null;
  /** The first of those that is set but invalid. */
  readonly hidden: string | null;
  /** The pipeline's own: any form of address, or a path. */
  readonly repository: string | null;
  /**
   * null: the service says that it is not a pull request. `repository`: where the change comes from. `target`: where it would go, if that
   * may be another repository than the pipeline's.
   */
  readonly pullRequest: {
    readonly number: string | null;
    readonly repository: string | null;
    readonly target?: string | null;
  } | null;
  /** null: as far as the service says, no other build triggered it. */
  readonly triggeredBy: { readonly pipeline: string | null } | null;
}

/** What decides about trust. */
export interface TrustFacts extends Origin {
  readonly organisation: string | null;
  readonly pipeline: string | null;
  readonly tag: string | null;
  /** What made the build, in the service's word. */
  readonly source: string | null;
  /** Jobs of any project may come, so the name of a branch or tag says nothing without the name of its project. */
  readonly ofAnyProject?: boolean;
  /** The service itself found the commit of the branch or tag, whatever made the build. */
  readonly isResolved?: boolean;
}

/** Pure. Of all rules that apply, the strictest counts. */
export function decideTrust(facts: TrustFacts, trust: TrustConfig): TrustVerdict {
  const fork = whyFork(facts);
  const pipeline = trust.pipelines === null ? null : whyOtherPipeline(facts, trust.pipelines);
  // Forks choose the names of their branches: being called `main` must neither help nor harm.
  const revision = fork === null ? (whyNoProject(facts, trust) ?? whyOtherRevision(facts, trust)) : null;
  const source = trust.sources === null || fork !== null ? null : whyOtherSource(facts, trust.sources);
  const repository = trust.repositories === null ? null : whyOtherRepository(facts, trust.repositories);
  const others = pipeline ?? repository ?? revision ?? source ?? (trust.triggered === 'trust' ? null : whyTriggered(facts));
  if (fork !== null && trust.forks === 'refuse') return refused(fork, 'forks');
  if (others !== null && trust.others === 'refuse') return refused(others, 'others');
  if (fork !== null) return untrusted(fork, 'forks', trust);
  return others === null ? { kind: 'trusted' } : untrusted(others, 'others', trust);
}

function refused(why: string, rule: 'forks' | 'others'): TrustVerdict {
  return { kind: 'refused', why: told(why, `trust.${rule}: refuse`) };
}

function untrusted(why: string, rule: 'forks' | 'others', { caches }: TrustConfig): TrustVerdict {
  const loss = `The job runs without secrets${caches === 'read' ? '' : ', and without the caches of its pool'}`;
  return { kind: 'untrusted', why: `${loss}: ${told(why, `trust.${rule}: run-without-secrets`)}` };
}

/** Owners may not expect this for triggered builds, so the message says what changes it. */
function told(why: string, rule: string): string {
  return `${why} (rule "${rule}"${why.startsWith(triggeredWords) ? '; "trust.triggered: trust" trusts such builds' : ''}).`;
}

/** Refs of pull requests: GitHub and Gitea, Bitbucket, GitLab, Gerrit. */
const pullRef = /^(?:(?:refs\/)?(?:pull|pull-requests|merge-requests)\/(?:\d+|\*)(?:\/|$)|refs\/changes\/|refs\/\*)/;
/** Without wildcards, and without what the agent's `shellwords.Split` would remove. */
const plainRefspec = /^\+?refs\/heads\/[\w./-]+(?::refs\/[\w./-]+)?$/;

/** Why a job may come from a fork, as the middle of a sentence; null: it is from the pipeline's own repository. */
function whyFork({ pullRequest, repository, branch, commit, refspec, hidden }: Origin): string | null {
  if (hidden !== null) return `${shown(hidden)} is too long or contains invalid characters, and may belong to a fork`;
  // git allows no colon in a branch: the service writes one between the owner of a fork and its branch.
  if (branch?.includes(':')) return `its branch ${JSON.stringify(shown(branch))} belongs to a fork`;
  // Anybody may have sent such a ref, and a build of it by hand does not count as a pull request.
  for (const [what, text] of Object.entries({ branch, commit })) {
    if (text?.split(/[\s:+]+/).some((ref) => pullRef.test(ref)))
      return `its ${what} ${JSON.stringify(shown(text))} belongs to a pull request, which may come from a fork`;
  }
  if (refspec !== null && !refspec.split(/\s+/).every((one) => plainRefspec.test(one)))
    return `its refspec ${JSON.stringify(shown(refspec))} is not a plain "refs/heads/…", and may belong to a pull request`;
  if (pullRequest === null) return null;
  const { target = repository } = pullRequest;
  if (isSameRepository(pullRequest.repository, repository) && isSameRepository(target, repository)) return null;
  const it = pullRequest.number === null ? 'it may be a pull request' : `it is pull request ${pullRequest.number}`;
  if (pullRequest.repository === null) return `${it}, and the service does not say which repository it comes from`;
  if (repository === null) return `${it} from ${address(pullRequest.repository)}, and the pipeline's own repository is unknown`;
  if (!isSameRepository(pullRequest.repository, repository))
    return `${it} from ${address(pullRequest.repository)}, not from ${address(repository)}`;
  if (target === null) return `${it}, and the service does not say which repository it is for`;
  return `${it} from ${address(pullRequest.repository)}, not from ${address(target)}`;
}

/** The repository of an untrusted job, whose private caches it may have; null: unknown. */
export function sourceRepository(facts: Origin): string | null {
  if (facts.pullRequest !== null) return facts.pullRequest.repository;
  return whyFork(facts) === null ? facts.repository : null;
}

function whyOtherPipeline({ organisation, pipeline }: TrustFacts, patterns: readonly string[]): string | null {
  if (organisation === null || pipeline === null) return 'the service does not say which pipeline it belongs to';
  if (matchesPipeline(patterns, organisation, pipeline)) return null;
  return `its pipeline ${shown(`${organisation}/${pipeline}`)} does not match "trust.pipelines"`;
}

function whyOtherRepository({ repository }: TrustFacts, patterns: readonly string[]): string | null {
  if (repository === null) return 'the service does not say which repository it belongs to';
  if (matchesRepository(patterns, repository)) return null;
  return `its repository ${address(repository)} does not match "trust.repositories"`;
}

/** Whether the rules name projects with their owner. A name alone is that of every fork, too. */
export function namesProjects({ pipelines, repositories }: Pick<TrustConfig, 'pipelines' | 'repositories'>): boolean {
  return repositories !== null || (pipelines ?? []).some((pattern) => !isBareName(pattern));
}

/** Whether a pattern of `trust.pipelines` leaves the owner open. */
export const isBareName = (pattern: string): boolean => !pattern.includes('/') || /^[*?{[]/.test(pattern);

function whyNoProject({ ofAnyProject }: TrustFacts, trust: TrustConfig): string | null {
  if (ofAnyProject !== true || (trust.branches === null && trust.tags === null) || namesProjects(trust)) return null;
  return '"trust" names branches or tags and no project, and every fork has branches and tags of all names';
}

const triggeredWords = 'another build triggered it';

/** The service does not say whether the triggering build, which chose branch and commit, was a fork's. */
function whyTriggered({ triggeredBy }: TrustFacts): string | null {
  if (triggeredBy === null) return null;
  const from = triggeredBy.pipeline === null ? '' : ` (of pipeline ${shown(triggeredBy.pipeline)})`;
  return `${triggeredWords}${from}, and the service does not say whether that build came from a fork`;
}

/**
 * The service also sets a tag's name as the branch, so anyone who may push tags could choose the name of a protected branch. So a
 * build of a tag never counts as one of a branch.
 */
function whyOtherRevision(facts: TrustFacts, { tags, branches, sources }: TrustConfig): string | null {
  const { tag, branch, commit, refspec } = facts;
  const isTyped = sources === null && facts.isResolved !== true && !isMadeBy.has(facts.source ?? '');
  if (tag !== null) {
    if (!matches(tags ?? [], tag)) return `its tag ${shown(tag)} does not match "trust.tags"`;
    // The agent compares neither commit nor refspec with the tag.
    if (isTyped) return typed(`tag ${shown(tag)}`);
    return refspec === null ? null : `onejob cannot verify that its refspec ${shown(refspec)} belongs to tag ${shown(tag)}`;
  }
  if (branches === null) return null;
  if (branch === null) return 'the service does not say which branch it belongs to';
  if (!matches(branches, branch)) return `its branch ${shown(branch)} does not match "trust.branches"`;
  if (commit === null) return 'the service does not say which commit it builds';
  if (isTyped && isUnseen(facts, branches.includes(branch))) return typed(`branch ${shown(branch)}`);
  if (isOnBranch(facts)) return null;
  const what = refspec === null ? `commit ${shown(commit)}` : `refspec ${shown(refspec)}`;
  return `onejob cannot verify that its ${what} belongs to branch ${shown(branch)}`;
}

function typed(revision: string): string {
  return `it was created by hand, and onejob cannot verify that its commit belongs to ${revision} ("trust.sources" trusts such builds)`;
}

/**
 * Whether the agent builds only what is on the branch: it looks there for a full commit (`script.ts`), unless a refspec is set
 * (v3.137 `internal/job/commit_verification.go`). `HEAD` is the last commit of what is fetched.
 */
function isOnBranch({ branch, commit, refspec }: TrustFacts): boolean {
  if (commit === 'HEAD') return refspec === null || refspec.replace(/^\+/, '') === `refs/heads/${branch}`;
  return refspec === null && commit !== null && /^(?:[0-9a-f]{40}|[0-9a-f]{64})$/.test(commit);
}

/** Sources of Buildkite's builds whose commit nobody types. */
const isMadeBy: ReadonlySet<string> = new Set(['webhook', 'schedule', 'trigger_job']);

/**
 * Whether the agent would build a typed commit unchecked: it checks no branch for a pull request, and only warns when the branch
 * does not exist, as one that only a pattern names (v3.137 `internal/job/commit_verification.go`).
 */
function isUnseen({ pullRequest, commit }: TrustFacts, isNamed: boolean): boolean {
  return pullRequest !== null || (!isNamed && commit !== 'HEAD');
}

function whyOtherSource({ source }: TrustFacts, sources: readonly string[]): string | null {
  if (source === null) return 'the service does not say what created its build';
  return sources.includes(source) ? null : `the source of its build, ${shown(source)}, does not match "trust.sources"`;
}

function address(repository: string): string {
  return shown(shownRepository(repository));
}

function shown(text: string): string {
  return text.length <= 120 ? text : `${text.slice(0, 119)}…`;
}
