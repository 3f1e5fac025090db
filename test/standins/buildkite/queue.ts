/** A job as the service would make it of a step: its environment is what makes the agent's bootstrap run a plain command. */
import { randomUUID } from 'node:crypto';
import { dispatch } from './dispatch.ts';
import { type Build, type Job, queueOf, type World } from './state.ts';
import type { JobSpec } from './types.ts';
import { jobView } from './views.ts';

export function queueJob(world: World, spec: JobSpec): Job {
  const id = randomUUID();
  const step = randomUUID();
  const build = buildOf(world, spec.build);
  const pipeline = spec.pipeline ?? 'demo';
  const branch = spec.branch ?? 'main';
  const queue = spec.queue ?? 'default';
  const command = spec.command ?? 'echo hello';
  queueOf(world, queue);
  const job: Job = {
    id,
    order: world.next('job'),
    spec,
    build,
    pipeline,
    branch,
    step,
    command,
    queue,
    rules: spec.rules ?? [],
    priority: spec.priority ?? 0,
    env: environment(world, { id, step, build, pipeline, branch, queue, command, spec }),
    state: spec.waiting === true ? 'waiting' : 'scheduled',
    agent: null,
    assignments: 0,
    token: null,
    exit: null,
    signal: '',
    signalReason: '',
    detail: null,
    chunksFailed: 0,
    chunks: new Map(),
    received: 0,
    repeated: 0,
    headerTimes: new Map(),
    annotations: new Map(),
    artifacts: [],
    batches: new Map(),
    notifications: [],
    uploads: new Map(),
    reservation: null,
    times: { queued: world.now() },
    ended: Promise.withResolvers<void>(),
  };
  world.jobs.set(id, job);
  world.open.add(job);
  world.emit({ kind: 'jobQueued', job: jobView(job) });
  dispatch(world);
  return job;
}

function buildOf(world: World, name: string | undefined): Build {
  const known = name === undefined ? undefined : world.builds.get(name);
  if (known !== undefined) return known;
  const build = { id: name ?? randomUUID(), number: world.next('build'), metaData: new Map<string, string>() };
  world.builds.set(build.id, build);
  return build;
}

interface About {
  readonly id: string;
  readonly step: string;
  readonly build: Build;
  readonly pipeline: string;
  readonly branch: string;
  readonly queue: string;
  readonly command: string;
  readonly spec: JobSpec;
}

/** Variables that the bootstrap refuses to go without, and those that hooks and jobs expect. */
function environment(world: World, { id, step, build, pipeline, branch, queue, command, spec }: About): Record<string, string> {
  const { slug, id: organisation } = world.organisation;
  const repo = spec.repo ?? `https://git.example.org/${slug}/${pipeline}.git`;
  return {
    CI: 'true',
    BUILDKITE: 'true',
    BUILDKITE_JOB_ID: id,
    BUILDKITE_LABEL: '',
    BUILDKITE_STEP_ID: step,
    BUILDKITE_STEP_KEY: '',
    BUILDKITE_BUILD_ID: build.id,
    BUILDKITE_BUILD_NUMBER: String(build.number),
    BUILDKITE_BUILD_URL: `${world.origin}/${slug}/${pipeline}/builds/${build.number}`,
    BUILDKITE_ORGANIZATION_SLUG: slug,
    BUILDKITE_ORGANIZATION_ID: organisation,
    BUILDKITE_PIPELINE_SLUG: pipeline,
    BUILDKITE_PIPELINE_NAME: pipeline,
    BUILDKITE_PIPELINE_PROVIDER: 'git',
    BUILDKITE_PIPELINE_DEFAULT_BRANCH: 'main',
    BUILDKITE_REPO: repo,
    BUILDKITE_COMMIT: spec.commit ?? 'HEAD',
    BUILDKITE_COMMIT_RESOLVED: 'true',
    BUILDKITE_BRANCH: branch,
    BUILDKITE_TAG: '',
    BUILDKITE_MESSAGE: spec.message ?? 'A commit',
    BUILDKITE_SOURCE: 'webhook',
    BUILDKITE_PULL_REQUEST: spec.pullRequest === undefined ? 'false' : String(spec.pullRequest),
    BUILDKITE_PULL_REQUEST_REPO: spec.pullRequest === undefined ? '' : (spec.pullRequestRepo ?? repo),
    BUILDKITE_PULL_REQUEST_BASE_BRANCH: spec.pullRequest === undefined ? '' : 'main',
    BUILDKITE_AGENT_META_DATA_QUEUE: queue,
    BUILDKITE_COMMAND: command,
    BUILDKITE_SCRIPT_PATH: command,
    BUILDKITE_ARTIFACT_PATHS: spec.artifactPaths ?? '',
    BUILDKITE_TIMEOUT: 'false',
    BUILDKITE_RETRY_COUNT: '0',
    ...(spec.checkout === true ? {} : { BUILDKITE_SKIP_CHECKOUT: 'true' }),
    ...spec.env,
  };
}
