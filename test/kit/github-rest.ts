/** The documented half of the GitHub stand-in: REST calls by their name in GitHub's OpenAPI description. */
import { filled } from './github-schema.ts';
import type { Group, Job, Repository, Run, Runner, World } from './github-world.ts';

export interface Answer {
  readonly status: number;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface RestCall {
  /** Values of the path's `{names}`. */
  readonly path: Readonly<Record<string, string>>;
  readonly query: URLSearchParams;
  readonly body: Readonly<Record<string, unknown>>;
  /** Address of this call without its query, for links. */
  readonly url: string;
  readonly credential: Credential;
}

export interface Credential {
  readonly kind: 'installation' | 'user';
  /** Null: all there are. */
  readonly permissions: Readonly<Record<string, string>> | null;
  /** Whose things it can see at all; null: everybody's. */
  readonly account: string | null;
  /** Names as `acme/demo`; null: all of the account. */
  readonly repositories: readonly string[] | null;
}

export interface RestParts {
  readonly world: World;
  /** Base of links to people's pages. */
  readonly site: string;
  readonly enterprise: string;
  readonly faults: { readonly hiddenFor: number; readonly busyStays: boolean; readonly offlineWhileBusy: boolean };
  readonly jitConfig: (runner: Runner) => string;
  readonly registrationToken: (scope: string) => string;
}

export interface RestOperation {
  /** `administration: write` and the like; null: any credential will do. */
  readonly needs: string | null;
  readonly answer: (call: RestCall) => Answer;
}

const docs = 'https://docs.github.com/rest';
export const refusal = (status: number, message: string, more: Readonly<Record<string, string>> = {}): Answer => ({
  status,
  headers: more,
  body: { message, documentation_url: docs, ...(status !== 422 && { status: String(status) }) },
});
export const absent = (): Answer => refusal(404, 'Not Found');
const ok = (body: unknown): Answer => ({ status: 200, body });
const packages = ['x64', 'arm64'].map((architecture) => {
  const filename = `actions-runner-linux-${architecture}-2.336.0.tar.gz`;
  const download_url = `https://github.com/actions/runner/releases/download/v2.336.0/${filename}`;
  return { os: 'linux', architecture, filename, download_url, sha256_checksum: 'ab'.repeat(32) };
});
const time = (ms: number): string => new Date(ms).toISOString().replace(/\.\d+Z$/, 'Z');

/** `sees`: whether a credential can see what the path of a call names; GitHub answers 404 before it looks at permissions. */
export function restOperations(parts: RestParts): {
  readonly operations: Readonly<Record<string, RestOperation>>;
  readonly sees: (call: RestCall) => boolean;
  /** What GitHub sends about a job. */
  readonly jobEvent: (job: Job, action: string) => Readonly<Record<string, unknown>>;
} {
  const { world, site, faults } = parts;
  const { clock } = world;

  const paged = (call: RestCall, key: string, rows: readonly unknown[]): Answer => {
    const size = Math.min(Number(call.query.get('per_page') ?? 30), 100);
    const page = Number(call.query.get('page') ?? 1);
    const last = Math.max(1, Math.ceil(rows.length / size));
    const link = (to: number, rel: string) => {
      const query = new URLSearchParams(call.query);
      query.set('page', String(to));
      return `<${call.url}?${query}>; rel="${rel}"`;
    };
    const back = page > 1 ? [link(page - 1, 'prev'), link(1, 'first')] : [];
    const links = [...back, ...(page < last ? [link(page + 1, 'next'), link(last, 'last')] : [])].join(', ');
    const shown = rows.slice((page - 1) * size, page * size);
    const body = key === '' ? shown : { total_count: rows.length, [key]: shown };
    return { ...ok(body), ...(links !== '' && { headers: { link: links } }) };
  };

  const user = (login: string) => filled('simple-user', { login, type: 'User' });
  const repositoryView = (row: Repository, schema: string) => {
    const visibility = row.isPrivate ? 'private' : 'public';
    const full = `${row.owner}/${row.name}`;
    const names = { id: row.id, name: row.name, full_name: full, html_url: `${site}/${full}` };
    const owner = filled('simple-user', { login: row.owner, type: world.people.has(row.owner) ? 'User' : 'Organization' });
    return filled(schema, { ...names, owner, private: row.isPrivate, visibility, archived: row.isArchived });
  };
  const headOf = (run: Run) => {
    const [owner = '', name = ''] = run.head.split('/');
    const fork = { ...run.repository, id: run.repository.id + 5_000, owner, name };
    return { ...repositoryView(run.isFork ? fork : run.repository, 'minimal-repository'), fork: run.isFork };
  };
  const jobsOf = (run: Run): readonly Job[] => world.jobs.filter((job) => job.run === run);
  /** A run is queued while any of its jobs is (seen live by others). */
  const statusOf = (run: Run): readonly [string, string | null] => {
    if (run.held === 'action_required') return ['completed', 'action_required'];
    if (run.held !== null) return [run.held, null];
    const jobs = jobsOf(run);
    if (jobs.some(({ status }) => status === 'queued')) return ['queued', null];
    if (jobs.some(({ status }) => status === 'in_progress')) return ['in_progress', null];
    return ['completed', jobs.find(({ conclusion }) => conclusion !== 'success')?.conclusion ?? 'success'];
  };
  const runView = (run: Run) => {
    const [status, conclusion] = statusOf(run);
    const times = { created_at: time(run.createdAt), updated_at: time(clock.wall()) };
    const page = `${site}/${run.repository.owner}/${run.repository.name}/actions/runs/${run.id}`;
    const people = { actor: user(run.actor), triggering_actor: user(run.actor) };
    const code = { head_branch: run.branch, head_sha: 'a'.repeat(40), path: run.path, display_title: 'A change', name: 'ci' };
    const repository = repositoryView(run.repository, 'minimal-repository');
    const attempt = Math.max(1, ...jobsOf(run).map((job) => job.attempt));
    return filled('workflow-run', {
      id: run.id,
      event: run.event,
      status,
      conclusion,
      html_url: page,
      run_number: run.id - 6_999,
      run_attempt: attempt,
      ...code,
      ...people,
      ...times,
      repository,
      head_repository: headOf(run),
      pull_requests: [],
    });
  };
  const jobView = (job: Job) => {
    const { run, ranOn } = job;
    const page = `${site}/${run.repository.owner}/${run.repository.name}/actions/runs/${run.id}/job/${job.id}`;
    const times = {
      created_at: time(job.queuedAt),
      started_at: time(job.startedAt ?? job.queuedAt),
      completed_at: job.completedAt === null ? null : time(job.completedAt),
    };
    const names = { name: job.name, workflow_name: 'ci', head_branch: run.branch, head_sha: 'a'.repeat(40) };
    const group = world.groups.find(({ id }) => id === ranOn?.group);
    const state = { status: run.held === null ? job.status : 'waiting', conclusion: job.conclusion, labels: [...job.labels] };
    return filled('job', {
      id: job.id,
      run_id: run.id,
      run_attempt: job.attempt,
      html_url: page,
      ...names,
      ...state,
      ...times,
      steps: stepsOf(job),
      runner_id: ranOn?.id ?? null,
      runner_name: ranOn?.name ?? null,
      runner_group_id: group?.id ?? null,
      runner_group_name: group?.name ?? null,
    });
  };

  /** Of a job that is over: the runner's own, and those of its workflow. Names: actions/runner, `JobExtension.cs`. */
  const stepsOf = (job: Job) => {
    if (job.status !== 'completed' || job.ranOn === null) return [];
    const own = job.steps.map((_, at) => `Step ${at + 1}`);
    const before = job.failedStep === null || own.includes(job.failedStep) ? [] : [job.failedStep];
    let isOver = false;
    return ['Set up job', ...before, ...own, 'Complete job'].map((name, at) => {
      const isFailed = name === job.failedStep;
      const conclusion = isFailed ? 'failure' : isOver && name !== 'Complete job' ? 'skipped' : 'success';
      isOver ||= isFailed;
      return { name, number: at + 1, status: 'completed', conclusion, started_at: null, completed_at: null };
    });
  };

  const runnerView = (runner: Runner) => {
    const isBusy = runner.job !== null;
    const isOnline = runner.listener?.isSeen() === true && !(isBusy && faults.offlineWhileBusy);
    // Lower-cased, and not in the order sent (seen live by others). Nothing is added.
    const labels = runner.labels.map((name, at) => ({ id: at + 1, name, type: 'custom' })).reverse();
    return {
      id: runner.id,
      name: runner.name,
      runner_group_id: runner.group,
      os: runner.version === null ? 'unknown' : 'linux',
      status: isOnline ? 'online' : 'offline',
      busy: isBusy,
      ephemeral: true,
      version: runner.version,
      labels,
    };
  };
  const groupView = (group: Group, isEnterprise: boolean) => ({
    id: group.id,
    name: group.name,
    visibility: group.visibility,
    default: group.id === 1,
    runners_url: `${site}/unused`,
    ...(!isEnterprise && { inherited: false }),
    allows_public_repositories: group.allowsPublic,
    workflow_restrictions_read_only: false,
    restricted_to_workflows: group.workflows !== null,
    selected_workflows: group.workflows ?? [],
  });

  const repositoryOf = ({ path, credential }: RestCall): Repository | null => {
    const row = world.repositories.get(`${path.owner}/${path.repo}`.toLowerCase());
    if (row === undefined || (credential.account !== null && credential.account !== row.owner)) return null;
    const isMine = credential.repositories === null || credential.repositories.includes(`${row.owner}/${row.name}`);
    return isMine ? row : null;
  };
  /** Null: the credential does not see it. */
  const scopeOf = (call: RestCall): string | null => {
    const { org, enterprise } = call.path;
    if (enterprise !== undefined) return enterprise === parts.enterprise ? `/enterprises/${enterprise}` : null;
    const repository = org === undefined ? repositoryOf(call) : null;
    if (org === undefined) return repository === null ? null : `/repos/${repository.owner}/${repository.name}`;
    const isKnown = [...world.repositories.values()].some(({ owner }) => owner === org) && !world.people.has(org);
    return isKnown && (call.credential.account ?? org) === org ? `/orgs/${org}` : null;
  };
  const inScope = (answer: (scope: string, call: RestCall) => Answer) => (call: RestCall) => {
    const scope = scopeOf(call);
    return scope === null ? absent() : answer(scope, call);
  };
  const ofRepository = (answer: (repository: Repository, call: RestCall) => Answer) => (call: RestCall) => {
    const repository = repositoryOf(call);
    return repository === null ? absent() : answer(repository, call);
  };
  const withRunner = (answer: (runner: Runner) => Answer) =>
    inScope((scope, { path }) => {
      const runner = world.runners.get(Number(path.runner_id));
      return runner?.scope === scope ? answer(runner) : absent();
    });

  const generate = inScope((scope, { body }) => {
    const { name, runner_group_id: group, labels, work_folder: workFolder = '_work' } = body;
    const hasLabels =
      Array.isArray(labels) && labels.length > 0 && labels.length <= 100 && labels.every((one) => typeof one === 'string');
    if (typeof name !== 'string' || name === '' || !Number.isInteger(group) || !hasLabels)
      return refusal(422, 'Invalid request.\n\n"runner_group_id" and "labels" weren\'t supplied.');
    const found = world.groups.find(({ id }) => id === group);
    if (found === undefined || (scope.startsWith('/repos/') && found.id !== 1)) return absent();
    if (found.isHosted) return refusal(403, 'Runner group may not be used for self-hosted runners');
    const isTaken = [...world.runners.values()].some((one) => one.scope === scope && one.name.toLowerCase() === name.toLowerCase());
    if (isTaken) return refusal(409, 'Already exists - A runner with the name already exists.');
    const lower = [...new Set(labels.map((one) => String(one).toLowerCase()))];
    const shape = { name, scope, group: found.id, labels: lower, workFolder: String(workFolder), set: null };
    const runner = world.register(shape);
    return { status: 201, body: { runner: runnerView(runner), encoded_jit_config: parts.jitConfig(runner) } };
  });
  const list = inScope((scope, call) => {
    const name = call.query.get('name')?.toLowerCase() ?? '';
    // Whether the filter wants the whole name is not documented, so who calls has to compare.
    const rows = [...world.runners.values()].filter((one) => one.scope === scope && one.name.toLowerCase().includes(name));
    return paged(call, 'runners', rows.filter(({ createdAt }) => clock.now() - createdAt >= faults.hiddenFor).map(runnerView));
  });
  const remove = withRunner((runner) => {
    if (runner.job !== null || faults.busyStays)
      return refusal(422, `Bad request - Runner "${runner.name}" is still running a job`);
    world.unregister(runner);
    return { status: 204 };
  });
  const token = inScope((scope) => {
    const body = { token: parts.registrationToken(scope), expires_at: time(clock.wall() + 3_600_000) };
    return { status: 201, body };
  });

  const runnerCalls = (scope: string, permission: string): Record<string, RestOperation> => ({
    [`GET ${scope}/actions/runners`]: { needs: `${permission}=read`, answer: list },
    [`POST ${scope}/actions/runners/generate-jitconfig`]: { needs: `${permission}=write`, answer: generate },
    [`POST ${scope}/actions/runners/registration-token`]: { needs: `${permission}=write`, answer: token },
    [`GET ${scope}/actions/runners/downloads`]: { needs: `${permission}=read`, answer: inScope(() => ok(packages)) },
    [`GET ${scope}/actions/runners/{runner_id}`]: { needs: `${permission}=read`, answer: withRunner((one) => ok(runnerView(one))) },
    [`DELETE ${scope}/actions/runners/{runner_id}`]: { needs: `${permission}=write`, answer: remove },
  });
  const groupCalls = (scope: string, permission: string): Record<string, RestOperation> => {
    const view = (group: Group) => groupView(group, scope.includes('enterprise'));
    const one = inScope((_, { path }) => {
      const group = world.groups.find(({ id }) => id === Number(path.runner_group_id));
      return group === undefined ? absent() : ok(view(group));
    });
    const all = inScope((_, call) => paged(call, 'runner_groups', world.groups.map(view)));
    return {
      [`GET ${scope}/actions/runner-groups`]: { needs: `${permission}=read`, answer: all },
      [`GET ${scope}/actions/runner-groups/{runner_group_id}`]: { needs: `${permission}=read`, answer: one },
    };
  };

  const repo = '/repos/{owner}/{repo}';
  const approval = '/actions/permissions/fork-pr-contributor-approval';
  const listed = ofRepository((repository, call) => {
    const { query } = call;
    const isMeant = (run: Run): boolean =>
      run.repository === repository &&
      (!query.has('status') || statusOf(run).includes(query.get('status'))) &&
      (query.get('event') ?? run.event) === run.event;
    return paged(call, 'workflow_runs', world.runs.filter(isMeant).toReversed().map(runView));
  });
  const withRun = (answer: (run: Run, call: RestCall) => Answer) =>
    ofRepository((repository, call) => {
      const run = world.runs.find((one) => one.id === Number(call.path.run_id) && one.repository === repository);
      return run === undefined ? absent() : answer(run, call);
    });
  const oneJob = ofRepository((repository, { path }) => {
    const job = world.jobs.find((one) => one.id === Number(path.job_id) && one.run.repository === repository);
    return job === undefined ? absent() : ok(jobView(job));
  });
  const jobsOfRun = withRun((run, call) => {
    const all = jobsOf(run);
    // A job that ran again is another job of the same name; only the newest is the latest.
    const isLatest = (job: Job) => !all.some(({ name, attempt }) => name === job.name && attempt > job.attempt);
    return paged(call, 'jobs', (call.query.get('filter') === 'all' ? all : all.filter(isLatest)).map(jobView));
  });
  const installed = (call: RestCall): Answer => {
    const { account, repositories } = call.credential;
    const isMine = (row: Repository) =>
      row.owner === (account ?? row.owner) && (repositories?.includes(`${row.owner}/${row.name}`) ?? true);
    const rows = [...world.repositories.values()].filter(isMine).map((row) => repositoryView(row, 'repository'));
    return paged(call, 'repositories', rows);
  };
  const ofOrganisation = inScope((_, call) => {
    const rows = [...world.repositories.values()].filter(({ owner }) => owner === call.path.org);
    return paged(
      call,
      '',
      rows.map((row) => repositoryView(row, 'minimal-repository')),
    );
  });

  const operations = {
    ...runnerCalls(repo, 'administration'),
    ...runnerCalls('/orgs/{org}', 'organization_self_hosted_runners'),
    ...runnerCalls('/enterprises/{enterprise}', 'enterprise'),
    ...groupCalls('/orgs/{org}', 'organization_self_hosted_runners'),
    ...groupCalls('/enterprises/{enterprise}', 'enterprise'),
    [`GET ${repo}`]: { needs: null, answer: ofRepository((row) => ok(repositoryView(row, 'full-repository'))) },
    [`GET ${repo}/actions/runs`]: { needs: 'actions=read', answer: listed },
    [`GET ${repo}/actions/runs/{run_id}`]: { needs: 'actions=read', answer: withRun((run) => ok(runView(run))) },
    [`GET ${repo}/actions/runs/{run_id}/jobs`]: { needs: 'actions=read', answer: jobsOfRun },
    [`GET ${repo}/actions/jobs/{job_id}`]: { needs: 'actions=read', answer: oneJob },
    [`GET ${repo}${approval}`]: {
      needs: 'administration=read',
      answer: ofRepository((row) => ok({ approval_policy: row.approval })),
    },
    [`GET /orgs/{org}${approval}`]: {
      needs: 'organization_administration=read',
      answer: inScope(() => ok({ approval_policy: 'first_time_contributors' })),
    },
    'GET /orgs/{org}/repos': { needs: null, answer: ofOrganisation },
    'GET /installation/repositories': { needs: null, answer: installed },
    'GET /meta': { needs: null, answer: () => ok({ verifiable_password_authentication: false, actions: ['192.0.2.0/24'] }) },
  };
  const sees = (call: RestCall): boolean => {
    const { owner, org, enterprise } = call.path;
    return [owner, org, enterprise].every((one) => one === undefined) || scopeOf(call) !== null;
  };
  const jobEvent = (job: Job, action: string) => {
    const { owner, repository } = { owner: job.run.repository.owner, repository: job.run.repository };
    const name = `webhook-workflow-job-${action.replace('_', '-')}`;
    const isPerson = world.people.has(owner);
    const { check_run_url, run_url, node_id, ...seen } = jobView(job);
    return filled(name, {
      action,
      workflow_job: { ...seen, check_run_url, run_url, node_id, status: action },
      repository: repositoryView(repository, 'repository-webhooks'),
      sender: user(job.run.actor),
      ...(!isPerson && { organization: filled('organization-simple-webhooks', { login: owner }) }),
    });
  };
  return { operations, sees, jobEvent };
}
