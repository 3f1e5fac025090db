/** The rest that managers and agents ask for: packages, builds, feature flags, telemetry (layer H). */
import { type Exchange, list, nothing, objectBody, ok, type Reply, type Route, ServiceFailure, wrapped } from './http.ts';
import { stepsOf } from './job-message.ts';
import { compareVersions } from './matcher.ts';
import { cancelRequest } from './queue.ts';
import { type Build, type Package, PROJECT, type Request, urlOf, type World } from './state.ts';

const BUILD = '{project}/_apis/build/builds/{buildId}';
const SIGNED_IN = ['pat', 'principal', 'agent', 'job'] as const;
const MANAGERS = ['pat', 'principal'] as const;

export const restRoutes: readonly Route[] = [
  {
    method: 'GET',
    name: 'packages',
    path: '_apis/distributedtask/packages/{type}/{platform?}',
    allow: ['pat', 'principal', 'agent'],
    right: 'read',
    answer: packages,
  },
  {
    method: 'GET',
    name: 'packages/{version}',
    path: '_apis/distributedtask/packages/{type}/{platform}/{version}',
    allow: ['pat', 'principal', 'agent'],
    right: 'read',
    answer: onePackage,
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
  { method: 'PATCH', name: 'builds/{buildId}', path: BUILD, allow: MANAGERS, right: 'build_execute', answer: changeBuild },
  {
    method: 'GET',
    name: 'builds/{buildId}/timeline',
    path: `${BUILD}/timeline/{timelineId?}`,
    allow: MANAGERS,
    right: 'build',
    answer: buildTimeline,
  },
  { method: 'GET', name: 'FeatureFlags', path: '_apis/FeatureFlags/{name}', allow: ['anyone'], unversioned: true, answer: noFlag },
  {
    method: 'POST',
    name: 'customerintelligence',
    path: '_apis/customerintelligence/Events',
    allow: SIGNED_IN,
    unversioned: true,
    answer: () => nothing,
  },
];

function noFlag(x: Exchange): Reply {
  return { status: 404, json: wrapped('MissingFeatureException', `The feature ${x.params.name} does not exist.`) };
}

/** Newest first. */
function packages(x: Exchange): Reply {
  const { type } = x.params;
  const platform = x.params.platform ?? x.query.get('platform');
  const top = Number(x.query.get('$top') ?? Number.POSITIVE_INFINITY);
  const fitting = x.world.packages.filter((each) => each.type === type && (platform === undefined || each.platform === platform));
  return list(
    fitting
      .toSorted((a, b) => compareVersions(b.version, a.version))
      .slice(0, top)
      .map((each) => packageBody(x.world, each)),
  );
}

function onePackage(x: Exchange): Reply {
  const { type, platform, version } = x.params;
  const found = x.world.packages.find((each) => each.type === type && each.platform === platform && each.version === version);
  if (found === undefined)
    throw new ServiceFailure(404, 'PackageNotFoundException', `No package ${type} ${version} for ${platform}.`);
  return ok(packageBody(x.world, found));
}

function packageBody(world: World, each: Package): Record<string, unknown> {
  const [major, minor, patch] = each.version.split('.').map(Number);
  return {
    type: each.type,
    platform: each.platform,
    createdOn: '2026-08-12T00:00:00.000Z',
    version: { major, minor, patch },
    downloadUrl: `${world.origin}/agent/${each.version}/${each.filename}`,
    hashValue: each.sha256 ?? undefined,
    infoUrl: 'https://go.microsoft.com/fwlink/?LinkId=798199',
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

function requestOfBuild(world: World, build: Build): Request | undefined {
  return [...world.requests.values()].find((request) => request.build === build);
}

function buildBody(world: World, build: Build): Record<string, unknown> {
  const request = requestOfBuild(world, build);
  const time = (ms: number | null | undefined) => (ms == null ? undefined : new Date(ms).toISOString());
  const state = request?.result != null ? 'completed' : request?.assignTime != null ? 'inProgress' : 'notStarted';
  const pull = build.reason === 'pullRequest';
  const person = {
    id: 'd4c3a1b2-0000-4000-8000-000000000001',
    displayName: 'A Contributor',
    uniqueName: 'contributor@example.org',
  };
  return {
    id: build.id,
    buildNumber: build.number,
    status: request?.cancelled === true && state !== 'completed' ? 'cancelling' : state,
    result: request?.result === 'abandoned' ? 'failed' : (request?.result ?? undefined),
    queueTime: time(build.queueTime),
    startTime: time(request?.assignTime),
    finishTime: time(request?.finishTime),
    reason: build.reason,
    sourceBranch: build.branch,
    sourceVersion: '0'.repeat(40),
    definition: { ...build.definition, path: '\\', type: 'build', revision: 1, project: PROJECT },
    project: { ...PROJECT, state: 'wellFormed', visibility: 'private' },
    repository: { id: build.repository, name: build.repository, type: 'GitHub', url: `https://github.com/${build.repository}.git` },
    requestedFor: person,
    requestedBy: person,
    triggerInfo: pull
      ? {
          'pr.number': '42',
          'pr.isFork': build.fork ? 'True' : 'False',
          'pr.sourceBranch': build.branch,
          'pr.sender.name': person.displayName,
        }
      : {},
    parameters: pull
      ? JSON.stringify({ 'system.pullRequest.isFork': build.fork ? 'True' : 'False', 'system.pullRequest.pullRequestNumber': '42' })
      : undefined,
    _links: { web: { href: `${urlOf(world)}/${PROJECT.name}/_build/results?buildId=${build.id}` } },
  };
}

function changeBuild(x: Exchange): Reply {
  const build = buildOf(x);
  const request = requestOfBuild(x.world, build);
  if (objectBody(x).status === 'cancelling' && request !== undefined) cancelRequest(x.world, request);
  return ok(buildBody(x.world, build));
}

function buildTimeline(x: Exchange): Reply {
  const request = requestOfBuild(x.world, buildOf(x));
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
