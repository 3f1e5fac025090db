/**
 * Jobs of the own queue on machines. Each goes to a machine that has joined and has a free slot, through the API of the machine's own
 * onejob, as `onejob run` would use it: send the workspace, submit, keep the output as it comes, fetch the artifacts. The machine
 * dials, see `join/tunnel.ts`, and this side alone asks, so a machine learns of no job but its own.
 *
 * The store has where each job is before the machine hears of it. After a restart of either side everything continues: a job that the
 * machine knows is followed from where its log ends. Only a job that the machine never had, or never began, goes back to the queue;
 * one whose machine is gone is lost.
 */
import { createHash } from 'node:crypto';
import { type Duplex, Readable } from 'node:stream';
import { type Client, createClient } from '../api/client.ts';
import { openTunnel } from '../api/tunnel.ts';
import { Waiters } from '../base/abortable.ts';
import { type Failure, hasCode, isJobsOwn, messageOf, OnejobError, toFailure } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Job, JobChange } from '../ci/own-queue/job.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { PoolConfig } from '../config/config.ts';
import { streams } from '../contract/gap.ts';
import type { JobView } from '../contract/schema.ts';
import { type Clock, deadline, doubling, sleep } from '../core/clock.ts';
import { type JobResult, takenWithJob } from '../core/slot.ts';
import { createPace } from '../http/pace.ts';
import type { LogFollowers } from '../logs/followers.ts';
import type { LogFile } from '../logs/log-file.ts';
import type { HistoryTable } from '../store/history.ts';
import { agentOf, type Machine, machinePlace } from '../store/machine.ts';
import { plain } from './join/protocol.ts';

export interface MachineJobsParts {
  readonly clock: Clock;
  readonly log: Pick<Log, 'warn'>;
  readonly version: string;
  readonly queue: Pick<OwnQueue, 'elsewhere' | 'settle' | 'onChange'>;
  readonly logs: Pick<LogFollowers, 'feed' | 'unfeed'>;
  readonly history: Pick<HistoryTable, 'made' | 'released' | 'ended'>;
  /** Those of the own queue that machines have. */
  readonly pools: readonly Pick<PoolConfig, 'name' | 'elsewhere'>[];
  /** null: no such machine may live. */
  readonly machine: (run: string) => Machine | null;
  /** Whether jobs may begin: nobody has paused everything, and this onejob does not end. */
  readonly mayStart: () => boolean;
  /** The machine has so many jobs more, or fewer, than it has said. */
  readonly counted: (run: string, change: 1 | -1, pool: string) => void;
}

export type MachineJobs = ReturnType<typeof createMachineJobs>;

/** ms between two looks at a machine, and after which an answer, or its connection for a job that was not submitted, is given up. */
const [lookEvery, patience] = [20_000, 30_000];
/** ms until the next look at one that takes no job now. */
const lookSoon = 5_000;
/**
 * ms until a failed call is made again, and until a machine that refused a job gets another one, or loses what waits in a pool that
 * is paused or backs off: its next try may succeed, and without a job there may be none.
 */
const [breath, longBreath] = [1_000, 30_000];
/** ms between two looks at a job that has not begun: the first, and the longest. */
const [firstLook, longestLook] = [100, 2_000];
/** Bytes of an answer of a machine, which is not trusted. */
const mostAnswer = 4 * 2 ** 20;
/** Slots of one pool of one machine that count, whatever it says. */
const mostSlots = 512;
/** Notes in the log of one attempt, and characters of any text of a machine, that are kept. */
const [mostNotes, mostText] = [100, 1_000];
/** Jobs that are given out, each with its own commit, before others get a turn. */
const mostAtOnce = 32;
/** Failures in a row of which the log tells. */
const complainAfter = 5;
/** Errors of a call that the machine did not answer, or not in a way that says what became of it. */
const unanswered = /^E_(DAEMON_|SOCKET_|API_)/;

/** What an attempt asks of its machine; null: the machine does not answer now. */
export type MachineClient = Pick<
  Client,
  'status' | 'job' | 'putWorkspace' | 'submit' | 'hold' | 'logs' | 'settled' | 'artifacts' | 'cancel'
