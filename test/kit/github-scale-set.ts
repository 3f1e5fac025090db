/**
 * Scale sets of the GitHub stand-in: the part of the "Actions service" that GitHub's Go client `actions/scaleset` speaks. GitHub
 * publishes no reference for it; the calls are those of that client and of its users ARC and garm.
 */
import { randomUUID } from 'node:crypto';
import type { Answer } from './github-rest.ts';
import { pollTime, type ServiceCall } from './github-runner.ts';
import type { Job, Runner, World } from './github-world.ts';

export interface ScaleSet {
  readonly id: number;
  readonly name: string;
  readonly scope: string;
  readonly group: number;
  readonly labels: readonly { readonly type: string; readonly name: string }[];
  readonly createdOn: string;
  readonly disableUpdate: boolean;
  session: { readonly id: string; readonly owner: string } | null;
  /** Of its queue; another one after each renewal. */
  queueToken: string;
  readonly messages: { readonly id: number; readonly body: readonly unknown[] }[];
  nextMessage: number;
  /** Ends the poll that waits now. */
  poll: (() => void) | null;
}

export interface ScaleSetParts {
  readonly world: World;
  readonly origin: string;
  readonly faults: { readonly noScaleSets: boolean };
  /** Scope by registration token. */
  readonly registrations: ReadonlyMap<string, string>;
  readonly jitConfig: (runner: Runner) => string;
}

/** How long the service's own token lives, ms (seen live by others). */
const adminTime = 20 * 60_000;

const ok = (body: unknown): Answer => ({ status: 200, body });
const refused = (status: number, exception: string, message: string): Answer => {
  return { status, body: { typeName: `GitHub.Actions.${exception}, GitHub.Actions`, message } };
};

