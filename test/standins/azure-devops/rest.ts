/** The rest that managers ask for: packages and builds (layer H). */
import { type Exchange, list, nothing, ok, type Reply, type Route, ServiceFailure } from './http.ts';
import { stepsOf } from './job-message.ts';
import { compareVersions } from './matcher.ts';
import { type Build, type Package, PROJECT, urlOf, type World } from './state.ts';

const BUILD = '{project}/_apis/build/builds/{buildId}';
const MANAGERS = ['pat', 'principal'] as const;

export const restRoutes: readonly Route[] = [
  {
    method: 'GET',
    name: 'packages',
    path: '_apis/distributedtask/packages/agent/{platform?}',
    allow: ['pat', 'principal', 'agent'],
    right: 'read',
    answer: packages,
  },
  // Elsewhere than the service, as the real one: a credential has no business there.
  { method: 'GET', name: 'download', path: '/agent/{version}/{filename}', allow: ['anyone'], unversioned: true, answer: download },
  {
    method: 'GET',
    name: 'builds/{buildId}',
    path: BUILD,
    allow: ['pat', 'principal', 'job'],
    right: 'build',
    answer: (x) => ok(buildBody(x.world, buildOf(x))),
  },
  {
    method: 'GET',
    name: 'builds/{buildId}/timeline',
    path: `${BUILD}/timeline/{timelineId?}`,
    allow: MANAGERS,
    right: 'build',
    answer: buildTimeline,
  },
];

/** Newest first. */
function packages(x: Exchange): Reply {
  const platform = x.params.platform ?? x.query.get('platform');
  const top = Number(x.query.get('$top') ?? Number.POSITIVE_INFINITY);
  const fitting = x.world.packages.filter((each) => platform === undefined || each.platform === platform);
  return list(
    fitting
      .toSorted((a, b) => compareVersions(b.version, a.version))
      .slice(0, top)
      .map((each) => packageBody(x.world, each)),
  );
}

function packageBody(world: World, each: Package): Record<string, unknown> {
  const [major, minor, patch] = each.version.split('.').map(Number);
  return {
    type: 'agent',
    platform: each.platform,
    version: { major, minor, patch },
    downloadUrl: `${world.origin}/agent/${each.version}/${each.filename}`,
    hashValue: each.sha256,
    filename: each.filename,
  };
}

function download(x: Exchange): Reply {
  const found = x.world.packages.find((each) => each.version === x.params.version && each.filename === x.params.filename);
  if (found === undefined || found.file === null)
    return { status: 404, type: 'text/html', text: '<html><body>The resource you are looking for has been removed.</body></html>' };
  return { status: 200, type: 'application/octet-stream', file: found.file };
}

function buildOf(x: Exchange): Build {
  const { project } = x.params;
  const build = project === PROJECT.name || project === PROJECT.id ? x.world.builds.get(Number(x.params.buildId)) : undefined;
  if (build === undefined)
    throw new ServiceFailure(404, 'BuildNotFoundException', `The requested build ${x.params.buildId} could not be found.`);
  return build;
}

function buildBody(world: World, build: Build): Record<string, unknown> {
  return {
    id: build.id,
    buildNumber: build.number,
    reason: build.reason,
    sourceBranch: build.branch,
    definition: { ...build.definition, path: '\\', type: 'build', revision: 1, project: PROJECT },
    repository: { id: build.repository, name: build.repository, type: 'GitHub', url: `https://github.com/${build.repository}.git` },
    _links: { web: { href: `${urlOf(world)}/${PROJECT.name}/_build/results?buildId=${build.id}` } },
  };
}

function buildTimeline(x: Exchange): Reply {
  const build = buildOf(x);
  const request = [...x.world.requests.values()].find((one) => one.build === build);
  if (request === undefined) return nothing;
  const { plan } = request;
  const tasks = new Map(stepsOf(request).map(({ id, reference }) => [id, reference] as const));
  // The service knows the task of each step of the pipeline; what an agent adds has none.
  // Of a lost agent the service says that itself.
  const isLost = request.result === 'abandoned';
  const ended = isLost ? { state: 'completed', result: 'failed', issues: [{ type: 'error', message: request.statusMessage }] } : {};
  const records = [...plan.records].map(([id, record]) => ({
    issues: [],
    task: tasks.get(id) ?? null,
    attempt: 1,
    ...record,
    ...(id === request.jobId && ended),
  }));
  return ok({ id: plan.timeline, changeId: plan.changeId, records });
}