>;

interface Link {
  readonly run: string;
  readonly client: MachineClient;
  /** By the machine's name of the pool: how many jobs it takes at a time. Empty while it does not answer. */
  slots: ReadonlyMap<string, number>;
  /** By the machine's name of the pool: from when on its waiting jobs are taken back, as `clock.now()`. As it last answered. */
  stuck: ReadonlyMap<string, number>;
  close(): void;
}

/** One try to run a job, on one machine. */
interface Attempt {
  readonly job: string;
  readonly run: string;
  readonly pool: string;
  readonly agent: string;
  /** The job's id on the machine. */
  readonly remote: string;
  /** Aborted with a `Gone` once the machine is gone. */
  readonly gone: AbortController;
  /** Whether the machine has it, as far as is known. */
  isThere: boolean;
  isCancelled: boolean;
  /** What the machine's onejob answered to the request as if it were another version; null: nothing of that kind. */
  misread: OnejobError | null;
  /** Notes of the machine that are in its log. */
  notes: number;
}

/** `failure`: why the machine refused the job; null: that says nothing about it. */
class NotBegun extends Error {
  readonly failure: unknown;
  constructor(failure: unknown = null) {
    super('the job has not begun');
    this.failure = failure;
  }
}

class Gone extends Error {
  /** As the end of a sentence. */
  override toString(): string {
    return this.message;
  }
}

