/**
 * What a runner itself speaks with GitHub: its JIT configuration, OAuth, broker, run service and results service. None of it is
 * documented; the calls are those of actions/runner (`BrokerHttpClient`, `RunServiceHttpClient`) and of github-act-runner.
 */
import { constants, createPublicKey, createVerify, type KeyObject, randomUUID } from 'node:crypto';
import type { Answer } from './github-rest.ts';
import type { ActionStep, Conclusion, Job, Listener, Runner, RunnerMessage, World } from './github-world.ts';

/** How long a poll waits for a message, ms. */
export const pollTime = 50_000;
/** Without a poll for so long, a runner is offline. */
const silence = 60_000;

export interface ServiceCall {
  readonly method: string;
  /** After `/_services/`. */
  readonly path: string;
  readonly query: URLSearchParams;
  readonly bearer: string;
  readonly text: string;
  readonly json: Readonly<Record<string, unknown>>;
  readonly signal: AbortSignal | null;
}

export interface RunnerParts {
  readonly world: World;
  readonly origin: string;
  readonly faults: { oldestVersion: string | null; lostAcquire: 'idle' | 'gone' | null };
}

interface Session {
  readonly id: string;
  readonly runner: Runner;
  readonly waiting: RunnerMessage[];
  poll: ((message: RunnerMessage | null) => void) | null;
  seenAt: number;
}

const ok = (body: unknown): Answer => ({ status: 200, body });
const none = (status: number): Answer => ({ status });

/** Null: it is none. */
export function parseJwt(token: string) {
  const [head = '', claims = '', signature = ''] = token.split('.');
  const part = (text: string) => JSON.parse(Buffer.from(text, 'base64url').toString()) as Record<string, unknown>;
  try {
    const { alg } = part(head);
    const isPss = alg === 'PS256';
    const padding = isPss ? constants.RSA_PKCS1_PSS_PADDING : constants.RSA_PKCS1_PADDING;
    const salt = isPss ? { saltLength: constants.RSA_PSS_SALTLEN_AUTO } : {};
    /** Whether the owner of `key` has signed it, with RS256 or PS256. */
    const isOf = (key: KeyObject): boolean =>
      (alg === 'RS256' || isPss) &&
      createVerify('sha256')
        .update(`${head}.${claims}`)
        .verify({ key: createPublicKey(key), padding, ...salt }, Buffer.from(signature, 'base64url'));
    return { alg, claims: part(claims), isOf };
  } catch {
    return null;
  }
}

/** Compares dotted numbers. */
export const isOlder = (one: string, other: string): boolean => one.localeCompare(other, 'en', { numeric: true }) < 0;

const conclusions: Readonly<Record<string, Conclusion>> = {
  succeeded: 'success',
  failed: 'failure',
  canceled: 'cancelled',
  cancelled: 'cancelled',
  skipped: 'skipped',
  succeededwithissues: 'success',
  abandoned: 'failure',
};

