/**
 * Buildkite's agent as it runs in a sandbox (`start --acquire-job`), acted out in virtual time: it registers, acquires its one job,
 * sends the log and its heartbeats, asks whether the job is still wanted, says how it ended, and exits; or it misbehaves. How often
 * it tries what, and with which exit code it gives up, is the real agent's (v3.137).
 */
import type { Ask, Reply } from './buildkite-wire.ts';
import type { SimTime } from './time.ts';
import { pass } from './wire.ts';

/** What a job does; stands in its command. */
export interface Work {
  /** Virtual ms. */
  readonly ms: number;
  readonly exit: number;
  /** Lines that it prints, half of them at its end. */
  readonly says?: number;
  /**
   * `dies`: its sandbox ends with it (137). `vanishes`: its agent ends and tells nobody (0). `lingers`: its agent stays for ten
   * minutes after the job's end. `deaf`: neither it nor its agent hears that it should end.
   */
  readonly bad?: 'dies' | 'vanishes' | 'lingers' | 'deaf';
}

/** How an agent begins. */
export type Habit =
  | { readonly kind: 'comes'; readonly ms: number }
  /** It never says a word. */
  | { readonly kind: 'silent' }
  | { readonly kind: 'ends'; readonly ms: number; readonly code: number };

/** Its sandbox, as it sees it. */
export interface Inside {
  print(text: string): void;
  /** What it does when TERM comes, instead of ending by it. */
  onTerm(fn: () => void): void;
  end(code: number): void;
  /** Ends with the sandbox, however that comes. */
  readonly ended: AbortSignal;
}

export interface AgentParts {
  readonly time: SimTime;
  readonly random: () => number;
  readonly ask: Ask;
  readonly inside: Inside;
  readonly habit: (job: string) => Habit;
  /** `unheard`: it gave up telling the service that the job began, or how it ended. */
  readonly hears: (what: 'begins' | 'ends' | 'unheard', job: string) => void;
}