export function createMachineJobs(parts: MachineJobsParts) {
  const { clock, log, version, queue, logs, history } = parts;
  const { elsewhere } = queue;
  const pools = parts.pools.flatMap(({ name, elsewhere: at }) => (at === undefined ? [] : [{ name, ...at }]));
  const links = new Map<string, Link>();
  const attempts = new Map<string, Attempt>();
  /** A machine that did not begin a job gets no other one before this; as `clock.now()`. */
  const notBefore = new Map<string, number>();
  const running = new Set<Promise<void>>();
  const linked = new Waiters();
  const closing = new AbortController();
  let stopListening = (): void => {};
  /** Whether it looks again at once, when others have had a turn. */
  let isLater = false;

  const countOf = (run: string, pool: string | null = null): number =>
    [...attempts.values()].filter((one) => one.run === run && (pool === null || one.pool === pool)).length;
  /** The machine's name of a pool. */
  const there = (pool: string): string => pools.find(({ name }) => name === pool)?.pool ?? pool;
  /** Whether the machine may begin a job of the pool that it has. */
  const mayBegin = (run: string, pool: string): boolean =>
    parts.machine(run)?.state === 'joined' && clock.now() < (links.get(run)?.stuck.get(there(pool)) ?? Number.POSITIVE_INFINITY);

  /** Gives waiting jobs to machines with a free slot. Never fails. */
  function look(): void {
    if (closing.signal.aborted || isLater || !parts.mayStart()) return;
    try {
      give();
    } catch (error) {
      // The next look at a machine tries it again.
      log.warn('failed to record which machine has a job; retrying', { reason: messageOf(error) });
    }
  }

  function give(): void {
    let given = 0;
    for (const { name, host, pool } of pools) {
      const hasRoom = ({ run, slots }: Link): boolean =>
        parts.machine(run)?.host === host &&
        mayBegin(run, name) &&
        clock.now() >= (notBefore.get(run) ?? 0) &&
        countOf(run, name) < (slots.get(pool) ?? 0);
      for (let job = elsewhere.head(name); job !== null; job = elsewhere.head(name)) {
        const run = [...links.values()].find(hasRoom)?.run;
        if (run === undefined) break;
        if (++given > mostAtOnce) {
          isLater = true;
          clock.after(0, () => {
            isLater = false;
            look();
          });
          return;
        }
        const next = job.progress.attempt + 1;
        const remote = next === 1 ? job.id : createHash('sha256').update(`${job.id}:${next}`).digest('hex').slice(0, 12);
        const attempt = attemptOf(job, run, remote);
        const { agent } = attempt;
        record(attempt, { change: 'reserved' }, () =>
          history.made({ agent, pool: name, slot: `${name}/${run}`, name: run, madeAt: clock.wall() }),
        );
        begin(attempt);
      }
    }
  }

  function attemptOf({ id, request }: Job, run: string, remote: string): Attempt {
    const agent = agentOf(run, remote);
    const is = { isThere: false, isCancelled: false, misread: null, notes: 0 };
    return { job: id, run, pool: request.pool, agent, remote, gone: new AbortController(), ...is };
  }

  function record({ job, agent }: Attempt, said: ChangeOf<JobChange>, also = (): void => {}): void {
    elsewhere.record({ ...said, job, agent } as JobChange, also);
  }

  function begin(attempt: Attempt): void {
    const { job, run } = attempt;
    attempts.set(job, attempt);
    parts.counted(run, 1, attempt.pool);
    const looked = new AbortController();
    void hold(run, AbortSignal.any([attempt.gone.signal, closing.signal, looked.signal]));
    const over = see(attempt)
      .catch((error: unknown) => {
        if (closing.signal.aborted) return;
        log.warn('failed to track a job on a machine', { job, machine: run, reason: messageOf(error) });
      })
      .finally(() => {
        looked.abort();
        running.delete(over);
        if (attempts.get(job) === attempt) attempts.delete(job);
        parts.counted(run, -1, attempt.pool);
        look();
      });
    running.add(over);
  }

  /** One attempt, to its end. Only a stop of this onejob leaves it, for the next one. */
  async function see(attempt: Attempt): Promise<void> {
    const { job, run, agent, gone } = attempt;
    if (elsewhere.get(job)?.progress.state !== 'settling') {
      const ended = (result: JobResult) => () =>
        record(attempt, { change: 'ended', result }, () => history.ended(agent, null, clock.wall()));
      let outcome: () => void;
      try {
        const done = await carry(attempt, AbortSignal.any([gone.signal, closing.signal]));
        outcome = ended(resultOf(done));
        const notes = done.reason === null ? [] : [oneLine(done.reason)];
        await persist(() => elsewhere.annotate(job, notes));
      } catch (error) {
        if (closing.signal.aborted) return;
        if (error instanceof NotBegun || (error instanceof Gone && elsewhere.get(job)?.progress.state === 'reserved')) {
          const failure = error instanceof NotBegun && error.failure !== null ? toFailure(error.failure) : null;
          const isJobs = failure === null ? elsewhere.get(job)?.progress.cancelling === true : isJobsOwn(failure);
          if (!isJobs) notBefore.set(run, clock.now() + longBreath);
          if (failure !== null)
            log.warn('a job cannot start on a machine', { job, machine: run, reason: oneLine(failure.message) });
          const said: ChangeOf<JobChange> = {
            change: 'returned',
            failure: failure === null ? null : plainFailure(failure),
          };
          outcome = () => record(attempt, said, () => history.ended(agent, null, clock.wall()));
        } else outcome = ended({ kind: 'lost', reason: oneLine(error instanceof Gone ? `${error}` : messageOf(error)) });
      } finally {
        logs.unfeed(agent);
      }
      await persist(outcome);
    }
    await settle(attempt);
  }

  /** Submits the job, unless the machine has it already, and follows it to its end. */
  async function carry(attempt: Attempt, signal: AbortSignal): Promise<JobView> {
    const { job, run, pool, agent, remote } = attempt;
    const file = await persist(() => logs.feed(agent));
    let view = await withMachine(
      run,
      signal,
      (client) => submitted(attempt, client),
      () => away(attempt, signal),
    );
    attempt.isThere = true;
    cancelled(attempt);
    for (let wait = firstLook; hasNotBegun(view); wait = Math.min(wait * 2, longestLook)) {
      if (view.state === 'queued' && !mayBegin(run, pool)) await withMachine(run, signal, (client) => client.cancel(remote));
      await sleep(clock, wait, signal);
      signal.throwIfAborted();
      view = await withMachine(run, signal, (client) => client.job(remote));
    }
    if (view.startedAt !== null)
      await persist(() => record(attempt, { change: 'started' }, () => history.released(agent, job, clock.wall())));
    await withMachine(run, signal, (client) => keepOutput(client, attempt, file, signal));
    const done = await withMachine(run, signal, (client) => client.settled(remote, signal));
    // Nobody asked for that: it was taken back from a machine that begins nothing new, which may have begun it a moment before. One
    // that an agent has had may have begun without a time of its start.
    if (done.result?.kind === 'cancelled' && !attempt.isCancelled)
      throw done.startedAt === null && done.agent === null ? new NotBegun() : new Gone('its machine has cancelled it');
    return done;
  }

  /** So that a machine that drains waits until everything was fetched. Never fails. */
  async function hold(run: string, signal: AbortSignal): Promise<void> {
    try {
      while (!signal.aborted) {
        const { ended } = await withMachine(run, signal, (client) => client.hold(signal));
        await ended;
        await sleep(clock, breath, signal);
      }
    } catch {
      // The job is over, or this onejob ends.
    }
  }

  /** The job on the machine. @throws NotBegun */
  async function submitted(attempt: Attempt, client: MachineClient): Promise<JobView> {
    const { job: id, run, pool, remote } = attempt;
    const known = await client.job(remote).catch((error: unknown) => {
      if (hasCode(error, 'E_JOB_UNKNOWN')) return null;
      throw error;
    });
    if (known !== null) return known;
    if (attempt.misread !== null) throw new NotBegun(attempt.misread);
    const job = elsewhere.get(id);
    const { state } = job?.progress ?? {};
    if (job === null || (state !== 'reserved' && state !== 'assigned')) throw new Gone('its machine no longer knows it');
    const check = (): void => {
      if (elsewhere.get(id)?.progress.cancelling === true || !mayBegin(run, pool)) throw new NotBegun();
    };
    check();
    const { workspace, array, ...request } = job.request;
    try {
      const files = workspace === null ? null : elsewhere.openWorkspace(job, workspace);
      const sent = files === null ? null : await client.putWorkspace(files);
      // From now on the machine may begin it, whatever happens to this onejob.
      await persist(() => record(attempt, { change: 'assigned' }));
      // Sending may have taken long.
      check();
      return await client.submit({
        ...request,
        id: remote,
        workspace: sent,
        pool: there(pool),
        needs: [],
        retries: 0,
        attemptOf: { job: id, attempt: job.progress.attempt, array },
      });
    } catch (error) {
      const saysNothing = error instanceof OnejobError && unanswered.test(error.code);
      // Another version may not understand the request, which shows when it does not know the job afterwards.
      if (saysNothing && error.code.startsWith('E_API_')) attempt.misread = error;
      throw saysNothing || error instanceof NotBegun ? error : new NotBegun(error);
    }
  }

  /** Appends what comes to the log, from where that ends. */
  async function keepOutput(client: MachineClient, attempt: Attempt, file: LogFile, signal: AbortSignal): Promise<void> {
    const { stdout, stderr } = file.position;
    const nothing = new Uint8Array(0);
    for await (const piece of client.logs({ job: attempt.remote }, { follow: true, from: { stdout, stderr }, signal })) {
      const time = BigInt(clock.wall()) * 1_000_000n;
      const { stream, bytes, gap } = piece;
      if (stream !== 'note') file.append({ stream, time, bytes }, bytes);
      else if (++attempt.notes > mostNotes) continue;
      else if (gap === undefined) file.note(oneLine(Buffer.from(bytes).toString()));
      else {
        if (gap.holes === 'here') file.append({ stream: 'stdout', time, bytes: nothing, gap: true }, nothing);
        for (const one of streams)
          if (gap.missing[one] > 0) file.append({ stream: one, time, bytes: nothing, missing: gap.missing[one] }, nothing);
      }
    }
  }

  /** Its artifacts are the last that is wanted of the machine. */
  async function settle(attempt: Attempt): Promise<void> {
    const { job, run, pool, agent, remote, gone } = attempt;
    const { signal } = closing;
    const context = { job, agent, pool, slot: `${pool}/${run}`, name: run, workspace: '' };
    const all = (within: AbortSignal): Promise<Readable> =>
      withMachine(run, within, async (client) => (await client.artifacts(remote)) ?? Readable.from([emptyTar]));
    for (let failures = 1; !signal.aborted && elsewhere.get(job)?.progress.state === 'settling'; failures++) {
      try {
        await queue.settle(context, { all, folder: async () => null }, signal, gone.signal);
        await persist(() => record(attempt, { change: 'settled' }));
      } catch (error) {
        if (signal.aborted) return;
        log.warn('failed to fetch artifacts from a machine; retrying', { job, machine: run, reason: oneLine(messageOf(error)) });
        await sleep(clock, doubling(breath, longBreath, failures), signal);
      }
    }
  }

  /** Until it is on disk: nothing else may happen to the job before. */
  async function persist<T>(write: () => T): Promise<T> {
    for (let failures = 1; !closing.signal.aborted; failures++) {
      try {
        return write();
      } catch (error) {
        log.warn('failed to record the state of a job; retrying', { reason: messageOf(error) });
        await sleep(clock, doubling(breath, longBreath, failures), closing.signal);
      }
    }
    throw closing.signal.reason;
  }

  /**
   * Repeats what may be done twice until the machine has answered, or is gone: while it says nothing, nobody knows what became of the
   * job.
   */
  async function withMachine<T>(
    run: string,
    signal: AbortSignal,
    work: (client: MachineClient) => Promise<T>,
    connected = (): Promise<void> => linked.next(signal),
  ): Promise<T> {
    for (let failures = 1; ; failures++) {
      signal.throwIfAborted();
      const link = links.get(run);
      if (link === undefined) {
        await connected();
        continue;
      }
      try {
        return await work(link.client);
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof NotBegun || error instanceof Gone) throw error;
        if (hasCode(error, 'E_JOB_UNKNOWN')) throw new Gone('its machine no longer knows it');
        if (failures === complainAfter)
          log.warn('a machine does not report the state of its job; retrying', { machine: run, reason: oneLine(messageOf(error)) });
        await sleep(clock, doubling(breath, longBreath, failures), signal);
      }
    }
  }

  /**
   * Until the machine is connected. It must not be called while a call is under way: then `reserved` proves that nothing was
   * submitted, so the job need not wait. @throws NotBegun
   */
  async function away({ job, run }: Attempt, signal: AbortSignal): Promise<void> {
    using limit = deadline(clock, patience, signal);
    while (!links.has(run) && !signal.aborted) {
      const { state, cancelling } = elsewhere.get(job)?.progress ?? {};
      if (state === 'reserved' && (cancelling || limit.passed)) throw new NotBegun();
      await linked.next(limit.passed ? signal : limit.signal);
    }
  }

  /** Passes on that somebody cancelled the job. */
  function cancelled(attempt: Attempt): void {
    const { job, run, remote, gone } = attempt;
    if (attempt.isCancelled || elsewhere.get(job)?.progress.cancelling !== true) return;
    if (!attempt.isThere) {
      // It may wait for its machine to be connected.
      linked.wake();
      return;
    }
    attempt.isCancelled = true;
    const signal = AbortSignal.any([gone.signal, closing.signal]);
    withMachine(run, signal, (client) => client.cancel(remote)).catch(() => {});
  }

  /** Looks at the machine from time to time: a broken connection says nothing for long. */
  async function watch(link: Link, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      try {
        const view = await link.client.status();
        const now = clock.now();
        const slots = new Map<string, number>();
        const stuck = new Map<string, number>();
        for (const { name, paused, backoff, draining, leaving, slots: all } of view.pools)
          if (draining || leaving) stuck.set(name, now);
          else if (paused.length > 0 || backoff !== null) stuck.set(name, link.stuck.get(name) ?? now + longBreath);
          else slots.set(name, Math.min(all.length, mostSlots));
        [link.slots, link.stuck] = [slots, stuck];
        look();
      } catch (error) {
        link.slots = new Map();
        if (hasCode(error, 'E_DAEMON_SILENT')) link.close();
      }
      await sleep(clock, link.slots.size === 0 ? lookSoon : lookEvery, signal);
    }
  }

  /** The machine has its onejob behind this client until `close` is called, or another one comes. `end` ends the connection. */
  function attach(run: string, client: MachineClient, end: () => void): () => void {
    links.get(run)?.close();
    const over = new AbortController();
    const close = (): void => {
      if (over.signal.aborted) return;
      over.abort();
      if (links.get(run) === link) links.delete(run);
      end();
    };
    const link: Link = { run, client, slots: new Map(), stuck: new Map(), close };
    links.set(run, link);
    linked.wake();
    void watch(link, over.signal);
    return close;
  }

  return {
    /** Continues with the jobs that machines had, and gives them others. */
    start(): void {
      stopListening = queue.onChange(({ id }) => {
        const attempt = attempts.get(id);
        if (attempt !== undefined) cancelled(attempt);
      });
      for (const job of elsewhere.open()) {
        const place = job.progress.agent === null ? null : machinePlace(job.progress.agent);
        if (place === null) continue;
        const attempt = attemptOf(job, place.run, place.remote);
        if (parts.machine(place.run) === null) attempt.gone.abort(new Gone('its machine is gone'));
        begin(attempt);
      }
      look();
    },
    /** Jobs wait, or a machine takes jobs again. */
    look,
    attach,
    isConnected: (run: string): boolean => links.has(run),
    /** A machine has opened a connection to its onejob. False: nobody wants it. */
    connected(run: string, pipe: Duplex): boolean {
      if (closing.signal.aborted || pipe.destroyed || parts.machine(run) === null) return false;
      const tunnel = openTunnel(pipe, createPace(clock));
      const client = createClient({ socket: `machine ${run}`, dial: tunnel.dial, version, patience, mostAnswer });
      const close = attach(run, client, () => {
        tunnel.close();
        client.close();
        pipe.destroy();
      });
      // One that has only ended would stay half open.
      pipe
        .on('error', () => {})
        .once('end', close)
        .once('close', close);
      return true;
    },
    /** No machine of that run exists any more. */
    gone({ run, stage, why }: Pick<Machine, 'run' | 'stage' | 'why'>): void {
      links.get(run)?.close();
      notBefore.delete(run);
      const reason =
        stage === 'preempted' ? takenWithJob : `its machine is gone${why === null ? '' : `: ${why.replace(/\.$/, '')}`}`;
      for (const attempt of attempts.values()) if (attempt.run === run) attempt.gone.abort(new Gone(reason));
    },
    /** Jobs that it has of this queue. */
    on: (run: string): number => countOf(run),
    /** Leaves all jobs where they are. */
    async close(): Promise<void> {
      closing.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
      stopListening();
      for (const link of [...links.values()]) link.close();
      await Promise.all(running);
    },
  };
}

type ChangeOf<One> = One extends JobChange ? Omit<One, 'job' | 'agent'> : never;

const hasNotBegun = ({ state }: JobView): boolean => state === 'queued' || state === 'reserved' || state === 'assigned';

/** Its end: two empty blocks. */
const emptyTar = Buffer.alloc(1024);

/** A text of a machine, in one line that is not long. */
const oneLine = (text: string): string => plain(text).replace(/\s+/g, ' ').trim().slice(0, mostText);

const plainFailure = (failure: Failure): Failure => ({
  ...failure,
  code: oneLine(failure.code),
  message: oneLine(failure.message),
});

function resultOf({ result }: JobView): JobResult {
  if (result === null || result.kind === 'reported') return { kind: 'lost', reason: 'its machine does not say how it ended' };
  if (result.kind === 'lost') return { kind: 'lost', reason: oneLine(result.reason) };
  if (result.kind === 'signal') return { kind: 'signal', signal: oneLine(result.signal) };
  if (result.kind === 'unstartable') return { kind: 'unstartable', failure: plainFailure(result.failure) };
  return result;
}
