/**
 * What the service says of a job, from the environment that it gives with the job
 * (https://buildkite.com/docs/pipelines/configure/environment-variables). All of it is foreign text. Facts that decide about trust
 * are kept whole or not at all, because a shortened text could look like another one.
 */
import { masked } from '../../kit/masked.ts';

/** A job as the service gave it. */
export interface GivenJob {
  readonly id: string;
  readonly env: Readonly<Record<string, string>>;
}

type Env = GivenJob['env'];

const longestTitle = 200;
/** What is built, and the longest value of each variable. */
const revisions = { BUILDKITE_BRANCH: 255, BUILDKITE_TAG: 255, BUILDKITE_COMMIT: 255, BUILDKITE_REFSPEC: 2048 } as const;

export type BuildkiteJobFacts = Readonly<ReturnType<typeof jobFacts>>;

export function jobFacts({ id, env }: GivenJob) {
  const exact = (name: string, most: number) => whole(own(env, name), most);
  const build = exact('BUILDKITE_BUILD_NUMBER', 20);
  const buildUrl = exact('BUILDKITE_BUILD_URL', 2048);
  return {
    id,
    organisation: exact('BUILDKITE_ORGANIZATION_SLUG', 255),
    pipeline: exact('BUILDKITE_PIPELINE_SLUG', 255),
    branch: exact('BUILDKITE_BRANCH', revisions.BUILDKITE_BRANCH),
    tag: exact('BUILDKITE_TAG', revisions.BUILDKITE_TAG),
    /** Any form of address, or a path. */
    repository: exact('BUILDKITE_REPO', 2048),
    /** null: the service says that there is none, and names no repository of one. */
    pullRequest: pullRequestOf(env),
    buildId: exact('BUILDKITE_BUILD_ID', 255),
    build,
    /** The job's page, or its build's. */
    buildUrl: buildUrl !== null && /^https?:\/\/[^\s"'<>]+$/.test(buildUrl) ? withJob(buildUrl, id) : null,
    /** Mostly 40 hex digits, but a build by hand may name any ref. */
    commit: exact('BUILDKITE_COMMIT', revisions.BUILDKITE_COMMIT),
    /** What is fetched instead of commit or branch: refspecs between spaces. */
    refspec: exact('BUILDKITE_REFSPEC', revisions.BUILDKITE_REFSPEC),
    /** The first of `revisions` that is set but invalid. */
    hidden:
      Object.entries(revisions).find(([name, most]) => (own(env, name) ?? '') !== '' && exact(name, most) === null)?.[0] ?? null,
    /** What made the build: `ui`, `api`, `webhook`, `schedule`, `trigger_job`. */
    source: exact('BUILDKITE_SOURCE', 64),
    /** null: as far as the service says, no other build triggered it. */
    triggeredBy: triggerOf(env),
    /** For people, one line of at most 200 characters, never empty. */
    title: titleOf(env),
  };
}

/** `false` counts only if no repository is named; if both are missing, the job may come from anywhere. */
function pullRequestOf(env: Env) {
  const written = own(env, 'BUILDKITE_PULL_REQUEST');
  const from = own(env, 'BUILDKITE_PULL_REQUEST_REPO');
  if (written === 'false' && (from === undefined || from === '')) return null;
  return {
    /** null: the service did not say, or said no number. */
    number: written !== undefined && /^\d{1,18}$/.test(written) ? written : null,
    /** Where the change comes from; null: unknown. */
    repository: whole(from, 2048),
  };
}

/** Any of its variables counts: some may be missing, or set by others. */
function triggerOf(env: Env): { readonly pipeline: string | null } | null {
  const from = 'BUILDKITE_TRIGGERED_FROM_BUILD';
  const names = [`${from}_PIPELINE_SLUG`, `${from}_ID`, `${from}_NUMBER`];
  const isTriggered = own(env, 'BUILDKITE_SOURCE') === 'trigger_job' || names.some((name) => (own(env, name) ?? '') !== '');
  return isTriggered ? { pipeline: whole(own(env, `${from}_PIPELINE_SLUG`), 255) } : null;
}

function titleOf(env: Env): string {
  // The command comes last, because people write passwords into commands.
  for (const name of ['BUILDKITE_LABEL', 'BUILDKITE_MESSAGE', 'BUILDKITE_COMMAND']) {
    const line = oneLine(own(env, name) ?? '');
    if (line !== '') return line;
  }
  return 'a job without a name';
}

/** The first line with text, without control characters. */
function oneLine(text: string): string {
  const [first = ''] = text
    .slice(0, 4096)
    .split(/[\r\n\u2028\u2029]+/)
    .map((line) => line.replaceAll(/[\p{Cc}\p{Cf}]+/gu, ' ').trim())
    .filter((line) => line !== '');
  return cut(masked(first), longestTitle);
}

/** Cuts between characters. */
export function cut(text: string, most: number): string {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join('')}…`;
}

function withJob(url: string, id: string): string {
  return /^[A-Za-z0-9-]+$/.test(id) && !url.includes('#') ? `${url}#${id}` : url;
}

function own(env: Env, name: string): string | undefined {
  return Object.hasOwn(env, name) ? env[name] : undefined;
}

/** null for a missing, empty or too long text, and for control characters. */
function whole(text: string | undefined, most: number): string | null {
  if (text === undefined || text === '' || text.length > most) return null;
  return /[\p{Cc}\p{Cf}\u2028\u2029]/u.test(text) ? null : text;
}