export function scaleSets({ world, origin, faults, registrations, jitConfig }: ScaleSetParts) {
  const { clock } = world;
  const rows: ScaleSet[] = [];
  let nextId = 1;
  /** By token of the service. */
  const admins = new Map<string, { readonly scope: string; readonly until: number }>();
  const services = `${origin}/_services`;

  /** The first call, with a registration token: address and token of the service. */
  const register = (authorization: string, { json }: ServiceCall): Answer => {
    const scope = registrations.get(authorization.replace(/^RemoteAuth /, ''));
    if (scope === undefined || json.runner_event !== 'register') return { status: 401, body: { message: 'Bad credentials' } };
    const until = clock.wall() + adminTime;
    const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const token = [part({ alg: 'none', typ: 'JWT' }), part({ exp: Math.floor(until / 1000), jti: randomUUID() }), ''].join('.');
    admins.set(token, { scope, until });
    return ok({ url: `${services}/tenant/`, token });
  };

  const suits = (set: ScaleSet, { labels, run: { repository } }: Job): boolean => {
    const names = [set.name, ...set.labels.map(({ name }) => name)].map((name) => name.toLowerCase());
    const isInScope = set.scope === `/orgs/${repository.owner}` || set.scope === `/repos/${repository.owner}/${repository.name}`;
    return (isInScope || set.scope.startsWith('/enterprises/')) && labels.every((label) => names.includes(label.toLowerCase()));
  };
  const offersOf = (set: ScaleSet): readonly Job[] =>
    world.jobs.filter((job) => job.set === null && job.status === 'queued' && job.run.held === null && suits(set, job));
  const statistics = (set: ScaleSet) => {
    const runners = [...world.runners.values()].filter((one) => one.set === set.id);
    const mine = world.jobs.filter((job) => job.set === set.id && job.status !== 'completed');
    const free = offersOf(set);
    const busy = runners.filter(({ job }) => job !== null).length;
    return {
      totalAvailableJobs: free.length,
      totalAssignedJobs: mine.length,
      totalAcquiredJobs: mine.filter(({ status }) => status === 'queued').length,
      totalRunningJobs: mine.filter(({ status }) => status === 'in_progress').length,
      totalRegisteredRunners: runners.length,
      totalBusyRunners: busy,
      totalIdleRunners: runners.length - busy,
    };
  };
  const setView = (set: ScaleSet) => ({
    id: set.id,
    name: set.name,
    runnerGroupId: set.group,
    labels: set.labels,
    createdOn: set.createdOn,
    RunnerSetting: { disableUpdate: set.disableUpdate },
    statistics: statistics(set),
    runnerGroupName: world.groups.find(({ id }) => id === set.group)?.name,
    runnerJitConfigUrl: `${services}/tenant/_apis/runtime/runnerscalesets/${set.id}/generatejitconfig`,
  });

  const time = (ms: number | null): string => (ms === null ? '0001-01-01T00:00:00Z' : new Date(ms).toISOString());
  const say = (set: ScaleSet, messageType: string, job: Job, more: Readonly<Record<string, unknown>> = {}): void => {
    const { run } = job;
    const { owner: ownerName, name: repositoryName } = run.repository;
    const about = {
      messageType,
      runnerRequestId: job.id,
      ownerName,
      repositoryName,
      jobId: job.uuid,
      jobDisplayName: job.name,
      jobWorkflowRef: `${ownerName}/${repositoryName}/${run.path}@refs/heads/${run.branch}`,
      workflowRunId: run.id,
      eventName: run.event,
      requestLabels: job.labels,
      queueTime: time(job.queuedAt),
      scaleSetAssignTime: time(job.queuedAt),
      runnerAssignTime: time(job.startedAt),
      finishTime: time(job.completedAt),
      ...more,
    };
    set.messages.push({ id: set.nextMessage, body: [about] });
    set.nextMessage += 1;
    set.poll?.();
  };
  const offer = (set: ScaleSet, job: Job): void => {
    if (suits(set, job)) say(set, 'JobAvailable', job, { acquireJobUrl: `${services}/tenant/acquire` });
  };
  world.watch((what, job) => {
    if (what === 'queued') for (const set of rows) offer(set, job);
    const set = rows.find(({ id }) => id === job.set);
    const runner = { runnerId: job.runner?.id ?? 0, runnerName: job.runner?.name ?? '' };
    if (set !== undefined && what === 'started') say(set, 'JobStarted', job, runner);
    const result = { success: 'succeeded', failure: 'failed', cancelled: 'canceled' }[String(job.conclusion)] ?? job.conclusion;
    if (set !== undefined && what === 'completed') say(set, 'JobCompleted', job, { ...runner, result });
  });

  const sessionView = (set: ScaleSet) => ({
    sessionId: set.session?.id,
    ownerName: set.session?.owner,
    runnerScaleSet: setView(set),
    statistics: statistics(set),
    messageQueueUrl: `${services}/queue/${set.id}?sessionId=${set.session?.id}`,
    messageQueueAccessToken: set.queueToken,
  });
  const ofSession = (set: ScaleSet, id: string | undefined, { method, json }: ServiceCall): Answer => {
    if (method === 'POST') {
      if (set.session !== null)
        return refused(409, 'RunnerScaleSetSessionConflictException', `${set.session.owner} holds a session.`);
      set.session = { id: randomUUID(), owner: String(json.ownerName) };
    } else if (set.session?.id !== id) return refused(404, 'RunnerScaleSetSessionNotFoundException', 'No such session.');
    if (method === 'DELETE') {
      set.session = null;
      set.poll?.();
      return { status: 204 };
    }
    set.queueToken = `queue-${randomUUID()}`;
    return ok(sessionView(set));
  };

  const newRunner = (set: ScaleSet, { json }: ServiceCall): Answer => {
    const name = String(json.name);
    if ([...world.runners.values()].some((one) => one.name === name))
      return refused(409, 'AgentExistsException', `${name} exists.`);
    const { scope, group, id } = set;
    const workFolder = String(json.workFolder ?? '_work');
    const runner = world.register({ name, scope, group, labels: [set.name], workFolder, set: id });
    return ok({ runner: { id: runner.id, name, runnerScaleSetId: id }, encodedJITConfig: jitConfig(runner) });
  };
  const acquire = (set: ScaleSet, ids: readonly number[]): Answer => {
    const won = ids.filter((id) => {
      const job = world.jobs.find((one) => one.id === id && one.status === 'queued' && one.set === null && one.runner === null);
      if (job === undefined) return false;
      job.set = set.id;
      say(set, 'JobAssigned', job);
      return true;
    });
    world.dispatch();
    return ok({ count: won.length, value: won });
  };

  const ofSets = (call: ServiceCall, id: string | undefined, what: string | undefined, session: string | undefined): Answer => {
    const { method, json, query, bearer } = call;
    const scope = admins.get(bearer)?.scope ?? '';
    if (id === undefined && method === 'GET') {
      const found = rows.filter((one) => one.scope === scope && (query.get('name') ?? one.name) === one.name);
      return ok({ count: found.length, value: found.map(setView) });
    }
    if (id === undefined) {
      if (faults.noScaleSets) return refused(403, 'AccessDeniedException', 'Needs the permission Administer.');
      const name = String(json.name);
      if (rows.some((one) => one.name === name && one.scope === scope))
        return refused(409, 'RunnerScaleSetExistsException', `${name} exists.`);
      const start = { session: null, queueToken: '', messages: [], nextMessage: 1, poll: null };
      const labels = (json.labels ?? [{ type: 'System', name }]) as ScaleSet['labels'];
      const disableUpdate = (json.RunnerSetting as { disableUpdate?: boolean } | undefined)?.disableUpdate === true;
      const shape = { id: nextId, name, scope, group: Number(json.runnerGroupId), labels, disableUpdate };
      const set: ScaleSet = { ...shape, createdOn: time(clock.wall()), ...start };
      nextId += 1;
      rows.push(set);
      for (const job of offersOf(set)) offer(set, job);
      return ok(setView(set));
    }
    const set = rows.find((one) => one.id === Number(id));
    if (set === undefined) return refused(404, 'RunnerScaleSetNotFoundException', `No scale set ${id}.`);
    if (what === 'sessions') return ofSession(set, session, call);
    if (what === 'generatejitconfig') return newRunner(set, call);
    if (what === 'acquirablejobs') {
      const jobs = offersOf(set);
      return ok({ count: jobs.length, value: jobs.map((job) => ({ runnerRequestId: job.id, requestLabels: job.labels })) });
    }
    if (method === 'DELETE') {
      rows.splice(rows.indexOf(set), 1);
      return { status: 204 };
    }
    return ok(setView(set));
  };

  const agents = ({ method, query }: ServiceCall, id: string | undefined): Answer => {
    const view = (runner: Runner) => ({ id: runner.id, name: runner.name, runnerScaleSetId: runner.set ?? 0 });
    const all = [...world.runners.values()];
    if (id === undefined) {
      const found = all.filter(({ name }) => name === query.get('agentName'));
      return ok({ count: found.length, value: found.map(view) });
    }
    const runner = world.runners.get(Number(id));
    if (runner === undefined) return refused(404, 'AgentNotFoundException', `No runner ${id}.`);
    if (method !== 'DELETE') return ok(view(runner));
    if (runner.job !== null) return refused(400, 'JobStillRunningException', `${runner.name} runs a job.`);
    world.unregister(runner);
    return { status: 204 };
  };

  /** A message that is not deleted comes again, unless `lastMessageId` says that it is known. */
  const next = (set: ScaleSet, query: URLSearchParams): Answer | null => {
    const message = set.messages.find(({ id }) => id > Number(query.get('lastMessageId') ?? 0));
    if (message === undefined) return null;
    const body = JSON.stringify(message.body);
    return ok({ messageId: message.id, messageType: 'RunnerScaleSetJobMessages', body, statistics: statistics(set) });
  };
  const queue = async (set: ScaleSet, { query, signal }: ServiceCall): Promise<Answer> => {
    const known = next(set, query);
    if (known !== null) return known;
    await new Promise<void>((resolve) => {
      const done = (): void => {
        set.poll = null;
        callOff();
        signal?.removeEventListener('abort', done);
        resolve();
      };
      const callOff = clock.after(pollTime, done);
      signal?.addEventListener('abort', done);
      set.poll = done;
    });
    return next(set, query) ?? { status: 202 };
  };

  /** Null: no such call. */
  const answer = (call: ServiceCall): Answer | Promise<Answer> | null => {
    const { path, bearer, method } = call;
    const [, queueId, messageId] = /^queue\/(\d+)(?:\/(\d+))?$/.exec(path) ?? [];
    if (queueId !== undefined) {
      const set = rows.find(({ id }) => id === Number(queueId));
      if (set === undefined || bearer !== set.queueToken || set.session === null)
        return { status: 401, body: { message: 'expired' } };
      if (method === 'GET') return queue(set, call);
      const at = set.messages.findIndex(({ id }) => id === Number(messageId));
      if (at !== -1) set.messages.splice(at, 1);
      return { status: 204 };
    }
    if (!path.startsWith('tenant/')) return null;
    const [, setId, what, session] = /runnerscalesets(?:\/(\d+))?(?:\/(\w+))?(?:\/([\w-]+))?$/.exec(path) ?? [];
    if (what === 'acquirejobs') {
      const set = rows.find(({ id }) => id === Number(setId));
      if (set === undefined || bearer !== set.queueToken) return { status: 401, body: { message: 'expired' } };
      return acquire(set, JSON.parse(call.text) as number[]);
    }
    const admin = admins.get(bearer);
    if (admin === undefined || admin.until <= clock.wall()) return { status: 401, body: { message: 'expired' } };
    if (path.includes('/runnergroups')) {
      const name = call.query.get('groupName')?.toLowerCase();
      const found = world.groups.filter((one) => one.name.toLowerCase() === (name ?? one.name.toLowerCase()));
      return ok({ count: found.length, value: found.map(({ id, name }) => ({ id, name, size: 0, isDefaultGroup: id === 1 })) });
    }
    if (path.includes('/runnerscalesets')) return ofSets(call, setId, what, session);
    return path.includes('/pools/0/agents') ? agents(call, /agents\/(\d+)$/.exec(path)?.[1]) : null;
  };
  return { rows, register, answer };
}
