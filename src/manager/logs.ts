/** The content of `onejob logs`: the live and kept output of jobs and agents, and the agents' own logs. */
import { existsSync } from 'node:fs';
import { abortable } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import type { OwnQueue } from '../ci/own-queue/own-queue.ts';
import type { LogPiece, LogSource } from '../contract/manager.ts';
import type { JobView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { AgentId } from '../core/slot.ts';
import { agentLogsPath, readAgentLogs } from '../logs/agent-logs.ts';
import type { LogFollowers } from '../logs/followers.ts';
import { createPlain } from '../logs/plain.ts';
import { lastLines } from '../logs/select.ts';
import type { CiService } from '../ports/ci-service.ts';
import type { HistoryTable } from '../store/history.ts';
import type { Reconciler } from './loop/reconciler.ts';

export interface LogParts {
  readonly clock: Clock;
  readonly reconciler: Pick<Reconciler, 'placeOf' | 'slot'>;
  readonly output: Pick<LogFollowers, 'read'>;
  readonly queue: Pick<OwnQueue, 'job' | 'onChange'>;
  readonly serviceJobs: { job(id: string): JobView | null };
  readonly history: Pick<HistoryTable, 'get' | 'ofJob' | 'ofSlot'>;
  /** All CI services but the own queue. */
  readonly services: readonly Pick<CiService, 'name' | 'capabilities'>[];
  readonly stateDir: string;
}

interface Tail {
  /** First only so many of the last lines; default null: all. */
  readonly tail?: number | null;
}

interface How extends Tail {
  /** Wait for more until the agent has ended. */
  readonly follow: boolean;
}

/** Of an agent's output: all, only that of its job (stdout), or also the agent's own words until its job begins. */
type View = 'whole' | 'job' | 'words';

/** One of the passes over a log that make up an answer. All show the same: what one has counted the next one skips. */
interface Pass extends Pick<How, 'follow'> {
  readonly views: Map<AgentId, View>;
}

/** ms between looks at a job of a CI service, whose changes nobody reports. */
const lookEvery = 1_000;

export class Logs {
  readonly #parts: LogParts;

  constructor(parts: LogParts) {
    this.#parts = parts;
  }

  async *read(source: LogSource, { follow, tail = null }: How, signal: AbortSignal): AsyncGenerator<LogPiece, void> {
    const views = new Map<AgentId, View>();
    if ('job' in source) {
      yield* lastOf((more) => this.#ofJob(source.job, { follow: more, views }, signal), tail, follow);
      return;
    }
    // Looked up once: a slot may get another agent meanwhile.
    const agent = this.#agentBehind(source);
    yield* lastOf((more) => this.#ofAgent(agent, { follow: more, views }, signal), tail, follow);
  }

  /** What the agent itself has logged. @throws OnejobError E_LOG_UNKNOWN, E_JOB_UNKNOWN, E_AGENT_UNKNOWN, E_SLOT_UNKNOWN */
  async *own(source: LogSource, { tail = null }: Tail, signal: AbortSignal): AsyncGenerator<LogPiece, void> {
    yield* lastOf(this.#ownLogs(this.#agentBehind(source), signal), tail, false);
  }

  #known(id: string): JobView | null {
    return this.#parts.queue.job(id) ?? this.#parts.serviceJobs.job(id);
  }

  #jobOf(id: string): JobView {
    const job = this.#known(id);
    if (job !== null) return job;
    throw new OnejobError('E_JOB_UNKNOWN', `There is no job ${id}.`, { hint: 'See "onejob jobs --all".' });
  }

  /** The agents that ran it, the first one first. */
  #agentsOf({ id, about, agent }: JobView): AgentId[] {
    const begun = this.#parts.history.ofJob(id, 100).filter((entry) => entry.releasedAt !== null);
    const agents = begun.map((entry) => entry.agent).reverse();
    return about !== null && agent !== null && !agents.includes(agent) ? [...agents, agent] : agents;
  }

  async *#ofJob(id: string, pass: Pass, signal: AbortSignal): AsyncGenerator<LogPiece, void> {
    const read = new Set<AgentId>();
    for (let job: JobView | null = this.#jobOf(id); !signal.aborted; job = this.#known(id)) {
      // It waited, and was cancelled at its service.
      if (job === null) return;
      const fresh = this.#agentsOf(job).filter((one) => !read.has(one));
      for (const agent of fresh) {
        if (read.size > 0) yield { stream: 'note', bytes: Buffer.from(`attempt ${read.size + 1}\n`) };
        read.add(agent);
        yield* this.#ofAgent(agent, pass, signal);
      }
      if (job.state === 'done' || job.state === 'settling') return;
      // Meanwhile the job may have ended, or begun again.
      if (fresh.length > 0) continue;
      if (!pass.follow) return;
      // A CI service gives each of its jobs to one agent, and may hear of the end later than we do.
      if (job.about !== null && read.size > 0) return;
      await this.#change(id, signal);
    }
  }

  async *#ofAgent(agent: AgentId, { follow, views }: Pass, signal: AbortSignal): AsyncGenerator<LogPiece, void> {
    this.#checkAgent(agent);
    const view = views.get(agent) ?? (await this.#viewOf(agent, follow, signal));
    views.set(agent, view);
    if (view === 'whole') return yield* this.#parts.output.read(agent, { follow, signal });
    let isBegun = false;
    for await (const piece of forTerminal(this.#parts.output.read(agent, { follow, signal }))) {
      isBegun ||= piece.stream === 'stdout';
      if (piece.stream !== 'stderr' || (view === 'words' && !isBegun)) yield piece;
    }
    // The job never began, so the agent's own words are all there is.
    if (isBegun || view === 'words' || signal.aborted) return;
    for await (const piece of forTerminal(this.#parts.output.read(agent, { signal }))) if (piece.stream === 'stderr') yield piece;
  }

  async #viewOf(agent: AgentId, follow: boolean, signal: AbortSignal): Promise<View> {
    if (!this.#isSplit(agent)) return 'whole';
    // Anyone who follows it from the start hears whether the job begins.
    if (follow) return 'job';
    for await (const { stream } of this.#parts.output.read(agent, { signal })) if (stream === 'stdout') return 'job';
    return 'words';
  }

  /** Whether the agent had a job whose output is separate from its own. */
  #isSplit(agent: AgentId): boolean {
    const job = this.#parts.history.get(agent)?.job ?? null;
    const view = job === null ? null : this.#known(job);
    return this.#parts.services.some(({ name, capabilities }) => name === view?.service && capabilities.jobOnStdout);
  }

  /** An id becomes part of a path, so only known ones are allowed. */
  #checkAgent(agent: AgentId): void {
    if (this.#parts.history.get(agent) !== null || this.#parts.reconciler.placeOf(agent) !== undefined) return;
    throw new OnejobError('E_AGENT_UNKNOWN', `There is no agent ${agent}.`, {
      hint: 'See "onejob status" and "onejob jobs --all".',
    });
  }

  #agentIn(key: string, previous: boolean): AgentId {
    const slot = this.#parts.reconciler.slot(key);
    const entries = this.#parts.history.ofSlot(key, 2);
    if (slot === undefined && entries.length === 0) {
      throw new OnejobError('E_SLOT_UNKNOWN', `There is no slot ${key}.`, { hint: 'See "onejob status".' });
    }
    const found = entries[previous ? 1 : 0];
    if (found !== undefined) return found.agent;
    const which = previous ? 'previous ' : '';
    throw new OnejobError('E_AGENT_UNKNOWN', `Slot ${key} has had no ${which}agent yet.`, { hint: 'See "onejob status".' });
  }

  #agentBehind(source: LogSource): AgentId {
    if ('agent' in source) return source.agent;
    if ('slot' in source) return this.#agentIn(source.slot, source.previous);
    const agent = this.#agentsOf(this.#jobOf(source.job)).at(-1);
    if (agent !== undefined) return agent;
    throw new OnejobError('E_LOG_UNKNOWN', `Job ${source.job} has no agent yet, so there are no agent logs.`, { retry: true });
  }

  /** Resolves when the job may have changed: nobody reports changes of a job at a CI service. */
  async #change(id: string, signal: AbortSignal): Promise<void> {
    const changed = Promise.withResolvers<void>();
    const stop = this.#parts.queue.onChange((job) => {
      if (job.id === id) changed.resolve();
    });
    const callOff = this.#parts.queue.job(id) === null ? this.#parts.clock.after(lookEvery, changed.resolve) : () => {};
    await abortable(changed.promise, signal).catch(() => {});
    stop();
    callOff();
  }

  /** How to read an agent's own logs; decided once, since they may be copied meanwhile. */
  #ownLogs(agent: AgentId, signal: AbortSignal): () => AsyncIterable<LogPiece> {
    this.#checkAgent(agent);
    const path = agentLogsPath(this.#parts.stateDir, agent);
    if (existsSync(path)) return () => readAgentLogs(path, signal);
    if (this.#isSplit(agent)) return () => wordsOf(this.#parts.output.read(agent, { signal }));
    if (this.#parts.reconciler.placeOf(agent) !== undefined) {
      throw new OnejobError('E_LOG_UNKNOWN', `Agent ${agent} is still running; its own logs are copied when it ends.`, {
        hint: `Its output so far: "onejob logs ${agent}".`,
        retry: true,
      });
    }
    throw new OnejobError('E_LOG_UNKNOWN', `Agent ${agent} left no logs of its own.`, {
      hint: `Its output: "onejob logs ${agent}".`,
    });
  }
}

function lastOf(read: (follow: boolean) => AsyncIterable<LogPiece>, tail: number | null, follow: boolean) {
  return tail === null ? read(follow) : lastLines(read, tail, follow);
}

/** What an agent itself said. Nobody shows that as it is, or continues it after a lost connection, so it is made plain. */
async function* wordsOf(pieces: AsyncIterable<LogPiece>): AsyncGenerator<LogPiece, void> {
  const filter = createPlain();
  for await (const piece of pieces) {
    if (piece.stream === 'note') yield piece;
    else if (piece.stream === 'stderr') yield { stream: 'stdout', bytes: filter.take(piece.bytes) };
  }
  yield { stream: 'stdout', bytes: filter.rest() };
}

async function* forTerminal(pieces: AsyncIterable<LogPiece>): AsyncGenerator<LogPiece, void> {
  for await (const piece of pieces) yield piece.stream === 'note' ? piece : { ...piece, forTerminal: true };
}
