/** Jobs of the own queue on machines in memory, in virtual time. The queue, its store and the logs are real. */
import { readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { type Duplex, duplexPair, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import fc from 'fast-check';
import { pack } from 'tar-stream';
import { afterEach, describe, expect, it } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { openAt } from '../../test/support/descriptors.ts';
import { oneDevice } from '../../test/support/devices.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { OnejobError } from '../base/errors.ts';
import { createOwnQueue, type OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { QueuePool } from '../ci/own-queue/request.ts';
import { type JobRequest, jobRequest } from '../contract/job.ts';
import type { LogPiece } from '../contract/manager.ts';
import type { JobView, StatusView } from '../contract/schema.ts';
import { takenWithJob } from '../core/slot.ts';
import { LogFollowers } from '../logs/followers.ts';
import { createLogFolder } from '../logs/log-file.ts';
import type { Recipe } from '../ports/runtime.ts';
import type { Machine } from '../store/machine.ts';
import { openStore, type Store } from '../store/store.ts';
import { MachineJobs } from './jobs.ts';
import type { MachineClient } from './machine-links.ts';

const recipe: Recipe = {
  image: 'debian:stable-slim',
  pull: 'missing',
  env: {},
  mounts: [],
  cpus: null,
  memory: null,
  pids: 4096,
  shmSize: null,
  ulimits: [],
  network: 'default',
  user: null,
  readOnly: false,
  tmpfs: {},
  capAdd: [],
  oomScoreAdj: 500,
  grant: { way: 'auto', capabilities: [], numa: false },
  unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
};
const pool: QueuePool = {
  name: 'burst.gpu',
  runtime: null,
  timeout: null,
  recipe,
  devices: { ...oneDevice, count: 0 },
  standby: true,
  elsewhere: { host: 'burst', pool: 'gpu' },
};

const [first, second] = ['onejob-000000000000000a', 'onejob-000000000000000b'];
const never = new AbortController().signal;
const cut = () => new OnejobError('E_DAEMON_CUT', 'The connection was cut.', { retry: true });
const full = () => new OnejobError('E_STATE_FULL', 'The disk is full.', { retry: true });
const code = (exit: number) => ({ kind: 'code', code: exit }) as const;

type Call = keyof MachineClient;

interface RemoteJob {
  view: JobView;
  readonly request: Parameters<MachineClient['submit']>[0];
  readonly output: LogPiece[];
}

/** A machine with its onejob, in memory. What it has lives on when a connection breaks. */
class FakeMachine {
  readonly run: string;
  readonly jobs = new Map<string, RemoteJob>();
  /** Ids whose script has begun, in order. */
  readonly begun: string[] = [];
  /** By id: the job that it is an attempt of. */
  readonly scripts = new Map<string, string>();
  readonly calls: string[] = [];
  /** By call: what happens before it does anything, and once it has done it. */
  readonly before = new Map<Call, () => unknown>();
  readonly after = new Map<Call, () => unknown>();
  readonly artifacts = new Map<string, () => Readable>();
  readonly workspaces: Buffer[] = [];
  slots = 1;
  draining = false;
  /** Whether a submitted job begins at once. */
  starts = true;
  holds = 0;
  status: () => unknown = () => ({
    pools: [
      {
        name: 'gpu',
        slots: Array.from({ length: this.slots }, () => ({})),
        paused: [],
        backoff: null,
        draining: this.draining,
        leaving: false,
      },
    ],
  });
  /** Its connection ends, and the controller knows. */
  leave = (): void => {};
  #over = new AbortController();
  #changed = Promise.withResolvers<void>();

  constructor(run: string) {
    this.run = run;
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }

  job(id: string): RemoteJob {
    const job = this.jobs.get(id);
    if (job === undefined) throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`);
    return job;
  }

  change(id: string, more: Partial<JobView>): void {
    const job = this.job(id);
    job.view = { ...job.view, ...more };
    this.#wake();
  }

  begin(id: string): void {
    this.begun.push(id);
    this.change(id, { state: 'running', startedAt: 1 });
  }

  print(id: string, text: string, stream: LogPiece['stream'] = 'stdout'): void {
    this.job(id).output.push({ stream, bytes: Buffer.from(text) });
    this.#wake();
  }

  end(id: string, result: JobView['result'] = code(0), reason: string | null = null): void {
    this.change(id, { state: 'done', result, reason, endedAt: 2 });
  }

  forget(id: string): void {
    this.jobs.delete(id);
    this.#wake();
  }

  /** Only one of its jobs: its id there. */
  get only(): string {
    const [id] = [...this.jobs.keys()].slice(-1);
    if (id === undefined) throw new Error('the machine has no job');
    return id;
  }

  attach(jobs: MachineJobs): void {
    this.#over = new AbortController();
    const over = this.#over;
    this.leave = jobs.attach(this.run, this.#client(over.signal), () => over.abort(cut()));
  }

  client(): MachineClient {
    return this.#client(never);
  }

  #client(over: AbortSignal): MachineClient {
    const ended = broken(over);
    const call = async <T>(name: Call, work: () => T | Promise<T>): Promise<T> => {
      over.throwIfAborted();
      this.calls.push(name);
      const [before, after] = [this.before.get(name), this.after.get(name)];
      const done = async () => {
        await before?.();
        const answer = await work();
        await after?.();
        return answer;
      };
      return Promise.race([done(), ended]);
    };
    const until = async (isTrue: () => boolean, signal = never): Promise<void> => {
      const aborted = broken(signal);
      while (!isTrue()) await Promise.race([this.#changed.promise, aborted, ended]);
    };
    const self = this;
    return {
      status: () => call('status', () => this.status() as StatusView),
      job: (id) => call('job', () => this.job(id).view),
      putWorkspace: (files) =>
        call('putWorkspace', async () => {
          this.workspaces.push(await buffer(files));
          return 'sent';
        }),
      submit: (request) =>
        call('submit', () => {
          const id = request.id ?? '';
          if (!this.jobs.has(id)) {
            this.jobs.set(id, { view: viewOf(id), request, output: [] });
            this.scripts.set(id, request.attemptOf?.job ?? id);
            if (this.starts) this.begin(id);
          }
          return this.job(id).view;
        }),
      hold: (signal = never) =>
        call('hold', () => {
          this.holds += 1;
          const ending = Promise.withResolvers<{ readonly reloads: boolean }>();
          const release = () => {
            if (isHeld) this.holds -= 1;
            isHeld = false;
            ending.resolve({ reloads: false });
          };
          let isHeld = true;
          for (const one of [over, signal]) one.addEventListener('abort', release, { once: true });
          return { ended: ending.promise, release: release as never };
        }),
      async *logs(source, { from = { stdout: 0, stderr: 0 }, signal }) {
        await call('logs', () => undefined);
        const id = 'job' in source ? source.job : '';
        const skip = { stdout: from.stdout ?? 0, stderr: from.stderr ?? 0 };
        for (let next = 0; ; next++) {
          await until(() => self.job(id).output.length > next || self.job(id).view.state === 'done', signal);
          const piece = self.job(id).output[next];
          if (piece === undefined) return;
          if (piece.stream === 'note') {
            yield piece;
            continue;
          }
          const known = Math.min(skip[piece.stream], piece.bytes.length);
          skip[piece.stream] -= known;
          if (known < piece.bytes.length || piece.bytes.length === 0) yield { ...piece, bytes: piece.bytes.subarray(known) };
        }
      },
      settled: (id, signal) =>
        call('settled', async () => {
          await until(() => this.job(id).view.state === 'done', signal);
          return this.job(id).view;
        }),
      artifacts: (id) => call('artifacts', () => this.artifacts.get(id)?.() ?? null),
      cancel: (id) =>
        call('cancel', () => {
          const { view } = this.job(id);
          if (view.state !== 'done') this.end(id, { kind: 'cancelled' });
          return this.job(id).view;
        }),
    };
  }

  /** Its connection breaks. */
  cut(): void {
    this.#over.abort(cut());
  }
}

const viewOf = (id: string): JobView => ({
  id,
  service: 'own',
  pool: 'gpu',
  command: ['true'],
  about: null,
  state: 'queued',
  priority: 0,
  attempt: 1,
  agent: null,
  result: null,
  reason: null,
  cold: false,
  artifacts: [],
  submittedAt: 0,
  startedAt: null,
  endedAt: null,
});

/** Rejects once the signal aborts. */
function broken(signal: AbortSignal): Promise<never> {
  const promise = new Promise<never>((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  promise.catch(() => {});
  return promise;
}

const endings: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

/** A controller with the machines of `runs`, of which none is connected yet. */
async function world({ runs = [first] }: { readonly runs?: readonly string[] } = {}) {
  const dir: Scratch = scratch();
  endings.push(() => dir[Symbol.dispose]());
  const clock = handClock();
  const states = new Map<string, Partial<Machine>>(runs.map((run) => [run, { run, host: 'burst', state: 'joined' }]));
  const warnings: string[] = [];
  const counts: string[] = [];
  const paused = new Set<string>();
  let refuse: ((what: 'commit' | 'append') => void) | null = null;
  let store: Store;
  let queue: OwnQueue;
  let jobs: MachineJobs;
  let logs: LogFollowers;

  function open(pools: readonly QueuePool[] = [pool]): void {
    store = openStore(join(dir.path, 'state'));
    queue = createOwnQueue({ store, pools: [...pools], clock });
    const folder = createLogFolder(dir.path, { noRoom: () => null });
    logs = new LogFollowers({
      clock,
      state() {},
      failed() {},
      logs: {
        ...folder,
        open(agent) {
          refuse?.('append');
          const file = folder.open(agent);
          const append = file.append.bind(file);
          file.append = (...given) => {
            refuse?.('append');
            append(...given);
          };
          return file;
        },
      },
    });
    const { elsewhere } = queue;
    jobs = new MachineJobs({
      clock,
      version: '1',
      logs,
      history: store.history,
      log: { warn: (text, fields) => void warnings.push(`${text} ${JSON.stringify(fields)}`) },
      pools: pools.map(({ name, elsewhere: at }) => ({ name, ...(at !== undefined && { elsewhere: at }) })),
      machine: (run) => (states.get(run) as Machine | undefined) ?? null,
      counted: (run, change) => void counts.push(`${run.slice(-1)} ${change}`),
      mayStart: () => !paused.has('all'),
      queue: {
        settle: (...given) => queue.settle(...given),
        onChange: (listener) => queue.onChange(listener),
        elsewhere: {
          ...elsewhere,
          annotate(id, notes) {
            if (notes.length > 0) refuse?.('commit');
            elsewhere.annotate(id, notes);
          },
          record(change, also) {
            refuse?.('commit');
            elsewhere.record(change, also);
          },
        },
      },
    });
    // As the host does.
    queue.observe((event) => {
      if (event.kind === 'waiting') jobs.look();
    }, new AbortController().signal);
  }
  async function close(): Promise<void> {
    await jobs.close();
    await logs.close();
    await queue.close();
    store.close();
  }
  open();
  endings.push(close);

  /** Lets everything happen that waits for no time. */
  async function turn(times = 30): Promise<void> {
    for (let at = 0; at < times; at++) await new Promise((resolve) => setImmediate(resolve));
  }
  /** As `turn`, and what is done with files meanwhile, which takes real time. */
  async function calm(times?: number): Promise<void> {
    do await turn(times);
    while (process.getActiveResourcesInfo().some((one) => /^(FSReq|CloseReq)/.test(one)));
  }
  /** Lets time pass, and all that it causes happen. */
  async function pass(ms: number): Promise<void> {
    await calm();
    for (let left = ms; left > 0; ) {
      const step = Math.min(left, Math.max(1, clock.next() ?? left));
      clock.advance(step);
      left -= step;
      await calm();
    }
  }
  /** Lets time pass until it is so, an hour at most. */
  async function until(isTrue: () => boolean): Promise<void> {
    const limit = clock.now() + 3_600_000;
    for (let turns = 0; !isTrue(); turns++) {
      await calm(5);
      if (isTrue()) return;
      if (turns % 20 === 19) clock.advance(Math.min(clock.next() ?? 1_000, 1_000));
      if (clock.now() > limit) throw new Error('it never was so');
    }
  }
  const at = (id: string) => {
    const job = queue.job(id);
    if (job === null) throw new Error(`there is no job ${id}`);
    return job;
  };

  return {
    clock,
    states,
    warnings,
    counts,
    paused,
    turn,
    pass,
    until,
    at,
    dir,
    get queue() {
      return queue;
    },
    get jobs() {
      return jobs;
    },
    get logs() {
      return logs;
    },
    get store() {
      return store;
    },
    start: () => jobs.start(),
    submit: (more: Partial<JobRequest> = {}) =>
      queue.submit(jobRequest.parse({ command: ['true'], pool: 'burst.gpu', ...more })).id,
    /** A connected machine that says how many slots it has. */
    async connect(
      run = first,
      more: Partial<Pick<FakeMachine, 'slots' | 'starts' | 'draining' | 'status'>> = {},
    ): Promise<FakeMachine> {
      const machine = Object.assign(new FakeMachine(run), more);
      machine.attach(jobs);
      await turn();
      return machine;
    },
    done: (id: string) => until(() => at(id).state === 'done').then(() => at(id)),
    async artifacts(id: string): Promise<string | null> {
      const tar = queue.artifacts(id);
      return tar === null ? null : (await buffer(tar)).toString();
    },
    async output(id: string): Promise<string> {
      const agents = store.history.ofJob(id, 100).map(({ agent }) => agent);
      let text = '';
      for (const agent of agents.reverse())
        for await (const { bytes, stream } of logs.read(agent))
          text += `${stream === 'stdout' ? '' : `${stream}:`}${Buffer.from(bytes)}`;
      return text;
    },
    gone(run = first, why: string | null = 'The cloud has ended it.', stage: string | null = 'joined') {
      states.delete(run);
      jobs.gone({ run, stage, why });
    },
    refuse(how: ((what: 'commit' | 'append') => void) | null) {
      refuse = how;
    },
    /** Another controller on the same store. */
    async restart(pools?: readonly QueuePool[]): Promise<void> {
      await close();
      open(pools);
    },
  };
}

/** Everything that one job does, on a machine that begins it at once. */
async function through(all: Awaited<ReturnType<typeof world>>, machine: FakeMachine, id: string) {
  await all.until(() => machine.begun.length > 0);
  machine.print(machine.only, 'hello\n');
  machine.end(machine.only);
  return all.done(id);
}

function tarOf(files: Readonly<Record<string, string>>): Readable {
  const packed = pack();
  for (const [name, text] of Object.entries(files)) packed.entry({ name }, text);
  packed.finalize();
  return Readable.from(packed, { objectMode: false });
}

describe('a job', () => {
  it('waits while there is no machine, and starts on one that connects', async () => {
    const all = await world();
    all.start();
    const id = all.submit({ env: { A: 'b' }, priority: 3 });
    await all.pass(60_000);
    expect(all.at(id).state).toBe('queued');
    const machine = await all.connect();
    const done = await through(all, machine, id);
    expect(done).toMatchObject({ result: code(0), attempt: 1, agent: `${first}-${id}` });
    expect(machine.job(id).request).toMatchObject({
      id,
      pool: 'gpu',
      env: { A: 'b' },
      priority: 3,
      needs: [],
      retries: 0,
      workspace: null,
      attemptOf: { job: id, attempt: 1, array: null },
    });
    expect(await all.output(id)).toBe('hello\n');
    expect([all.jobs.on(first), machine.holds, all.counts]).toEqual([0, 0, ['a 1', 'a -1']]);
  });

  it('of a person is sent as another onejob takes it', async () => {
    const all = await world();
    all.start();
    const { id } = all.queue.submit(jobRequest.parse({ command: ['true'], pool: 'burst.gpu' }), { uid: 1000, name: 'ada' });
    const machine = await all.connect();
    await through(all, machine, id);
    const { request } = machine.job(id);
    expect(jobRequest.safeParse(request)).toMatchObject({ success: true, data: { user: 'ada' } });
  });

  it('waits while everything is paused, and what runs continues', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { slots: 2 });
    const one = all.submit();
    await all.until(() => machine.begun.length === 1);
    all.paused.add('all');
    const two = all.submit();
    await all.pass(60_000);
    expect(all.at(two).state).toBe('queued');
    machine.end(one);
    await all.done(one);
    all.paused.clear();
    await all.until(() => machine.begun.length === 2);
    machine.end(two);
    await all.done(two);
  });

  it('waits for a free slot', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const [one, two] = [all.submit(), all.submit()];
    await all.pass(60_000);
    expect([all.at(one).state, all.at(two).state, machine.begun]).toEqual(['running', 'queued', [one]]);
    machine.end(one);
    await all.until(() => machine.begun.length === 2);
    machine.end(two);
    await all.done(two);
    expect(machine.begun).toEqual([one, two]);
  });

  it('goes to another machine when the first one has no free slot', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machines = [await all.connect(first), await all.connect(second)];
    const ids = [all.submit(), all.submit()];
    await all.until(() => machines.every(({ begun }) => begun.length === 1));
    for (const machine of machines) machine.end(machine.only);
    for (const id of ids) expect((await all.done(id)).result).toEqual(code(0));
  });

  it('never goes to a machine of another host, or to one that has not joined', async () => {
    const all = await world({ runs: [first, second] });
    all.states.set(first, { run: first, host: 'other', state: 'joined' });
    all.states.set(second, { run: second, host: 'burst', state: 'booting' });
    all.start();
    const machines = [await all.connect(first), await all.connect(second)];
    const id = all.submit();
    await all.pass(60_000);
    expect([all.at(id).state, ...machines.map(({ jobs }) => jobs.size)]).toEqual(['queued', 0, 0]);
    all.states.set(second, { run: second, host: 'burst', state: 'joined' });
    all.jobs.look();
    await all.until(() => machines[1]?.begun.length === 1);
  });

  it('goes to nobody whose pool is paused, backs off, or is another one', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { slots: 0 });
    const id = all.submit();
    const gpu = { name: 'gpu', slots: [{}], paused: [], backoff: null, draining: false, leaving: false };
    for (const one of [
      { ...gpu, paused: [{}] },
      { ...gpu, backoff: {} },
      { ...gpu, name: 'cpu' },
    ]) {
      machine.status = () => ({ pools: [one] });
      await all.pass(30_000);
      expect(all.at(id).state).toBe('queued');
    }
    machine.status = () => ({ pools: [gpu] });
    await all.until(() => machine.begun.length === 1);
  });

  it('of an array knows its place in it', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { slots: 3 });
    const request = { job: jobRequest.parse({ command: ['true'], pool: 'burst.gpu' }), indices: [4, 7] };
    const made = all.queue.submitArray(request);
    await all.until(() => machine.begun.length === 2);
    const places = [...machine.jobs.values()].map(({ request: sent }) => sent.attemptOf);
    expect(places).toEqual(made.map(({ id, array }) => ({ job: id, attempt: 1, array })));
    expect(places.map((one) => one?.array?.index)).toEqual([4, 7]);
  });

  it('brings its workspace', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const workspace = await all.queue.putWorkspace(tarOf({ input: 'from here' }), never);
    const id = all.submit({ workspace });
    await through(all, machine, id);
    expect(machine.job(id).request.workspace).toBe('sent');
    expect(machine.workspaces[0]?.toString()).toContain('from here');
  });

  it('whose workspace is missing here is unstartable at once, and no fault of the machine', async () => {
    const all = await world();
    all.start();
    const workspace = await all.queue.putWorkspace(tarOf({ input: 'from here' }), never);
    const id = all.submit({ workspace });
    const next = all.submit();
    for (const name of readdirSync(all.dir.path, { recursive: true, encoding: 'utf8' }))
      if (name.includes(workspace)) rmSync(join(all.dir.path, name), { recursive: true, force: true });
    const machine = await all.connect();
    await all.turn();
    expect(all.at(id)).toMatchObject({ state: 'done', result: { kind: 'unstartable', failure: { code: 'E_WORKSPACE_UNKNOWN' } } });
    expect(machine.begun).toEqual([next]);
    expect(all.clock.now()).toBe(0);
  });
});

describe('a machine that drains', () => {
  it('gets no job', async () => {
    const all = await world({ runs: [first, second] });
    all.states.set(second, { run: second, host: 'burst', state: 'draining' });
    all.start();
    const machines = [await all.connect(first, { draining: true }), await all.connect(second)];
    const id = all.submit();
    await all.pass(120_000);
    expect([all.at(id).state, ...machines.map(({ calls }) => calls.includes('submit'))]).toEqual(['queued', false, false]);
  });

  it('loses a job that waits there to another machine', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const slow = await all.connect(first, { starts: false });
    const id = all.submit();
    await all.until(() => slow.jobs.size === 1);
    all.states.set(first, { run: first, host: 'burst', state: 'draining' });
    const other = await all.connect(second);
    await all.until(() => other.begun.length === 1);
    other.end(other.only);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 2 });
    expect([slow.begun, slow.job(id).view.result?.kind, other.only === id]).toEqual([[], 'cancelled', false]);
  });

  it('may begin a job right before it is taken back, which is lost then: nobody has cancelled it', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { starts: false });
    const id = all.submit();
    await all.until(() => machine.jobs.size === 1);
    machine.before.set('cancel', () => machine.begin(id));
    all.states.set(first, { run: first, host: 'burst', state: 'draining' });
    expect((await all.done(id)).result).toEqual({ kind: 'lost', reason: expect.stringContaining('its machine') });
    expect(machine.begun).toEqual([id]);
  });
});

describe('a pool of a machine that begins nothing', () => {
  const gpu = { name: 'gpu', slots: [{}], paused: [], backoff: null, draining: false, leaving: false };
  const cpu = { ...gpu, name: 'cpu' };
  const cannot = [
    ['is paused', { paused: ['by somebody'] }],
    ['backs off', { backoff: {} }],
    ['drains', { draining: true }],
    ['leaves', { leaving: true }],
  ] as const;
  const cancels = ({ calls }: FakeMachine) => calls.filter((call) => call === 'cancel').length;

  /** A job waits on a machine. */
  async function waiting() {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect(first, { starts: false });
    const says = (more: object) => {
      machine.status = () => ({ pools: [{ ...gpu, ...more }, cpu] });
    };
    says({});
    const id = all.submit();
    await all.until(() => machine.jobs.size === 1);
    return { all, machine, says, id };
  }

  it.each(cannot)('because it %s loses a job that waits there to another machine', async (_, more) => {
    const { all, machine, says, id } = await waiting();
    says(more);
    const other = await all.connect(second);
    await all.until(() => other.begun.length === 1);
    expect(all.clock.now()).toBeLessThan(90_000);
    other.end(other.only);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 2 });
    expect([machine.begun, machine.job(id).view.result, cancels(machine)]).toEqual([[], { kind: 'cancelled' }, 1]);
  });

  it.each(cannot)('because it %s has no job if it is the only one, until it works', async (_, more) => {
    const { all, machine, says, id } = await waiting();
    says(more);
    await all.pass(3_600_000);
    expect([all.at(id).state, all.jobs.on(first), machine.jobs.size]).toEqual(['queued', 0, 1]);
    says({});
    machine.starts = true;
    await all.until(() => machine.begun.length === 1);
    machine.end(machine.only);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 2 });
  });

  it.each(cannot)('because it %s gets no job', async (_, more) => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { status: () => ({ pools: [{ ...gpu, ...more }, cpu] }) });
    const id = all.submit();
    await all.pass(120_000);
    expect([all.at(id).state, machine.jobs.size]).toEqual(['queued', 0]);
  });

  it.each(cannot.slice(0, 2))('for a short time, because it %s, keeps its job', async (_, more) => {
    const { all, machine, says, id } = await waiting();
    for (let times = 0; times < 5; times++) {
      says(more);
      await all.pass(20_000);
      says({});
      await all.pass(20_000);
    }
    expect([all.at(id).state, cancels(machine), machine.jobs.size]).toEqual(['assigned', 0, 1]);
  });

  it('keeps a job while nobody knows whether it still does', async () => {
    const { all, machine, id } = await waiting();
    machine.status = () => {
      throw cut();
    };
    await all.pass(600_000);
    expect([all.at(id).state, cancels(machine)]).toEqual(['assigned', 0]);
  });

  it('keeps a job that an agent has, which may have begun', async () => {
    const { all, machine, says, id } = await waiting();
    machine.change(id, { state: 'assigned', agent: 'gpu-1' });
    says({ backoff: {} });
    await all.pass(600_000);
    expect([all.at(id).state, cancels(machine)]).toEqual(['assigned', 0]);
  });

  it('may give a job to an agent right before it is taken back, which is lost then: it may have begun', async () => {
    const { all, machine, says, id } = await waiting();
    machine.before.set('cancel', () => machine.change(id, { state: 'assigned', agent: 'gpu-1' }));
    says({ backoff: {} });
    expect((await all.done(id)).result).toEqual({ kind: 'lost', reason: 'its machine has cancelled it' });
    expect(machine.jobs.size).toBe(1);
  });
});

describe('a machine that refuses a job', () => {
  const refusal =
    (retry: boolean, name = 'E_MOUNT_MISSING' as const) =>
    () => {
      throw new OnejobError(name, 'There is no\nfolder.', { retry });
    };

  it('makes another one try it at once', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machines = [await all.connect(first), await all.connect(second)];
    machines[0]?.before.set('submit', refusal(true));
    const id = all.submit();
    await all.until(() => machines[1]?.begun.length === 1);
    expect([all.clock.now(), all.at(id).attempt]).toEqual([0, 2]);
  });

  it('is asked again after a while, with another id, if it is the only one', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    machine.before.set('submit', refusal(true));
    const id = all.submit();
    await all.pass(20_000);
    expect([machine.calls.filter((call) => call === 'submit').length, all.at(id).reason]).toEqual([1, 'There is no folder.']);
    machine.before.delete('submit');
    await all.until(() => machine.begun.length === 1);
    expect(all.clock.now()).toBeLessThan(60_000);
    expect(machine.only).not.toBe(id);
    machine.end(machine.only);
    await all.done(id);
  });

  it('because it is another version and cannot read the request does not keep it', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machines = [await all.connect(first), await all.connect(second)];
    machines[0]?.before.set('submit', () => {
      throw new OnejobError('E_API_VERSION', 'Cannot understand the daemon. The daemon is onejob 0.9, this is 1.');
    });
    const id = all.submit();
    await all.until(() => machines[1]?.begun.length === 1);
    expect(machines[0]?.calls.filter((call) => call === 'submit')).toHaveLength(1);
    expect(all.at(id).attempt).toBe(2);
  });

  it('for a lasting reason three times makes it unstartable', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    machine.before.set('submit', refusal(false));
    const id = all.submit();
    expect((await all.done(id)).result).toMatchObject({ kind: 'unstartable', failure: { code: 'E_MOUNT_MISSING' } });
    expect(machine.calls.filter((call) => call === 'submit')).toHaveLength(3);
  });

  it('is never asked in a loop, and leaves nothing behind that grows for ever', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    machine.before.set('submit', refusal(true));
    const id = all.submit();
    await all.pass(600_000);
    const asked = machine.calls.filter((call) => call === 'submit').length;
    expect(asked).toBeGreaterThan(5);
    expect(asked).toBeLessThan(25);
    all.queue.cancel(id);
    await all.pass(60_000);
    expect(all.at(id).result).toEqual({ kind: 'cancelled' });
    // What history has of an agent is pruned by the time of its end.
    expect(all.store.history.endedBefore(all.clock.wall() + 1, 100)).toHaveLength(asked);
  });
});

it('a machine that cancels each job at once gets few of them, also when it connects anew', async () => {
  const all = await world();
  all.start();
  const machine = await all.connect(first, { starts: false });
  machine.after.set('submit', () => {
    machine.end(machine.only, { kind: 'cancelled' });
    machine.cut();
    machine.attach(all.jobs);
  });
  const id = all.submit();
  await all.pass(300_000);
  expect([all.at(id).state, machine.begun]).toEqual(['queued', []]);
  expect(machine.jobs.size).toBeGreaterThan(3);
  expect(machine.jobs.size).toBeLessThan(12);
});

describe('a cancelled job', () => {
  it('never starts while its machine does not answer yet', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const answer = Promise.withResolvers<void>();
    machine.before.set('job', () => answer.promise);
    const id = all.submit();
    await all.turn();
    all.queue.cancel(id);
    answer.resolve();
    expect((await all.done(id)).result).toEqual({ kind: 'cancelled' });
    expect(machine.jobs.size).toBe(0);
  });

  it('never starts while its workspace is sent', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const sent = Promise.withResolvers<void>();
    machine.after.set('putWorkspace', () => sent.promise);
    const id = all.submit({ workspace: await all.queue.putWorkspace(tarOf({ a: 'b' }), never) });
    await all.until(() => machine.workspaces.length === 1);
    all.queue.cancel(id);
    await all.turn();
    sent.resolve();
    expect((await all.done(id)).result).toEqual({ kind: 'cancelled' });
    expect(machine.jobs.size).toBe(0);
  });

  it('ends there while its submission is being answered', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const answer = Promise.withResolvers<void>();
    machine.after.set('submit', () => answer.promise);
    const id = all.submit();
    await all.until(() => machine.jobs.size === 1);
    all.queue.cancel(id);
    await all.turn();
    answer.resolve();
    expect((await all.done(id)).result).toEqual({ kind: 'cancelled' });
    expect(machine.job(id).view.result).toEqual({ kind: 'cancelled' });
  });

  it('ends where it waits, and where it runs, and its output stays', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { slots: 2, starts: false });
    const [waits, runs] = [all.submit(), all.submit()];
    await all.until(() => machine.jobs.size === 2);
    machine.begin(runs);
    machine.print(runs, 'so far');
    await all.until(() => all.at(runs).state === 'running');
    for (const id of [waits, runs]) {
      all.queue.cancel(id);
      all.queue.cancel(id);
      expect((await all.done(id)).result).toEqual({ kind: 'cancelled' });
    }
    expect(await all.output(runs)).toBe('so far');
    expect(machine.calls.filter((call) => call === 'cancel')).toHaveLength(2);
  });

  it('keeps its result while its artifacts are fetched, and waits for them no longer', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit({ artifacts: ['out'] });
    machine.artifacts.set(id, () => new Readable({ read() {} }));
    await all.until(() => machine.begun.length === 1);
    machine.end(id, code(3));
    await all.until(() => machine.calls.includes('artifacts'));
    all.queue.cancel(id);
    expect(await all.done(id)).toMatchObject({ result: code(3), reason: expect.stringContaining('cancelled') });
  });
});

describe('a machine whose connection stays away', () => {
  /** A job whose machine lost its connection right before it was submitted, or right after. */
  async function left(when: 'before' | 'after') {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect();
    machine[when].set('submit', () => {
      machine.leave();
      throw cut();
    });
    if (when === 'before') machine.before.set('job', machine.before.get('submit') as () => unknown);
    const id = all.submit();
    await all.until(() => machine.calls.includes(when === 'before' ? 'job' : 'submit'));
    await all.pass(2_000);
    machine.before.clear();
    machine.after.clear();
    return { all, machine, id };
  }

  it('has no job that was cancelled before it was submitted', async () => {
    const { all, machine, id } = await left('before');
    expect(all.at(id).state).toBe('reserved');
    all.queue.cancel(id);
    await all.turn();
    expect([all.at(id).result, all.jobs.on(first)]).toEqual([{ kind: 'cancelled' }, 0]);
    machine.attach(all.jobs);
    await all.pass(60_000);
    expect(machine.jobs.size).toBe(0);
  });

  it('loses a job that was not submitted to another one after a while', async () => {
    const { all, machine, id } = await left('before');
    const other = await all.connect(second);
    await all.pass(20_000);
    expect([all.at(id).state, other.jobs.size]).toEqual(['reserved', 0]);
    await all.until(() => other.begun.length === 1);
    expect(all.clock.now()).toBeLessThan(40_000);
    machine.attach(all.jobs);
    await all.pass(60_000);
    other.end(other.only);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 2 });
    expect(machine.jobs.size).toBe(0);
  });

  it('keeps a job that was not submitted if it is back soon, as often as that happens', async () => {
    const { all, machine, id } = await left('before');
    for (let times = 0; times < 5; times++) {
      await all.pass(25_000);
      const answer = Promise.withResolvers<void>();
      machine.before.set('job', () => answer.promise);
      machine.attach(all.jobs);
      await all.pass(1_000);
      machine.leave();
    }
    expect(all.at(id)).toMatchObject({ state: 'reserved', attempt: 1 });
    machine.before.clear();
    machine.attach(all.jobs);
    await all.until(() => machine.begun.length === 1);
    machine.end(id);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 1 });
  });

  it('gets its job back from the queue if it is the only one', async () => {
    const { all, machine, id } = await left('before');
    await all.pass(600_000);
    expect([all.at(id).state, all.at(id).attempt, all.jobs.on(first)]).toEqual(['queued', 1, 0]);
    machine.attach(all.jobs);
    await all.until(() => machine.begun.length === 1);
    machine.end(machine.only);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 2 });
  });

  it('keeps a job that it may have, also when that is cancelled', async () => {
    const { all, machine, id } = await left('after');
    const other = await all.connect(second);
    await all.pass(600_000);
    all.queue.cancel(id);
    await all.pass(600_000);
    expect([all.at(id).state, all.at(id).result, other.jobs.size]).toEqual(['assigned', null, 0]);
    machine.attach(all.jobs);
    expect((await all.done(id)).result).toEqual({ kind: 'cancelled' });
    expect([machine.begun, other.begun]).toEqual([[id], []]);
  });
});

describe('a connection that breaks', () => {
  const calls: Call[] = ['status', 'job', 'putWorkspace', 'submit', 'hold', 'logs', 'settled', 'artifacts'];
  it.each(calls.flatMap((call) => (['before', 'after'] as const).map((when) => [when, call] as const)))(
    '%s the machine has done %s changes nothing',
    async (when, call) => {
      const all = await world();
      all.start();
      const machine = await all.connect();
      const workspace = await all.queue.putWorkspace(tarOf({ a: 'b' }), never);
      const id = all.submit({ workspace, artifacts: ['out'], retries: 3 });
      machine.artifacts.set(id, () => tarOf({ out: 'made' }));
      let broken = 0;
      machine[when].set(call, async () => {
        if (++broken > 1) return;
        machine.cut();
        machine.attach(all.jobs);
        throw cut();
      });
      await all.until(() => machine.begun.length > 0);
      machine.print(id, 'hello\n');
      machine.end(id, code(4));
      expect(await all.done(id)).toMatchObject({ result: code(4), attempt: 1, reason: null });
      expect([machine.begun, await all.output(id)]).toEqual([[id], 'hello\n']);
      expect(await all.artifacts(id)).toContain('made');
    },
  );

  it('in the middle of the output loses no byte and repeats none', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit();
    await all.until(() => machine.begun.length === 1);
    for (let at = 0; at < 20; at++) {
      machine.print(id, `${at} `, 'stdout');
      machine.print(id, `e${at} `, 'stderr');
      await all.turn(at % 3);
      machine.cut();
      machine.attach(all.jobs);
      await all.pass(at % 4 === 0 ? 40_000 : 100);
    }
    machine.end(id);
    await all.done(id);
    const numbers = Array.from({ length: 20 }, (_, at) => at);
    const output = await all.output(id);
    const [errors, words] = [output.match(/stderr:e\d+ /g) ?? [], output.replaceAll(/stderr:e\d+ /g, '')];
    expect(words).toBe(numbers.map((at) => `${at} `).join(''));
    expect(errors).toEqual(numbers.map((at) => `stderr:e${at} `));
  });

  it('is held again, so that the machine waits until everything was fetched', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit({ artifacts: ['out'] });
    await all.until(() => machine.holds === 1);
    machine.cut();
    expect(machine.holds).toBe(0);
    machine.attach(all.jobs);
    await all.until(() => machine.holds === 1);
    // While it fetches, too.
    let tries = 0;
    machine.artifacts.set(id, () => {
      tries += 1;
      if (tries === 1) throw cut();
      expect(machine.holds).toBe(1);
      return tarOf({ out: 'made' });
    });
    machine.end(id);
    await all.done(id);
    expect([tries, machine.holds]).toEqual([2, 0]);
  });

  it('right after each hold is not held in a loop', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const client = machine.client();
    all.jobs.attach(
      first,
      { ...client, hold: async () => ({ ...(await client.hold()), ended: Promise.resolve({ reloads: false }) }) },
      () => {},
    );
    all.submit();
    await all.pass(60_000);
    expect(machine.calls.filter((call) => call === 'hold').length).toBeLessThan(70);
  });

  it('keeps the job however long it takes, although another machine is free', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect();
    const id = all.submit({ retries: 1 });
    await all.until(() => all.at(id).state === 'running');
    machine.cut();
    const other = await all.connect(second);
    await all.pass(3_600_000);
    expect([all.at(id).state, other.jobs.size]).toEqual(['running', 0]);
    machine.end(id);
    machine.attach(all.jobs);
    expect((await all.done(id)).result).toEqual(code(0));
  });
});

describe('a machine', () => {
  it('that has forgotten a job has lost it', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit();
    await all.until(() => all.at(id).state === 'running');
    machine.print(id, 'so far');
    await all.turn();
    machine.forget(id);
    expect((await all.done(id)).result).toEqual({ kind: 'lost', reason: 'its machine no longer knows it' });
    expect(await all.output(id)).toBe('so far');
  });

  it('that is gone before the job was submitted gives it back', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect();
    machine.before.set('job', () => new Promise(() => {}));
    const id = all.submit();
    await all.turn();
    expect(all.at(id).agent).toBe(`${first}-${id}`);
    all.gone();
    await all.until(() => all.at(id).state === 'queued');
    const other = await all.connect(second);
    await all.until(() => other.begun.length === 1);
    other.end(other.only);
    expect((await all.done(id)).result).toEqual(code(0));
  });

  it.each([
    ['The cloud has ended it.', 'joined', 'its machine is gone: The cloud has ended it'],
    [null, 'joined', 'its machine is gone'],
    ['The cloud takes it back.', 'preempted', takenWithJob],
  ] as const)('that is gone (%s, %s) loses what it may have begun', async (why, stage, reason) => {
    const all = await world();
    all.start();
    const machine = await all.connect(first, { slots: 2 });
    const runs = all.submit();
    await all.until(() => all.at(runs).state === 'running');
    machine.after.set('submit', () => new Promise(() => {}));
    const submitted = all.submit();
    await all.until(() => machine.begun.length === 2);
    all.gone(first, why, stage);
    for (const id of [runs, submitted]) expect((await all.done(id)).result).toEqual({ kind: 'lost', reason });
  });

  it('that is gone lets a job with retries start on another one, and its followers see the end of the first log', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect();
    const id = all.submit({ retries: 1 });
    await all.until(() => all.at(id).state === 'running');
    machine.print(id, 'one');
    const followed: string[] = [];
    const ended = (async () => {
      for await (const { bytes } of all.logs.read(`${first}-${id}`, { follow: true })) followed.push(Buffer.from(bytes).toString());
    })();
    await all.turn();
    all.gone();
    const other = await all.connect(second);
    await ended;
    expect(followed).toEqual(['one']);
    await all.until(() => other.begun.length === 1);
    expect(other.job(other.only).request.attemptOf).toEqual({ job: id, attempt: 2, array: null });
    expect(other.only).not.toBe(id);
    other.print(other.only, 'two');
    other.end(other.only);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 2 });
    expect(await all.output(id)).toBe('onetwo');
    expect(all.store.history.ofJob(id, 9).map(({ agent, releasedAt }) => [agent, releasedAt !== null])).toEqual([
      [`${second}-${other.only}`, true],
      [`${first}-${id}`, true],
    ]);
  });

  it('that is gone while it is asked for artifacts leaves the result', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit({ artifacts: ['out'], retries: 1 });
    await all.until(() => machine.begun.length === 1);
    machine.before.set('artifacts', () => new Promise(() => {}));
    machine.end(id, code(2));
    await all.until(() => machine.calls.includes('artifacts'));
    all.gone();
    expect(await all.done(id)).toMatchObject({
      result: code(2),
      reason: 'Failed to keep its artifacts: its machine is gone: The cloud has ended it.',
    });
  });
});

describe('artifacts', () => {
  const fetched = async (tar: (() => Readable) | null, reason: string | null = null) => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit({ artifacts: ['out', 'logs/**'] });
    if (tar !== null) machine.artifacts.set(id, tar);
    await all.until(() => machine.begun.length === 1);
    machine.end(id, code(0), reason);
    const done = await all.done(id);
    return { done, text: await all.artifacts(id), calls: machine.calls, took: all.clock.now() };
  };

  it('come as the job named them, and nothing else does', async () => {
    const { done, text } = await fetched(() => tarOf({ out: 'made', 'logs/a': 'b', '../etc/passwd': 'x', other: 'secret' }));
    expect(done.reason).toBeNull();
    for (const part of ['made', 'logs/a']) expect(text).toContain(part);
    for (const part of ['passwd', 'secret']) expect(text).not.toContain(part);
  });

  it('that are missing are a note, once', async () => {
    const { done, text } = await fetched(null, 'No file matched the artifacts out, logs/**.');
    expect([done.result, done.reason, text]).toEqual([code(0), 'No file matched the artifacts out, logs/**.', null]);
  });

  it('of an answer that never ends are given up', async () => {
    const { done, took } = await fetched(() => new Readable({ read() {} }));
    expect(done).toMatchObject({ result: code(0), reason: expect.stringContaining('could not be read within 600 s') });
    expect(took).toBeLessThan(1_200_000);
  });

  it('in what is not a tar are given up after a few tries', async () => {
    const { done, calls } = await fetched(() => Readable.from([Buffer.alloc(4_096, 'x')]));
    expect(done).toMatchObject({ result: code(0), reason: expect.stringContaining('Failed to keep its artifacts') });
    expect(calls.filter((call) => call === 'artifacts').length).toBeLessThan(11);
  });
});

describe('after a restart of the controller', () => {
  type States = 'unsubmitted' | 'submitted' | 'running' | 'settling';
  /** A job that the last controller left in this state. */
  async function left(state: States) {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect();
    const hangs = () => new Promise(() => {});
    if (state === 'unsubmitted') machine.before.set('job', hangs);
    if (state === 'submitted') machine.after.set('submit', hangs);
    if (state === 'settling') machine.before.set('artifacts', hangs);
    const id = all.submit({ artifacts: ['out'], retries: state === 'running' ? 1 : 0 });
    machine.artifacts.set(id, () => tarOf({ out: 'made' }));
    if (state !== 'unsubmitted') await all.until(() => machine.begun.length === 1);
    await all.turn();
    if (state === 'settling') machine.end(id);
    if (state === 'running') machine.print(id, 'before ');
    await all.until(() => all.at(id).state === (state === 'settling' || state === 'running' ? state : all.at(id).state));
    await all.turn();
    machine.before.clear();
    machine.after.clear();
    return { all, machine, id };
  }

  it.each(['unsubmitted', 'submitted', 'running', 'settling'] as const)('a job that was %s continues', async (state) => {
    const { all, machine, id } = await left(state);
    await all.restart();
    all.start();
    await all.pass(1_000);
    machine.attach(all.jobs);
    await all.until(() => machine.begun.length === 1);
    if (state !== 'settling') machine.print(id, 'after');
    if (state !== 'settling') machine.end(id);
    expect(await all.done(id)).toMatchObject({ result: code(0), attempt: 1, reason: null });
    expect(machine.begun).toEqual([id]);
    expect(await all.output(id)).toBe({ running: 'before after', settling: '' }[state as string] ?? 'after');
    expect(await all.artifacts(id)).toContain('made');
  });

  it.each([
    ['unsubmitted', 'queued', null],
    ['submitted', 'done', { kind: 'lost', reason: 'its machine is gone' }],
    ['running', 'queued', null],
    ['settling', 'done', code(0)],
  ] as const)('with its machine gone meanwhile a job that was %s is %s', async (state, then, result) => {
    const { all, id } = await left(state);
    all.states.delete(first);
    await all.restart();
    all.start();
    await all.until(() => all.at(id).state === then);
    await all.pass(60_000);
    expect(all.at(id)).toMatchObject({ state: then, result });
  });

  it('without its host in the config a job continues where it is, and others wait', async () => {
    const { all, machine, id } = await left('submitted');
    const waits = all.submit();
    await all.restart([]);
    all.start();
    machine.attach(all.jobs);
    await all.until(() => all.at(id).state === 'running');
    machine.end(id);
    expect((await all.done(id)).result).toEqual(code(0));
    await all.pass(60_000);
    expect(all.at(waits)).toMatchObject({ state: 'queued', reason: expect.stringContaining('no longer has a pool') });
  });

  it('a cancel that its machine has not heard of reaches it', async () => {
    const { all, machine, id } = await left('running');
    machine.cut();
    await all.turn();
    all.queue.cancel(id);
    await all.restart();
    all.start();
    machine.attach(all.jobs);
    expect((await all.done(id)).result).toEqual({ kind: 'cancelled' });
  });
});

describe('a stop of the controller', () => {
  it('leaves all jobs where they are, at once, with no timer, listener or descriptor', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const machine = await all.connect(first, { slots: 5 });
    const silent = await all.connect(second);
    silent.before.set('job', () => new Promise(() => {}));
    const runs = all.submit();
    await all.until(() => all.at(runs).state === 'running');
    const settles = all.submit({ artifacts: ['out'] });
    machine.artifacts.set(settles, () => new Readable({ read() {} }));
    await all.until(() => machine.begun.includes(settles));
    machine.end(settles);
    await all.until(() => all.at(settles).state === 'settling');
    for (let more = 0; more < 4; more++) all.submit();
    await all.turn();
    const before = all.queue.list({ all: true, pool: null }).map(({ state }) => state);
    await all.jobs.close();
    await all.turn();
    expect(all.queue.list({ all: true, pool: null }).map(({ state }) => state)).toEqual(before);
    expect([all.clock.next(), machine.holds]).toEqual([null, 0]);
    expect(openAt(all.dir.path).filter((path) => path.endsWith('.log'))).toEqual([]);
    // Later events find nothing to do.
    all.jobs.look();
    all.gone();
    expect(all.jobs.connected(second, Readable.from([]) as never)).toBe(false);
    expect(all.clock.next()).toBeNull();
    machine.end(runs);
  });
});

describe('a full disk', () => {
  it('keeps a job waiting, and the controller alive, until it can be written down that a machine has it', async () => {
    const all = await world();
    all.start();
    all.refuse((what) => {
      if (what === 'commit') throw full();
    });
    const machine = await all.connect();
    const id = all.submit();
    await all.pass(120_000);
    expect([all.at(id).state, machine.jobs.size]).toEqual(['queued', 0]);
    all.refuse(null);
    await through(all, machine, id);
  });

  it.each(['commit', 'append'] as const)('(%s) at any later moment delays a job, and loses nothing', async (kind) => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit({ retries: 2, artifacts: ['out'] });
    machine.artifacts.set(id, () => tarOf({ out: 'made' }));
    let writes = 0;
    // Each write is refused once.
    const isFull = () => ++writes % 2 === 0;
    all.refuse((what) => {
      if (what === kind && isFull()) throw full();
    });
    await all.until(() => machine.begun.length === 1);
    machine.print(id, 'one ');
    await all.pass(100);
    machine.print(id, 'two');
    machine.end(id, code(5), 'A note.');
    expect(await all.done(id)).toMatchObject({ result: code(5), attempt: 1, reason: 'A note.' });
    expect([machine.begun, await all.output(id)]).toEqual([[id], 'one two']);
  });

  it('at the start of the controller does not lose what runs', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit({ retries: 1 });
    await all.until(() => all.at(id).state === 'running');
    await all.restart();
    all.refuse(() => {
      throw full();
    });
    all.start();
    machine.attach(all.jobs);
    await all.pass(120_000);
    all.refuse(null);
    machine.end(id, code(6));
    expect(await all.done(id)).toMatchObject({ result: code(6), attempt: 1 });
  });
});

describe('a hostile machine', () => {
  const hostile = `\u001b[2J\u0007a\r\nb${'x'.repeat(5_000)}`;
  const ends = async (result: unknown, reason: string | null = null) => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit();
    await all.until(() => machine.begun.length === 1);
    machine.end(id, result as JobView['result'], reason);
    return all.done(id);
  };

  it.each([
    [
      { kind: 'reported', result: 'succeeded' },
      { kind: 'lost', reason: 'its machine does not say how it ended' },
    ],
    [null, { kind: 'lost', reason: 'its machine does not say how it ended' }],
    [
      { kind: 'lost', reason: `\u001b[31m${'x'.repeat(5_000)}` },
      { kind: 'lost', reason: expect.stringMatching(/^\[31mx{900,1000}$/) },
    ],
    [
      { kind: 'signal', signal: 'SIG\nKILL' },
      { kind: 'signal', signal: 'SIG KILL' },
    ],
    [
      { kind: 'unstartable', failure: { code: `E_\u0007${'X'.repeat(5_000)}`, message: 'a\r\nb', retry: false } },
      { kind: 'unstartable', failure: { code: expect.stringMatching(/^E_ X{900,1000}$/), message: 'a b', retry: false } },
    ],
  ])('can only say results that are plain (%#)', async (said, kept) => {
    expect((await ends(said)).result).toEqual(kept);
  });

  it('can note little, without control characters', async () => {
    const { reason } = await ends(code(0), `\u001b]0;title\u0007${'note '.repeat(5_000)}`);
    expect(reason?.length).toBeLessThan(1_001);
    expect(reason).not.toMatch(/\p{Cc}/u);
  });

  it('cannot write more notes than a few into a log, however often it breaks the connection', async () => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const id = all.submit();
    await all.until(() => all.at(id).state === 'running');
    for (let at = 0; at < 150; at++) machine.print(id, `\u001b[2Jnote ${at}\n`, 'note');
    await all.turn();
    for (let at = 0; at < 3; at++) {
      machine.cut();
      machine.attach(all.jobs);
      await all.pass(60_000);
    }
    machine.end(id);
    await all.done(id);
    const notes = (await all.output(id)).match(/note:.*/g) ?? [];
    expect(notes.length).toBeGreaterThan(50);
    expect(notes.length).toBeLessThanOrEqual(100);
    expect(notes.join()).not.toMatch(/\p{Cc}/u);
  });

  it.each([
    ['submit', new OnejobError('E_MOUNT_MISSING', hostile, { retry: true }), 'a job cannot start on a machine'],
    ['artifacts', new OnejobError('E_API_ANSWER', hostile), 'a machine does not report the state of its job; retrying'],
    ['tar', new Error(hostile), 'failed to fetch artifacts from a machine; retrying'],
  ] as const)('writes little into the log, without control characters (%s, %#)', async (call, error, text) => {
    const all = await world();
    all.start();
    const machine = await all.connect();
    const fails = () => {
      throw error;
    };
    if (call !== 'tar') machine.before.set(call, fails);
    const id = all.submit({ artifacts: ['out'] });
    if (call === 'tar')
      machine.artifacts.set(id, () =>
        Readable.from(
          (async function* () {
            yield Buffer.alloc(0);
            fails();
          })(),
        ),
      );
    if (call !== 'submit') {
      await all.until(() => machine.begun.length === 1);
      machine.end(id);
    }
    await all.until(() => all.warnings.length > 0);
    const [warning = ''] = all.warnings;
    expect(warning).toContain(text);
    expect(warning).toContain('[2J a b');
    expect(warning.length).toBeLessThan(1_200);
    expect(warning).not.toMatch(/\p{Cc}|\\[nru]/u);
  });

  it('that claims any number of slots gets a few hundred jobs at most', async () => {
    const all = await world();
    all.start();
    await all.connect(first, { slots: 100_000, starts: false });
    const request = {
      job: jobRequest.parse({ command: ['true'], pool: 'burst.gpu' }),
      indices: Array.from({ length: 600 }, (_, at) => at),
    };
    all.queue.submitArray(request);
    // A few at a time, so that others get a turn.
    expect(all.jobs.on(first)).toBeLessThan(100);
    await all.until(() => all.jobs.on(first) === 512);
    await all.pass(1_000);
    expect(all.jobs.on(first)).toBe(512);
  });

  it('that answers with another job keeps only its own one waiting', async () => {
    const all = await world({ runs: [first, second] });
    all.start();
    const status = () => {
      throw new OnejobError('E_API_ANSWER', 'Cannot read the answer.');
    };
    const machine = await all.connect(first, { status });
    const other = await all.connect(second);
    const id = all.submit();
    await all.until(() => other.begun.length === 1);
    other.change(id, { id: 'ffffffffffff', command: ['rm'], pool: 'other' });
    other.end(id, code(1));
    expect(await all.done(id)).toMatchObject({ id, command: ['true'], pool: 'burst.gpu', result: code(1) });
    expect(machine.jobs.size).toBe(0);
  });
});

describe('the connection of a machine', () => {
  it('replaces an earlier one, and is refused to a machine that nobody knows', async () => {
    const all = await world();
    const pipes = [duplexPair(), duplexPair(), duplexPair()].map(([near]) => near);
    const [earlier, later, strange] = pipes as [Duplex, Duplex, Duplex];
    expect([all.jobs.connected(first, earlier), all.jobs.connected(first, later), all.jobs.connected(second, strange)]).toEqual([
      true,
      true,
      false,
    ]);
    expect([earlier.destroyed, later.destroyed]).toEqual([true, false]);
    all.gone();
    expect(later.destroyed).toBe(true);
  });

  it('is over once the machine has ended its side', async () => {
    const all = await world();
    const [near, far] = duplexPair();
    all.jobs.connected(first, near);
    far.end();
    await all.turn();
    expect(near.destroyed).toBe(true);
  });

  it('that has broken before anybody saw it replaces none', async () => {
    const all = await world();
    const [near] = duplexPair();
    const [broken] = duplexPair();
    all.jobs.connected(first, near);
    broken.destroy();
    await all.turn();
    expect(all.jobs.connected(first, broken)).toBe(false);
    expect(near.destroyed).toBe(false);
  });
});

it('runs no script twice and gives each job one result, whatever happens in whichever order (S7)', async () => {
  const weights = {
    connect: 4,
    cut: 2,
    leave: 2,
    gone: 1,
    vanish: 2,
    drain: 1,
    close: 1,
    begin: 5,
    end: 2,
    print: 1,
    submit: 5,
    cancel: 1,
    restart: 1,
    full: 1,
    room: 1,
  };
  const often = { ...weights, turn: 6, pass: 2 };
  const act = fc.record({
    do: fc.constantFrom(...Object.entries(often).flatMap(([name, weight]) => Array<string>(weight).fill(name))),
    run: fc.nat(5),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(act, { minLength: 30, maxLength: 80, size: 'max' }), async (acts) => {
      const runs = [first, second, `${first.slice(0, -1)}c`];
      const all = await world({ runs });
      all.start();
      const machines = runs.map((run) => Object.assign(new FakeMachine(run), { starts: false, slots: 2 }));
      for (const machine of machines) machine.attach(all.jobs);
      const results = new Map<string, string>();
      const ids: string[] = [];
      const look = () => {
        for (const id of ids) {
          const { state, result } = all.at(id);
          if (state !== 'done' && state !== 'settling') continue;
          expect(results.get(id) ?? JSON.stringify(result)).toBe(JSON.stringify(result));
          results.set(id, JSON.stringify(result));
        }
        const begun = machines.flatMap((machine) => machine.begun.map((id) => machine.scripts.get(id) ?? ''));
        expect(new Set(begun).size).toBe(begun.length);
      };
      for (const { do: what, run } of acts) {
        const machine = machines[run % 3] as FakeMachine;
        const open = [...machine.jobs.values()].filter(({ view }) => view.state !== 'done').map(({ view }) => view);
        const [one] = open;
        if (what === 'connect' && all.states.has(machine.run)) machine.attach(all.jobs);
        else if (what === 'cut') machine.cut();
        else if (what === 'leave') machine.leave();
        else if (what === 'gone') {
          machine.cut();
          all.gone(machine.run);
        } else if (what === 'vanish') {
          // While no controller runs.
          all.states.delete(machine.run);
          await all.restart();
          all.start();
          for (const one of machines) if (all.states.has(one.run)) one.attach(all.jobs);
        } else if (what === 'drain' && all.states.has(machine.run))
          all.states.set(machine.run, { run: machine.run, host: 'burst', state: 'draining' });
        else if (what === 'close') machine.draining = !machine.draining;
        else if (what === 'begin') for (const { id, state } of open) if (state === 'queued') machine.begin(id);
        if (what === 'end' && one?.state === 'running') machine.end(one.id, code(run));
        if (what === 'print' && one?.state === 'running') machine.print(one.id, 'x');
        if (what === 'submit') {
          all.refuse(null);
          ids.push(all.submit());
        }
        if (what === 'cancel' && ids[run] !== undefined) all.queue.cancel(ids[run]);
        if (what === 'restart') {
          await all.restart();
          all.start();
        }
        if (what === 'full')
          all.refuse(() => {
            throw full();
          });
        if (what === 'room') all.refuse(null);
        if (what === 'pass') await all.pass(run * 1_000);
        if (what === 'turn') await all.turn(run);
        look();
      }
      // In the end all machines are gone, and no job is left anywhere.
      all.refuse(null);
      for (const { run } of machines) all.gone(run);
      await all.pass(120_000);
      look();
      for (const id of ids) expect(['queued', 'done']).toContain(all.at(id).state);
      expect(runs.map((run) => all.jobs.on(run))).toEqual([0, 0, 0]);
      for (const end of endings.splice(0).reverse()) await end();
    }),
    { numRuns: 6 },
  );
});
