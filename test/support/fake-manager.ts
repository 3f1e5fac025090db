/** A manager in memory, for tests of the API and the commands: its jobs are plain child processes. */
import { type ChildProcess, spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { PassThrough, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { OnejobError } from '../../src/base/errors.ts';
import { type Changes, createChanges, type Kind, type Subject } from '../../src/contract/changes.ts';
import type { JobRequest } from '../../src/contract/job.ts';
import { pagePrefix } from '../../src/contract/job-pages.ts';
import type { Events, LogPiece, Manager } from '../../src/contract/manager.ts';
import type {
  DeviceView,
  Event,
  ForgottenView,
  JobView,
  ProofView,
  ResumeView,
  StatusView,
  UseView,
} from '../../src/contract/schema.ts';
import { lastLines } from '../../src/logs/select.ts';
import { notHere } from '../../src/manager/services/service-jobs.ts';

interface FakeJob {
  view: JobView;
  readonly request: JobRequest;
  readonly pieces: LogPiece[];
  readonly changed: EventEmitter;
  child: ChildProcess | null;
  cancelled: boolean;
}

export interface FakeManager extends Manager {
  changes: Changes & Events;
  readonly workspaces: Map<string, Buffer>;
  readonly calls: string[];
  /** What a resume answers. */
  held: ResumeView['held'];
  /** Whether a resume ends anything. */
  resumed: boolean;
  /** Jobs wait while it is false. */
  open: boolean;
  readonly holds: () => number;
  /** Emits `idle` when the last hold and job are gone, and `down`. */
  readonly events: EventEmitter;
  statusOverride: Partial<StatusView>;
  deviceViews: DeviceView[];
  /** Samples by device. */
  readonly uses: Map<string, UseView[]>;
  proofViews: ProofView[];
  /** Jobs of other CI services. */
  elsewhere: JobView[];
  /** What agents logged themselves, by agent or job. */
  readonly ownLogs: Map<string, LogPiece[]>;
  /** What agents have said, by their ids. */
  readonly agentOutput: Map<string, string>;
  /** What comes of forgetting. */
  forgottenViews: ForgottenView[];
  artifactsOf: (id: string) => Buffer | null;
  /** Holds an ended job. */
  holdFailed(id: string): void;
  /** Ends every child. */
  end(): Promise<void>;
  /** Starts the jobs that wait. */
  startWaiting(): void;
}

export function createFakeManager(options: { temporary?: boolean } = {}): FakeManager {
  const jobs = new Map<string, FakeJob>();
  const events = new EventEmitter();
  const changes = createChanges();
  let holds = 0;
  let count = 0;

  const known = (id: string): FakeJob => {
    const job = jobs.get(id);
    if (job === undefined) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`);
    return job;
  };
  const update = (job: FakeJob, change: Partial<JobView>) => {
    job.view = { ...job.view, ...change };
    job.changed.emit('change');
    changes.mark(`job ${job.view.id}`);
    checkIdle();
  };
  const checkIdle = () => {
    if (holds === 0 && [...jobs.values()].every((job) => job.view.state === 'done')) events.emit('idle');
  };
  const start = (job: FakeJob) => {
    const [program = '', ...args] = job.view.command;
    const child = spawn(program, args, {
      env: { ...process.env, ...job.request.env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    job.child = child;
    update(job, { state: 'running', startedAt: Date.now(), agent: `agent-${job.view.id}` });
    for (const stream of ['stdout', 'stderr'] as const) {
      child[stream]?.on('data', (bytes: Buffer) => {
        job.pieces.push({ stream, bytes });
        job.changed.emit('change');
      });
    }
    child.once('error', () => update(job, { state: 'done', result: { kind: 'code', code: 127 }, endedAt: Date.now() }));
    child.once('close', (code, signal) => {
      const result = job.cancelled
        ? ({ kind: 'cancelled' } as const)
        : signal !== null
          ? ({ kind: 'signal', signal } as const)
          : ({ kind: 'code', code: code ?? 0 } as const);
      const artifacts = manager.artifactsOf(job.view.id) === null ? [] : ['some'];
      update(job, { state: 'done', result, endedAt: Date.now(), artifacts });
    });
  };

  const manager: FakeManager = {
    workspaces: new Map(),
    calls: [],
    held: [],
    resumed: true,
    open: true,
    events,
    changes: Object.assign(changes, {
      view(subject: Subject): Event {
        const [kind, name] = subject.split(' ') as [Kind, string];
        const job = kind === 'job' ? manager.job(name) : null;
        if (job !== null) return ['job', job];
        return kind === 'slot' ? ['slot', { pool: name, key: name, slot: null }] : ['gone', { what: 'pool', name }];
      },
    }),
    statusOverride: {},
    deviceViews: [],
    uses: new Map(),
    proofViews: [],
    elsewhere: [],
    ownLogs: new Map(),
    agentOutput: new Map(),
    forgottenViews: [],
    artifactsOf: () => null,
    holds: () => holds,
    isStopping: () => manager.statusOverride.stopping ?? false,
    status: async () => ({
      version: '0.0.0',
      pid: process.pid,
      owner: 'fake',
      config: null,
      configChanged: null,
      stateDir: '/nowhere',
      temporary: options.temporary ?? false,
      stopping: false,
      runtimeReason: 'runtime fake: there is no other',
      weaker: null,
      problems: [],
      missing: [],
      quarantined: [],
      pools: [
        {
          name: 'default',
          service: 'own',
          runtime: 'fake',
          agents: 1,
          waiting: null,
          slots: [],
          devices: null,
          paused: [],
          draining: false,
          leaving: false,
          backoff: null,
          notes: ['runtime fake: there is no other'],
        },
      ],
      ...manager.statusOverride,
    }),
    plan: () => [{ slot: 'default/1', intent: 'fill', because: 'a standby is wanted' }],
    doctor: async () => [
      { level: 'ok', subject: 'state', message: 'writable', hint: null },
      { level: 'error', subject: 'docker', message: 'not reachable', hint: 'start it' },
    ],
    verify(request) {
      manager.calls.push('verify');
      if (request.pool === null || request.pool === 'default') return;
      throw new OnejobError('E_API_REQUEST', `There is no pool ${request.pool}.`, { hint: 'Pools: default.' });
    },
    submit(request) {
      count += 1;
      const id = `j${count}`;
      if (request.pool !== null && request.pool !== 'default') {
        throw new OnejobError('E_API_REQUEST', `There is no pool ${request.pool}.`, { hint: 'Pools: default.' });
      }
      const view: JobView = {
        id,
        service: 'own',
        pool: 'default',
        command: request.command,
        name: request.name,
        user: request.user,
        about: null,
        state: 'queued',
        priority: request.priority,
        attempt: 0,
        agent: null,
        result: null,
        reason: manager.open ? null : 'the gates are closed',
        cold: false,
        artifacts: [],
        submittedAt: Date.now(),
        startedAt: null,
        endedAt: null,
      };
      const job: FakeJob = {
        view,
        request,
        pieces: [],
        changed: new EventEmitter().setMaxListeners(0),
        child: null,
        cancelled: false,
      };
      jobs.set(id, job);
      if (manager.open) start(job);
      return job.view;
    },
    startWaiting() {
      manager.open = true;
      for (const job of jobs.values()) if (job.view.state === 'queued') start(job);
    },
    submitArray: () => [],
    arrayJobs: () => [],
    cancelArray: () => [],
    endedJobs: () => ({ jobs: [], next: null }),
    history: () => [],
    jobs({ all, pool, limit = 1_000, before }) {
      const found = [...[...jobs.values()].map((job) => job.view), ...manager.elsewhere].filter(
        (view) => (all || view.state !== 'done') && (pool === null || view.pool === pool),
      );
      const end = before === undefined ? found.length : Number(before.slice(pagePrefix.length));
      const start = Math.max(0, end - limit);
      return { jobs: found.slice(start, end), next: start === 0 ? null : `${pagePrefix}${start}` };
    },
    job: (id) => jobs.get(id)?.view ?? manager.elsewhere.find((job) => job.id === id) ?? null,
    async settled(id, signal) {
      const job = known(id);
      while (job.view.state !== 'done') await once(job.changed, 'change', { signal });
      return job.view;
    },
    caches: async () => [
      ...[
        {
          kind: 'named' as const,
          of: 'gpu',
          name: 'depot',
          agent: 'gpu.1',
          project: null,
          trusted: true,
          bytes: 2 ** 21,
          usedAt: Date.now(),
          inUse: true,
        },
        {
          kind: 'service' as const,
          of: 'lab',
          name: 'npm',
          agent: null,
          project: 'acme/app',
          trusted: false,
          bytes: 2 ** 20,
          usedAt: Date.now() - 7_200_000,
          inUse: false,
        },
      ],
    ],
    async clearCaches({ dryRun, name }) {
      return { caches: 1, bytes: 2 ** 20, inUse: name === 'depot' ? 1 : 0, dryRun };
    },
    async pruneJobs({ olderThan, dryRun }) {
      const over = manager
        .jobs({ all: true, pool: null })
        .jobs.filter(({ endedAt }) => endedAt !== null && endedAt <= Date.now() - olderThan);
      return { jobs: over.length, agents: over.length, bytes: 3 * 2 ** 20, dryRun };
    },
    cancel(id, { onlyWaiting = false } = {}) {
      const other = manager.elsewhere.find((job) => job.id === id);
      if (other !== undefined) throw notHere(other);
      const job = known(id);
      if (onlyWaiting && job.view.state !== 'queued') return job.view;
      job.cancelled = true;
      if (job.child?.pid !== undefined && job.view.state !== 'done') process.kill(-job.child.pid, 'SIGTERM');
      else if (job.view.state === 'queued') update(job, { state: 'done', result: { kind: 'cancelled' }, endedAt: Date.now() });
      return job.view;
    },
    move(id, pool) {
      const job = known(id);
      if (job.view.state !== 'queued') throw new OnejobError('E_JOB_REQUEST', `Cannot move job ${id}: it has begun.`);
      update(job, { pool });
      return job.view;
    },
    holdFailed: (id) => update(known(id), { held: { until: Date.now() + 60_000 } }),
    checkShell(id) {
      if (known(id).view.held == null) throw new OnejobError('E_NOT_HELD', `Job ${id} is not held.`);
    },
    async shell(_, start, signal) {
      const [program = 'sh', ...args] = start.command ?? [];
      const child = spawn(program, args, { stdio: 'pipe', env: { ...process.env, SIZE: JSON.stringify(start.terminal) } });
      signal.addEventListener('abort', () => child.kill('SIGKILL'));
      const ended = once(child, 'close').then(([code]) => {
        signal.throwIfAborted();
        return typeof code === 'number' ? code : 137;
      });
      ended.catch(() => {});
      // Node throws away what nobody reads yet once the process has ended.
      const stderr = child.stderr.pipe(new PassThrough());
      async function* output() {
        for await (const bytes of child.stdout) yield { stream: 'stdout' as const, bytes: bytes as Uint8Array };
        for await (const bytes of stderr) yield { stream: 'stderr' as const, bytes: bytes as Uint8Array };
      }
      return {
        stdin: child.stdin,
        output: output(),
        resize: (size) => void manager.calls.push(`resize ${size.columns}x${size.rows}`),
        ended,
      };
    },
    async unhold(id) {
      manager.checkShell(id);
      const job = known(id);
      const { held: _, ...view } = job.view;
      job.view = view;
      return view;
    },
    async putWorkspace(files, signal) {
      const id = `w${manager.workspaces.size + 1}`;
      signal.throwIfAborted();
      manager.workspaces.set(id, await buffer(files));
      return id;
    },
    async keepFiles() {
      throw new OnejobError('E_API_ROUTE', 'Nothing is kept here.');
    },
    async joinWorkspace() {
      throw new OnejobError('E_WORKSPACE_UNKNOWN', 'Nothing is kept here.');
    },
    artifacts(id) {
      const bytes = manager.artifactsOf(id);
      return bytes === null ? null : Readable.from([bytes]);
    },
    async *logs(source, { follow, tail = null }, signal) {
      if (tail !== null) {
        yield* lastLines((more) => manager.logs(source, { follow: more }, signal), tail, follow);
        return;
      }
      const elsewhere = 'job' in source ? manager.elsewhere.find(({ id }) => id === source.job) : undefined;
      const agent = 'agent' in source ? source.agent : elsewhere?.agent;
      const output = manager.agentOutput.get(agent ?? '');
      if (output !== undefined) {
        yield { stream: 'stdout', bytes: Buffer.from(output) };
        return;
      }
      if (elsewhere !== undefined) return;
      if (!('job' in source))
        throw new OnejobError('E_AGENT_UNKNOWN', `There is no agent ${'agent' in source ? source.agent : source.slot}.`);
      const job = known(source.job);
      for (let at = 0; ; ) {
        for (; at < job.pieces.length; at += 1) {
          const piece = job.pieces[at];
          if (piece !== undefined) yield piece;
        }
        if (!follow || job.view.state === 'done') return;
        await once(job.changed, 'change', { signal });
      }
    },
    async *agentLogs(source, { tail = null }, signal) {
      if (tail !== null) {
        yield* lastLines(() => manager.agentLogs(source, {}, signal), tail, false);
        return;
      }
      const id = 'job' in source ? source.job : 'agent' in source ? source.agent : source.slot;
      const pieces = manager.ownLogs.get(id);
      if (pieces === undefined) throw new OnejobError('E_LOG_UNKNOWN', `Agent ${id} left no logs of its own.`);
      yield* pieces;
    },
    devices: () => manager.deviceViews,
    deviceUse: (name, since) => (manager.uses.get(name) ?? []).filter(({ at }) => at >= since),
    changeDevice(name, change) {
      const device = manager.deviceViews.find(({ uuid }) => uuid === name);
      if (device === undefined) {
        throw new OnejobError('E_DEVICE_UNKNOWN', `There is no device "${name}".`, { hint: '"onejob gpus" lists all.' });
      }
      manager.calls.push(`${change.act} ${name} ${JSON.stringify(change)}`);
      return { uuid: name, changed: true, device: change.act === 'forget' ? null : device };
    },
    clearDevice: async (name) => manager.changeDevice(name, { act: 'clear' }),
    proofs: ({ device, limit }) => manager.proofViews.filter((proof) => device === null || proof.device === device).slice(0, limit),
    pause: (pool, reason) => void manager.calls.push(`pause ${pool} ${reason}`),
    resume: (pool, reason) => {
      manager.calls.push(`resume ${pool} ${reason}`);
      return { changed: manager.resumed, held: manager.held };
    },
    drain: (pool) => void manager.calls.push(`drain ${pool}`),
    down(request) {
      manager.calls.push(`down ${request.how} ${request.grace}${request.forget ? ' forget' : ''}`);
      events.emit('down');
    },
    forgotten: async () => manager.forgottenViews,
    hold() {
      holds += 1;
      let held = true;
      return () => {
        if (held) holds -= 1;
        held = false;
        checkIdle();
      };
    },
    async end() {
      for (const job of jobs.values()) {
        if (job.child?.pid === undefined || job.child.exitCode !== null || job.child.signalCode !== null) continue;
        const closed = once(job.child, 'close');
        process.kill(-job.child.pid, 'SIGKILL');
        await closed;
      }
    },
  };
  return manager;
}