/** Variables that the script sets. */
export function variablesIn(script: string): Readonly<Record<string, string>> {
  return Object.fromEntries([...script.matchAll(/^export (\w+)='([^']*)'$/gm)].map(([, name = '', value = '']) => [name, value]));
}

class Refused extends Error {
  readonly status: number;

  constructor(status: number) {
    super(`refused with ${status}`);
    this.status = status;
  }
}

interface Tries {
  readonly most: number;
  /** ms between two. */
  readonly every: number;
  /** A status below 500 after which it is tried again, beside 429. */
  readonly also?: number;
}

/** Runs it to its end. Never rejects. */
export async function runAgent(parts: AgentParts, script: string): Promise<void> {
  const { time, inside } = parts;
  const { BUILDKITE_AGENT_TOKEN: token = '', BUILDKITE_AGENT_ACQUIRE_JOB: job = '', ...others } = variablesIn(script);
  const grace = Number(others.BUILDKITE_CANCEL_GRACE_PERIOD ?? 10) * 1_000;
  const habit = parts.habit(job);
  try {
    if (habit.kind === 'silent') return;
    await pass(time, habit.ms, inside.ended);
    if (habit.kind === 'ends') return inside.end(habit.code);
    await new Agent(parts, { token, job, name: others.BUILDKITE_AGENT_NAME ?? '', grace }).run();
  } catch (error) {
    if (!inside.ended.aborted) throw error;
  }
}

interface About {
  readonly token: string;
  readonly job: string;
  readonly name: string;
  readonly grace: number;
}

class Agent {
  readonly #parts: AgentParts;
  readonly #about: About;
  /** Ends the job early: why, for the service. */
  readonly #cancel = Promise.withResolvers<string>();
  #isWanted = true;

  constructor(parts: AgentParts, about: About) {
    this.#parts = parts;
    this.#about = about;
  }

  async run(): Promise<void> {
    const { inside, random } = this.#parts;
    const { token, job, name } = this.#about;
    const body = { name, hostname: 'box', ignore_in_dispatches: true, version: '3.137.0', build: '1', meta_data: [] };
    const registered = await this.#until('POST', 'register', { token, body }, { most: 30, every: 10_000 });
    if (registered instanceof Error) return inside.end(1);
    const { access_token: session, heartbeat_interval, job_status_interval } = registered.json as Record<string, unknown>;
    const own = { token: String(session) };
    if ((await this.#until('POST', 'connect', own, { most: 10, every: 5_000 })) instanceof Error) return inside.end(1);
    inside.onTerm(() => this.#end('agent_stop'));
    const given = await this.#until('PUT', `jobs/${job}/acquire`, own, { most: 7, every: 5_000, also: 423 });
    if (given instanceof Error) {
      await this.#until('POST', 'disconnect', own, { most: 4, every: 1_000 });
      return inside.end(given instanceof Refused && given.status === 422 ? 27 : 1);
    }
    const { env, token: jobToken } = given.json as { readonly env: Record<string, string>; readonly token: string };
    const work = JSON.parse(env.BUILDKITE_COMMAND ?? '{}') as Work;
    const ofJob = { token: jobToken };
    const over = new AbortController();
    inside.ended.addEventListener('abort', () => over.abort(inside.ended.reason), { once: true });
    void this.#every(Number(heartbeat_interval) * 1_000, over.signal, () => this.#beat(own));
    let status = 0;
    const started = await this.#until('PUT', `jobs/${job}/start`, { ...ofJob, body: {} }, { most: 7, every: 5_000 });
    if (!(started instanceof Error)) {
      void this.#every(Number(job_status_interval) * 1_000, over.signal, () => this.#look(ofJob));
      const finished = await this.#work(work, ofJob);
      if (finished === null) return;
      status = finished.exit_status === '-1' ? 255 : Number(finished.exit_status);
      const told = await this.#until('PUT', `jobs/${job}/finish`, { ...ofJob, body: finished }, { most: 12, every: 50_000 });
      if (told instanceof Error && !(told instanceof Refused && told.status < 429)) this.#parts.hears('unheard', job);
    } else this.#parts.hears('unheard', job);
    over.abort(new Error('over'));
    await this.#until('POST', 'disconnect', own, { most: 4, every: 1_000 });
    if (work.bad === 'lingers') await this.#pass(600_000 * random());
    // As the job ended (`--reflect-exit-status`).
    inside.end(status);
  }

  /** How it ended, for the service; null: nobody is told. */
  async #work(work: Work, ofJob: { readonly token: string }): Promise<Record<string, unknown> | null> {
    const { inside, hears } = this.#parts;
    const { job, grace } = this.#about;
    const said = `line of ${job}\n`.repeat(Math.ceil((work.says ?? 0) / 2));
    hears('begins', job);
    inside.print(said);
    void this.#send(job, ofJob, said, 0);
    const isDeaf = work.bad === 'deaf';
    const cancelled = isDeaf ? null : await Promise.race([this.#pass(work.ms).then(() => null), this.#cancel.promise]);
    if (isDeaf) await this.#pass(work.ms);
    hears('ends', job);
    if (work.bad === 'dies' || work.bad === 'vanishes') {
      inside.end(work.bad === 'dies' ? 137 : 0);
      return null;
    }
    if (cancelled !== null) {
      await this.#pass(Math.min(grace, 1_000));
      return { exit_status: '-1', signal: 'SIGTERM', signal_reason: cancelled, chunks_failed_count: 0 };
    }
    inside.print(said);
    await this.#send(job, ofJob, said, 1);
    return { exit_status: String(work.exit), chunks_failed_count: 0, ignore_agent_in_dispatches: true };
  }

  #end(why: string): void {
    if (!this.#isWanted) return;
    this.#isWanted = false;
    this.#cancel.resolve(why);
  }

  async #send(job: string, ofJob: { readonly token: string }, said: string, sequence: number): Promise<void> {
    if (said === '') return;
    const size = Buffer.byteLength(said);
    const path = `jobs/${job}/chunks?sequence=${sequence + 1}&offset=${sequence * size}&size=${size}`;
    await this.#until('POST', path, { ...ofJob, body: said }, { most: 12, every: 50_000 }).catch(() => {});
  }

  async #beat(own: { readonly token: string }): Promise<void> {
    const answer = await this.#until('POST', 'heartbeat', { ...own, body: {} }, { most: 10, every: 5_000 });
    // The service has taken it for lost: the agent stops at once, and its job with it.
    if (answer instanceof Refused && answer.status < 429) this.#parts.inside.end(1);
  }

  async #look(ofJob: { readonly token: string }): Promise<void> {
    const answer = await this.#until('GET', `jobs/${this.#about.job}`, ofJob, { most: 1, every: 0 });
    const { state = '' } = answer instanceof Error ? {} : ((answer.json ?? {}) as { readonly state?: string });
    const isGone = answer instanceof Refused && answer.status === 401;
    if (isGone || state === 'canceling' || state === 'canceled') this.#end('cancel');
  }

  /** Until `signal` aborts. */
  async #every(ms: number, signal: AbortSignal, act: () => Promise<void>): Promise<void> {
    const { time, random } = this.#parts;
    try {
      for (;;) {
        await pass(time, ms * (0.9 + random() / 5), signal);
        await act();
      }
    } catch (error) {
      if (!signal.aborted && !this.#parts.inside.ended.aborted) throw error;
    }
  }

  #pass(ms: number): Promise<void> {
    return pass(this.#parts.time, ms, this.#parts.inside.ended);
  }

  /** The answer, or why it gave up. @throws what its sandbox ended with */
  async #until(
    method: string,
    path: string,
    { token, body }: { readonly token: string; readonly body?: unknown },
    { most, every, also }: Tries,
  ): Promise<Reply | Error> {
    const { ask, inside } = this.#parts;
    let last: Error = new Error('never tried');
    for (let tries = 1; tries <= most; tries++) {
      let wait = every;
      try {
        const reply = await ask(method, path, { token, body, signal: inside.ended });
        const { status } = reply;
        if (status < 300) return reply;
        last = new Refused(status);
        if (status < 500 && status !== 429 && status !== also) return last;
        const after = Number(reply.headers['retry-after']);
        if (Number.isFinite(after)) wait = Math.max(after * 1_000, 100);
      } catch (error) {
        inside.ended.throwIfAborted();
        last = error as Error;
      }
      if (tries < most) await this.#pass(wait);
    }
    return last;
  }
}