export function runnerServices({ world, origin, faults }: RunnerParts) {
  const { clock } = world;
  const services = `${origin}/_services`;
  const tokens = new Map<string, Runner>();
  const sessions = new Map<string, Session>();

  /** The three files that the runner writes to its folder (runner, `Runner.cs`), as one string. */
  const jitConfig = (runner: Runner): string => {
    const key = runner.key.export({ format: 'jwk' }) as Record<string, string>;
    const standard = (name: string) => Buffer.from(key[name] ?? '', 'base64url').toString('base64');
    const [, kind, ...names] = runner.scope.split('/');
    const page = `${origin}/${kind === 'enterprises' ? 'enterprises/' : ''}${names.join('/')}`;
    const rsa = { exponent: 'e', modulus: 'n', d: 'd', p: 'p', q: 'q', dp: 'dp', dq: 'dq', inverseQ: 'qi' };
    const files = {
      '.runner': {
        AgentId: String(runner.id),
        AgentName: runner.name,
        PoolId: String(runner.group),
        PoolName: 'Default',
        DisableUpdate: 'false',
        Ephemeral: 'true',
        UseV2Flow: 'true',
        WorkFolder: runner.workFolder,
        GitHubUrl: page,
        ServerUrl: `${origin}/`,
        ServerUrlV2: `${services}/broker/`,
      },
      '.credentials': {
        Scheme: 'OAuth',
        Data: { ClientId: runner.client, AuthorizationUrl: `${services}/oauth/token`, RequireFipsCryptography: 'True' },
      },
      '.credentials_rsaparams': Object.fromEntries(Object.entries(rsa).map(([name, short]) => [name, standard(short)])),
    };
    const base64 = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64');
    return base64(Object.fromEntries(Object.entries(files).map(([name, value]) => [name, base64(value)])));
  };

  const authorize = ({ text }: ServiceCall): Answer => {
    const assertion = parseJwt(new URLSearchParams(text).get('client_assertion') ?? '');
    const runner = [...world.runners.values()].find(({ client }) => client === assertion?.claims.iss);
    if (runner === undefined || assertion === null || !assertion.isOf(runner.key))
      return { status: 400, body: { error: 'invalid_client' } };
    const token = randomUUID();
    tokens.set(token, runner);
    return ok({ access_token: token, expires_in: 3_000, token_type: 'JWT' });
  };

  const listen = (runner: Runner): Session => {
    const session: Session = { id: randomUUID(), runner, waiting: [], poll: null, seenAt: clock.now() };
    sessions.set(session.id, session);
    const listener: Listener = {
      isListening: () => session.poll !== null,
      isSeen: () => session.poll !== null || clock.now() - session.seenAt < silence,
      keepsJob: () => false,
      hear(message) {
        if (session.poll === null) session.waiting.push(message);
        else session.poll(message);
      },
    };
    runner.listener = listener;
    return session;
  };

  const written = ({ kind, job }: RunnerMessage): Answer => {
    if (kind === 'cancel')
      return ok({ messageId: 2, messageType: 'JobCancellation', body: JSON.stringify({ jobId: job.uuid, timeout: '00:05:00' }) });
    const offer = { id: String(job.id), runner_request_id: job.request, run_service_url: `${services}/run`, billing_owner_id: '1' };
    return ok({ messageId: 1, messageType: 'RunnerJobRequest', body: JSON.stringify({ ...offer, should_acknowledge: true }) });
  };

  const poll = async (session: Session, { query, signal }: ServiceCall): Promise<Answer> => {
    const version = query.get('runnerVersion') ?? '0';
    const { oldestVersion } = faults;
    if (oldestVersion !== null && isOlder(version, oldestVersion)) {
      const errorMessage = `Runner version v${version} is deprecated and cannot receive messages.`;
      const source = 'actions-broker-listener';
      return { status: 403, body: { source, errorKind: 'RunnerVersionTooOld', statusCode: 403, errorMessage } };
    }
    session.runner.version = version;
    const message =
      session.waiting.shift() ??
      (await new Promise<RunnerMessage | null>((resolve) => {
        const done = (message: RunnerMessage | null): void => {
          session.poll = null;
          session.seenAt = clock.now();
          callOff();
          signal?.removeEventListener('abort', left);
          resolve(message);
        };
        const left = (): void => done(null);
        const callOff = clock.after(pollTime, left);
        signal?.addEventListener('abort', left);
        session.poll = done;
        world.dispatch();
      }));
    return message === null ? none(202) : written(message);
  };

  const broker = (call: ServiceCall): Answer | Promise<Answer> => {
    const runner = tokens.get(call.bearer);
    if (runner === undefined) return none(401);
    const what = `${call.method} ${call.path.replace('broker/', '')}`;
    if (what === 'POST session') {
      if (runner.isGone) return none(401);
      if (runner.listener?.isSeen() === true) return { status: 409, body: { message: 'The runner has a session already.' } };
      return ok({ ...call.json, sessionId: listen(runner).id });
    }
    if (what === 'DELETE session') {
      runner.listener = null;
      return none(204);
    }
    const session = sessions.get(call.query.get('sessionId') ?? '');
    if (session === undefined) return none(404);
    return what === 'GET message' ? poll(session, call) : ok({});
  };

  const run = ({ path, json, bearer }: ServiceCall): Answer => {
    if (path === 'run/acquirejob') {
      const job = world.jobs.find(({ request }) => request === json.jobMessageId);
      const isMine = job !== undefined && job.status === 'queued' && job.runner === tokens.get(bearer);
      const lost = faults.lostAcquire;
      if (!isMine || lost !== null) {
        if (isMine && lost === 'gone' && job.runner !== null) world.unregister(job.runner);
        if (isMine && lost === 'gone') world.giveBack(job);
        if (isMine && lost === 'idle') world.cancel(job);
        return { status: 409, body: { message: 'job assignment is invalid' } };
      }
      world.start(job);
      return ok(jobMessage(job, services));
    }
    const job = world.jobs.find(({ uuid, plan }) => uuid === json.jobId && plan === json.planId);
    if (job?.status !== 'in_progress' || bearer !== `job-${job.uuid}`) return { status: 404, body: { message: 'no such job' } };
    if (path === 'run/renewjob') return ok({ lockedUntil: new Date(world.renew(job)).toISOString() });
    const conclusion = conclusions[String(json.conclusion).toLowerCase()];
    if (conclusion === undefined) throw new Error(`The stand-in does not know the conclusion "${json.conclusion}".`);
    world.end(job, conclusion);
    return ok({});
  };

  const results = ({ path, query, json, text }: ServiceCall): Answer => {
    if (path === 'blob') {
      const job = world.jobs.find(({ uuid }) => uuid === query.get('job'));
      if (job !== undefined && query.get('kind') === 'job') job.log += text;
      return none(201);
    }
    if (!path.endsWith('SignedBlobURL')) return ok({ ok: true });
    const kind = path.includes('JobLogs') ? 'job' : 'step';
    const url = `${services}/blob?job=${json.workflow_job_run_backend_id}&kind=${kind}`;
    return ok({ logs_url: url, summary_url: url, blob_storage_type: 'BLOB_STORAGE_TYPE_AZURE', soft_size_limit: '1000000' });
  };

  /** The older address of sessions sends runners on to the broker. github-act-runner asks here first. */
  const legacy = ({ path, bearer, method, json }: ServiceCall): Answer => {
    if (path === '_apis/connectionData') {
      const relativePath = '/_apis/{area}/pools/{poolId}/{resource}/{sessionId}';
      const identifier = '134e239e-2df3-4794-a6f6-24f1f19ec8dc';
      const definition = { serviceType: 'distributedtask', displayName: 'sessions', identifier, relativePath };
      return ok({ locationServiceData: { serviceDefinitions: [definition] } });
    }
    if (tokens.get(bearer)?.isGone !== false) return none(401);
    if (method !== 'POST') return none(204);
    return ok({ ...json, sessionId: randomUUID(), BrokerMigrationMessage: { brokerBaseUrl: `${services}/broker` } });
  };

  /** Null: no such call. */
  const answer = (call: ServiceCall): Answer | Promise<Answer> | null => {
    const { path } = call;
    if (path === 'oauth/token') return authorize(call);
    if (path.startsWith('broker/')) return broker(call);
    if (path.startsWith('run/')) return run(call);
    if (path.startsWith('results/') || path === 'blob') return results(call);
    return path.startsWith('_apis/') ? legacy(call) : null;
  };
  return { jitConfig, answer };
}

