/**
 * One try to run a job of the own queue on one machine, as `onejob run` would use that machine's onejob: send the workspace, submit, keep
 * the output as it comes, fetch the artifacts. The store has where the job is before the machine hears of it, so a try continues after a
 * restart of either side from where its log ends.
 */
import { Readable } from 'node:stream';
import { type Failure, hasCode, isJobsOwn, messageOf, OnejobError, toFailure } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Job, JobChange } from '../ci/own-queue/job.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import { streams } from '../contract/gap.ts';
import type { JobView } from '../contract/schema.ts';
import { type Clock, deadline, doubling, sleep } from '../core/clock.ts';
import type { JobResult } from '../core/slot.ts';
import type { LogFollowers } from '../logs/followers.ts';
import type { LogFile } from '../logs/log-file.ts';
import type { HistoryTable } from '../store/history.ts';
import { agentOf } from '../store/machine.ts';
import { plain } from './join/protocol.ts';
import { breath, longBreath, type MachineClient, type MachineLinks, patience } from './machine-links.ts';

export interface AttemptParts {
  readonly clock: Clock;
  readonly log: Pick<Log, 'warn'>;
  readonly queue: Pick<OwnQueue, 'elsewhere' | 'settle'>;
  readonly logs: Pick<LogFollowers, 'feed' | 'unfeed'>;
  readonly history: Pick<HistoryTable, 'made' | 'released' | 'ended'>;
  readonly links: MachineLinks;
  /** Aborts when this onejob ends. */
  readonly closing: AbortSignal;
  /** Whether the machine may begin a job of the pool that it has. */
  readonly mayBegin: (run: string, pool: string) => boolean;
  /** The machine's name of a pool. */
  readonly nameThere: (pool: string) => string;
  /** The machine did not begin a job, which is not the job's fault. */
  readonly notBegun: (run: string) => void;
}

/** ms between two looks at a job that has not begun: the first, and the longest. */
const [firstLook, longestLook] = [100, 2_000];
/** Notes in the log of one attempt, and characters of any text of a machine, that are kept. */
const [mostNotes, mostText] = [100, 1_000];
/** Failures in a row of which the log tells. */
const complainAfter = 5;
/** Errors of a call that the machine did not answer, or not in a way that says what became of it. */
const unanswered = /^E_(DAEMON_|SOCKET_|API_)/;
/** Its end: two empty blocks. */
const emptyTar = Buffer.alloc(1024);

/** `failure`: why the machine refused the job; null: that says nothing about it. */
class NotBegun extends Error {
  readonly failure: unknown;
  constructor(failure: unknown = null) {
    super('the job has not begun');
    this.failure = failure;
  }
}

/** Its machine is gone, or has forgotten it; the message says so as the end of a sentence. */
class Gone extends Error {
  /** A sentence of the own queue quotes it. */
  override toString(): string {
    return this.message;
  }
}

type ChangeOf<One> = One extends JobChange ? Omit<One, 'job' | 'agent'> : never;

export class Attempt {
  readonly job: string;
  readonly run: string;
  readonly pool: string;
  readonly agent: string;
  /** The job's id on the machine. */
  readonly remote: string;
  readonly #parts: AttemptParts;
  readonly #queue: OwnQueue['elsewhere'];
  /** Aborted with a `Gone` once the machine is gone. */
  readonly #gone = new AbortController();
  /** Aborts when the machine is gone, or this onejob ends. */
  readonly #signal: AbortSignal;
  /** Whether the machine has it, as far as is known. */
  #isThere = false;
  #isCancelled = false;
  /** What the machine's onejob answered to the request as if it were another version; null: nothing of that kind. */
  #misread: OnejobError | null = null;
  /** Notes of the machine that are in its log. */
  #notes = 0;

  constructor(parts: AttemptParts, { id, request }: Job, run: string, remote: string) {
    this.#parts = parts;
    this.#queue = parts.queue.elsewhere;
    this.job = id;
    this.run = run;
    this.pool = request.pool;
    this.agent = agentOf(run, remote);
    this.remote = remote;
    this.#signal = AbortSignal.any([this.#gone.signal, parts.closing]);
  }

  /** Writes down that the machine is to have the job. */
  reserve(): void {
    const { agent, pool, run } = this;
    const { history, clock } = this.#parts;
    const slot = `${pool}/${run}`;
    this.#record({ change: 'reserved' }, () => history.made({ agent, pool, slot, name: run, madeAt: clock.wall() }));
  }

  /** The machine is gone. `why`: as the end of a sentence. */
  leave(why: string): void {
    this.#gone.abort(new Gone(why));
  }

  /** To its end. Only a stop of this onejob leaves it, for the next one. */
  async follow(): Promise<void> {
    const over = new AbortController();
    void this.#hold(AbortSignal.any([this.#signal, over.signal]));
    try {
      await this.#see();
    } finally {
      over.abort();
    }
  }

  /** Passes on that somebody cancelled the job. */
  cancelled(): void {
    if (this.#isCancelled || this.#progress?.cancelling !== true) return;
    if (!this.#isThere) {
      // It may wait for its machine to be connected.
      this.#parts.links.wake();
      return;
    }
    this.#isCancelled = true;
    this.#ask((client) => client.cancel(this.remote)).catch(() => {});
  }

  get #progress(): Job['progress'] | undefined {
    return this.#queue.get(this.job)?.progress;
  }

  #record(said: ChangeOf<JobChange>, also = (): void => {}): void {
    this.#queue.record({ ...said, job: this.job, agent: this.agent } as JobChange, also);
  }

  async #see(): Promise<void> {
    if (this.#progress?.state !== 'settling') {
      const outcome = await this.#outcome().finally(() => this.#parts.logs.unfeed(this.agent));
      if (outcome === null) return;
      await this.#persist(outcome);
    }
    await this.#settle();
  }

  /** What became of it, as what writes that down; null: this onejob ends. */
  async #outcome(): Promise<(() => void) | null> {
    try {
      const done = await this.#carry();
      const notes = done.reason === null ? [] : [oneLine(done.reason)];
      await this.#persist(() => this.#queue.annotate(this.job, notes));
      return () => this.#end({ change: 'ended', result: resultOf(done) });
    } catch (error) {
      if (this.#parts.closing.aborted) return null;
      if (error instanceof NotBegun) return this.#returned(error.failure);
      if (error instanceof Gone && this.#progress?.state === 'reserved') return this.#returned(null);
      return () => this.#end({ change: 'ended', result: { kind: 'lost', reason: oneLine(messageOf(error)) } });
    }
  }

  #returned(refusal: unknown): () => void {
    const { log, notBegun } = this.#parts;
    const failure = refusal === null ? null : toFailure(refusal);
    const isJobs = failure === null ? this.#progress?.cancelling === true : isJobsOwn(failure);
    if (!isJobs) notBegun(this.run);
    if (failure !== null)
      log.warn('a job cannot start on a machine', { job: this.job, machine: this.run, reason: oneLine(failure.message) });
    return () => this.#end({ change: 'returned', failure: failure === null ? null : plainFailure(failure) });
  }

  #end(said: ChangeOf<JobChange>): void {
    const { history, clock } = this.#parts;
    this.#record(said, () => history.ended(this.agent, null, clock.wall()));
  }

  /** Submits the job, unless the machine has it already, and follows it to its end. */
  async #carry(): Promise<JobView> {
    const { job, run, pool, agent, remote } = this;
    const { logs, history, clock, mayBegin } = this.#parts;
    const signal = this.#signal;
    const file = await this.#persist(() => logs.feed(agent));
    let view = await this.#ask(
      (client) => this.#submitted(client),
      () => this.#away(),
    );
    this.#isThere = true;
    this.cancelled();
    for (let wait = firstLook; hasNotBegun(view); wait = Math.min(wait * 2, longestLook)) {
      if (view.state === 'queued' && !mayBegin(run, pool)) await this.#ask((client) => client.cancel(remote));
      await sleep(clock, wait, signal);
      signal.throwIfAborted();
      view = await this.#ask((client) => client.job(remote));
    }
    if (view.startedAt !== null)
      await this.#persist(() => this.#record({ change: 'started' }, () => history.released(agent, job, clock.wall())));
    await this.#ask((client) => this.#keepOutput(client, file));
    const done = await this.#ask((client) => client.settled(remote, signal));
    // Nobody asked for that: it was taken back from a machine that begins nothing new, which may have begun it a moment before. One
    // that an agent has had may have begun without a time of its start.
    if (done.result?.kind === 'cancelled' && !this.#isCancelled)
      throw done.startedAt === null && done.agent === null ? new NotBegun() : new Gone('its machine has cancelled it');
    return done;
  }

  /** So that a machine that drains waits until everything was fetched. Never fails. */
  async #hold(signal: AbortSignal): Promise<void> {
    try {
      while (!signal.aborted) {
        const { ended } = await this.#askUntil(signal, (client) => client.hold(signal));
        await ended;
        await sleep(this.#parts.clock, breath, signal);
      }
    } catch {
      // The job is over, or this onejob ends.
    }
  }

  /** The job on the machine. @throws NotBegun */
  async #submitted(client: MachineClient): Promise<JobView> {
    const { job: id, remote } = this;
    const known = await client.job(remote).catch((error: unknown) => {
      if (hasCode(error, 'E_JOB_UNKNOWN')) return null;
      throw error;
    });
    if (known !== null) return known;
    if (this.#misread !== null) throw new NotBegun(this.#misread);
    const job = this.#queue.get(id);
    const { state } = job?.progress ?? {};
    if (job === null || (state !== 'reserved' && state !== 'assigned')) throw new Gone('its machine no longer knows it');
    this.#mustBegin();
    try {
      return await this.#submit(job, client);
    } catch (error) {
      const saysNothing = error instanceof OnejobError && unanswered.test(error.code);
      // Another version may not understand the request, which shows when it does not know the job afterwards.
      if (saysNothing && error.code.startsWith('E_API_')) this.#misread = error;
      throw saysNothing || error instanceof NotBegun ? error : new NotBegun(error);
    }
  }

  async #submit(job: Job, client: MachineClient): Promise<JobView> {
    // The machine knows no people.
    const { workspace, array, person: _, ...request } = job.request;
    const files = workspace === null ? null : this.#queue.openWorkspace(job, workspace);
    const sent = files === null ? null : await client.putWorkspace(files);
    // From now on the machine may begin it, whatever happens to this onejob.
    await this.#persist(() => this.#record({ change: 'assigned' }));
    // Sending may have taken long.
    this.#mustBegin();
    return await client.submit({
      ...request,
      id: this.remote,
      workspace: sent,
      pool: this.#parts.nameThere(this.pool),
      needs: [],
      retries: 0,
      attemptOf: { job: job.id, attempt: job.progress.attempt, array },
    });
  }

  /** @throws NotBegun */
  #mustBegin(): void {
    if (this.#progress?.cancelling === true || !this.#parts.mayBegin(this.run, this.pool)) throw new NotBegun();
  }

  /** Appends what comes to the log, from where that ends. */
  async #keepOutput(client: MachineClient, file: LogFile): Promise<void> {
    const { stdout, stderr } = file.position;
    const nothing = new Uint8Array(0);
    const options = { follow: true, from: { stdout, stderr }, signal: this.#signal };
    for await (const piece of client.logs({ job: this.remote }, options)) {
      const time = BigInt(this.#parts.clock.wall()) * 1_000_000n;
      const { stream, bytes, gap } = piece;
      if (stream !== 'note') file.append({ stream, time, bytes }, bytes);
      else if (++this.#notes > mostNotes) continue;
      else if (gap === undefined) file.note(oneLine(Buffer.from(bytes).toString()));
      else {
        if (gap.holes === 'here') file.append({ stream: 'stdout', time, bytes: nothing, gap: true }, nothing);
        for (const one of streams)
          if (gap.missing[one] > 0) file.append({ stream: one, time, bytes: nothing, missing: gap.missing[one] }, nothing);
      }
    }
  }

  /** Its artifacts are the last that is wanted of the machine. */
  async #settle(): Promise<void> {
    const { job, run, pool, agent, remote } = this;
    const { queue, clock, log, closing } = this.#parts;
    const context = { job, agent, pool, slot: `${pool}/${run}`, name: run, workspace: '' };
    const all = (within: AbortSignal): Promise<Readable> =>
      this.#askUntil(within, async (client) => (await client.artifacts(remote)) ?? Readable.from([emptyTar]));
    for (let failures = 1; !closing.aborted && this.#progress?.state === 'settling'; failures++) {
      try {
        await queue.settle(context, { all, folder: async () => null }, closing, this.#gone.signal);
        await this.#persist(() => this.#record({ change: 'settled' }));
      } catch (error) {
        if (closing.aborted) return;
        log.warn('failed to fetch artifacts from a machine; retrying', { job, machine: run, reason: oneLine(messageOf(error)) });
        await sleep(clock, doubling(breath, longBreath, failures), closing);
      }
    }
  }

  /** Until it is on disk: nothing else may happen to the job before. */
  async #persist<T>(write: () => T): Promise<T> {
    const { clock, log, closing } = this.#parts;
    for (let failures = 1; !closing.aborted; failures++) {
      try {
        return write();
      } catch (error) {
        log.warn('failed to record the state of a job; retrying', { reason: messageOf(error) });
        await sleep(clock, doubling(breath, longBreath, failures), closing);
      }
    }
    throw closing.reason;
  }

  #ask<T>(work: (client: MachineClient) => Promise<T>, connected?: () => Promise<void>): Promise<T> {
    return this.#askUntil(this.#signal, work, connected);
  }

  /**
   * Repeats what may be done twice until the machine has answered, or is gone: while it says nothing, nobody knows what became of the
   * job.
   */
  #askUntil<T>(signal: AbortSignal, work: (client: MachineClient) => Promise<T>, connected?: () => Promise<void>): Promise<T> {
    const { links, log } = this.#parts;
    const failed = (error: unknown, failures: number): void => {
      if (error instanceof NotBegun || error instanceof Gone) throw error;
      if (hasCode(error, 'E_JOB_UNKNOWN')) throw new Gone('its machine no longer knows it');
      if (failures !== complainAfter) return;
      const reason = oneLine(messageOf(error));
      log.warn('a machine does not report the state of its job; retrying', { machine: this.run, reason });
    };
    return links.use(this.run, signal, work, failed, connected);
  }

  /**
   * Until the machine is connected. It must not be called while a call is under way: then `reserved` proves that nothing was
   * submitted, so the job need not wait. @throws NotBegun
   */
  async #away(): Promise<void> {
    const { links, clock } = this.#parts;
    using limit = deadline(clock, patience, this.#signal);
    while (links.get(this.run) === undefined && !this.#signal.aborted) {
      const { state, cancelling } = this.#progress ?? {};
      if (state === 'reserved' && (cancelling || limit.passed)) throw new NotBegun();
      await links.next(limit.passed ? this.#signal : limit.signal);
    }
  }
}

const hasNotBegun = ({ state }: JobView): boolean => state === 'queued' || state === 'reserved' || state === 'assigned';

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