/** As much of a `PipelineAgentJobRequest` as steps with a script need. */
function jobMessage(job: Job, services: string) {
  const { run } = job;
  const name = `${run.repository.owner}/${run.repository.name}`;
  const github = {
    event_name: run.event,
    event: {},
    workflow: 'ci',
    repository: name,
    repository_owner: run.repository.owner,
    ref: `refs/heads/${run.branch}`,
    sha: 'a'.repeat(40),
    run_id: String(run.id),
    run_number: '1',
    run_attempt: '1',
    actor: run.actor,
    token: 'unused',
    workspace: '',
    server_url: 'https://github.test',
    api_url: 'https://api.github.test',
    graphql_url: 'https://api.github.test/graphql',
  };
  const endpoint = {
    name: 'SystemVssConnection',
    url: `${services}/run/`,
    authorization: { scheme: 'OAuth', parameters: { AccessToken: `job-${job.uuid}` } },
    // Without the feed's address github-act-runner crashes.
    data: { FeedStreamUrl: `${services.replace(/^http/, 'ws')}/feed`, ResultsServiceUrl: `${services}/results/` },
  };
  return {
    messageType: 'RunnerJobRequest',
    jobId: job.uuid,
    jobDisplayName: job.name,
    jobName: '__default',
    requestId: job.id,
    plan: { scopeIdentifier: randomUUID(), planId: job.plan, planType: 'actions', version: 12 },
    timeline: { id: randomUUID(), changeId: 1 },
    resources: { endpoints: [endpoint] },
    contextData: {
      github: dictionary(github),
      strategy: dictionary({ 'fail-fast': true }),
      matrix: { t: 2 },
      needs: { t: 2 },
      inputs: { t: 2 },
    },
    workspace: {},
    mask: [],
    environmentVariables: [],
    defaults: [],
    fileTable: [run.path],
    billingOwnerId: '1',
    variables: {
      'system.github.token': { value: 'unused', isSecret: true },
      'system.github.job': { value: job.name },
      'system.github.results_endpoint': { value: `${services}/results/` },
    },
    ...(job.container !== undefined && { jobContainer: token(job.container) }),
    ...(job.services !== undefined && { jobServiceContainers: token(job.services) }),
    steps: job.steps.map((step, at) => ({
      id: randomUUID(),
      type: 'action',
      name: `__run_${at}`,
      contextName: `__run_${at}`,
      reference: 'uses' in step ? actionOf(step) : { type: 'script' },
      displayNameToken: `Step ${at + 1}`,
      condition: 'success()',
      inputs: token('uses' in step ? (step.with ?? {}) : { script: step.join('\n') }),
    })),
  };
}

const actionOf = ({ uses }: ActionStep) =>
  uses.startsWith('docker://')
    ? { type: 'containerRegistry', image: uses.slice('docker://'.length) }
    : { type: 'repository', repositoryType: 'self', path: uses };

/** What a workflow says, as the service writes it: type 1 is a list, type 2 a map (runner, `TemplateTokenJsonConverter.cs`). */
const token = (of: unknown): unknown => {
  if (Array.isArray(of)) return { type: 1, seq: of.map(token) };
  if (typeof of !== 'object' || of === null) return of;
  return { type: 2, map: Object.entries(of).map(([Key, value]) => ({ Key, Value: token(value) })) };
};

/** Context data as the service writes it: type 2 is a dictionary. */
const dictionary = (of: Readonly<Record<string, unknown>>): unknown => ({
  t: 2,
  d: Object.entries(of).map(([k, v]) => ({
    k,
    v: typeof v === 'object' && v !== null ? dictionary(v as Record<string, unknown>) : v,
  })),
});
