/** Jobs that are not over, in memory: by id, and waiting ones by pool. Changes are visible at once, and undone by a rollback. */
import type { Job } from './job.ts';

/** States of a job that an agent has. */
const hasAgent: ReadonlySet<string> = new Set(['reserved', 'assigned', 'running']);

/** Who decides whose turn it is, in place of the order of submission. */
interface Turns {
  /** Why a job may not start now though it waits for nothing else; null: it may. */
  whyHeld(job: Job): string | null;
  /** The next of these; null: none may start now. */
  choose(firsts: readonly Job[]): Job | null;
}

export class JobIndex {
  readonly #jobs = new Map<string, Job>();
  readonly #waiting = new Map<string, WaitingJobs>();
  /** Those of them that name their own image, and have a sandbox of their own. */
  readonly #ownImage = new Map<string, WaitingJobs>();
  /** How many jobs a workspace belongs to. */
  readonly #workspaces = new Map<string, number>();
  /** By the job that is needed: the jobs that wait for it. */
  readonly #blocked = new Map<string, Set<string>>();
  /** By job: what `#blocked` has of it. A job may lose its needs, and get them back by a rollback. */
  readonly #needs = new Map<string, readonly string[]>();
  readonly #undo = new Map<string, Job | null>();
  /** Those that an agent has. */
  readonly #active = new Map<string, Job>();
  readonly #isHeld: (job: Job) => boolean;
  readonly #turns: Turns | null;

  /** `isHeld`: jobs that are shown and can be cancelled, but not handed out; constant for a job. `turns`: default: users in turn. */
  constructor(isHeld: (job: Job) => boolean = () => false, turns: Turns | null = null) {
    this.#isHeld = isHeld;
    this.#turns = turns;
  }

  get(id: string): Job | null {
    return this.#jobs.get(id) ?? null;
  }

  /** Unfinished jobs, and finished ones that were not forgotten yet, in submission order. */
  all(): Job[] {
    return [...this.#jobs.values()];
  }

  /** Whether a workspace belongs to one of them. */
  hasWorkspace(workspace: string): boolean {
    return (this.#workspaces.get(workspace) ?? 0) > 0;
  }

  /** Jobs that wait until this one has passed. */
  blockedBy(id: string): Job[] {
    return [...(this.#blocked.get(id) ?? [])].flatMap((one) => this.get(one) ?? []);
  }

  /** The job of its pool that starts next. `only`: of those that name their own image. */
  head(pool: string, only?: 'ownImage'): Job | null {
    if (this.#turns !== null) return this.#turns.choose(this.firsts(pool, only));
    const first = (only === 'ownImage' ? this.#ownImage : this.#waiting).get(pool)?.head() ?? null;
    return first === null ? null : this.get(first.id);
  }

  /** The first job of everybody with each priority, in the order of turns. */
  firsts(pool: string, only?: 'ownImage'): Job[] {
    const waiting = (only === 'ownImage' ? this.#ownImage : this.#waiting).get(pool);
    return (waiting?.lines() ?? []).flatMap(([first]) => (first === undefined ? [] : (this.get(first.id) ?? [])));
  }

  /** Jobs that an agent has. */
  active(): Iterable<Job> {
    return this.#active.values();
  }

  /** The waiting jobs of its pool that may start, the next one first, then in the order of the queue. */
  *line(pool: string): Generator<Job> {
    const turns = this.#turns;
    const next = turns === null ? null : this.head(pool);
    if (next !== null) yield next;
    // Somebody may have ten thousands of jobs that ask for the same.
    const held = new Map<string, boolean>();
    const isHeld = (job: Job): boolean => {
      if (turns === null) return false;
      const { person, devices, image } = job.request;
      const key = `${person} ${devices} ${image}`;
      const known = held.get(key) ?? turns.whyHeld(job) !== null;
      held.set(key, known);
      return known;
    };
    for (const { id } of this.#waiting.get(pool) ?? []) {
      const job = this.get(id);
      if (job !== null && id !== next?.id && !isHeld(job)) yield job;
    }
  }

  /** How many jobs the pool could start now. */
  waiting(pool: string): number {
    const waiting = this.#waiting.get(pool);
    const turns = this.#turns;
    if (waiting === undefined || turns === null) return waiting?.size ?? 0;
    const mayStart = ({ id }: Waiting): boolean => {
      const job = this.get(id);
      return job !== null && turns.whyHeld(job) === null;
    };
    return waiting.lines().reduce((sum, jobs) => (jobs[0] !== undefined && mayStart(jobs[0]) ? sum + jobs.length : sum), 0);
  }

  /** How many jobs of its pool start before this one; 0 when it does not wait. */
  ahead({ id, request }: Pick<Job, 'id' | 'request'>): number {
    return this.#waiting.get(request.pool)?.ahead(id) ?? 0;
  }

  put(job: Job): void {
    const before = this.get(job.id);
    if (!this.#undo.has(job.id)) this.#undo.set(job.id, before);
    this.#set(job);
  }

  /** Keeps changes since the last commit, and returns them. `before` null: a new job. */
  commit(): { readonly before: Job | null; readonly after: Job }[] {
    const moved = [];
    for (const [id, before] of this.#undo) {
      const after = this.get(id);
      if (after !== null) moved.push({ before, after });
    }
    this.#undo.clear();
    return moved;
  }

  rollback(): void {
    for (const [id, before] of this.#undo) {
      if (before === null) this.forget(id);
      else this.#set(before);
    }
    this.#undo.clear();
  }

  forget(id: string): void {
    const job = this.get(id);
    if (job === null) return;
    for (const waiting of [this.#waiting, this.#ownImage]) waiting.get(job.request.pool)?.forget(id);
    this.#jobs.delete(id);
    this.#active.delete(id);
    this.#count(job, -1);
    this.#setNeeds(id, []);
  }

  #count({ request: { workspace } }: Job, change: 1 | -1): void {
    if (workspace === null) return;
    const now = (this.#workspaces.get(workspace) ?? 0) + change;
    if (now === 0) this.#workspaces.delete(workspace);
    else this.#workspaces.set(workspace, now);
  }

  #setNeeds(id: string, now: readonly string[]): void {
    const before = this.#needs.get(id) ?? [];
    if (before === now) return;
    for (const needed of before) {
      const waiting = this.#blocked.get(needed);
      waiting?.delete(id);
      if (waiting?.size === 0) this.#blocked.delete(needed);
    }
    for (const needed of now) this.#blocked.set(needed, (this.#blocked.get(needed) ?? new Set()).add(id));
    if (now.length === 0) this.#needs.delete(id);
    else this.#needs.set(id, now);
  }

  #set(job: Job): void {
    const { id, seq, request, progress } = job;
    const before = this.#jobs.get(id);
    if (before === undefined) this.#count(job, 1);
    // It moved to another pool, or a commit that moved it was undone.
    else if (before.request.pool !== request.pool)
      for (const waiting of [this.#waiting, this.#ownImage]) waiting.get(before.request.pool)?.forget(id);
    this.#setNeeds(id, progress.state === 'queued' ? progress.blockedBy : []);
    this.#jobs.set(id, job);
    if (hasAgent.has(progress.state)) this.#active.set(id, job);
    else this.#active.delete(id);
    const mayStart = progress.state === 'queued' && progress.blockedBy.length === 0 && !this.#isHeld(job);
    place(this.#waiting, mayStart);
    place(this.#ownImage, mayStart && progress.cold && request.image !== null);

    function place(pools: Map<string, WaitingJobs>, isThere: boolean): void {
      const waiting = pools.get(request.pool) ?? new WaitingJobs();
      pools.set(request.pool, waiting);
      if (isThere) waiting.add({ id, seq, priority: request.priority, user: request.user, person: request.person });
      else waiting.remove(id);
    }
  }
}

/** `user`: whose turn it counts as; all without a user count as one. */
export type Waiting = Pick<Job, 'id' | 'seq'> & Pick<Job['request'], 'priority' | 'user' | 'person'>;

/** A turn of a user: the first one is for the first of the user's jobs, and so on. */
interface Turn {
  readonly line: Line;
  readonly at: number;
  /** Of the job that it was made for; sorts users with the same turn. */
  readonly seq: number;
}

/** Waiting jobs of one user with one priority in submission order, and as many turns. */
interface Line {
  readonly priority: number;
  readonly jobs: Waiting[];
  readonly turns: Turn[];
  /** The last turn among them. */
  last: number;
}

/**
 * Jobs that wait in one pool, in the order in which they are started: higher priority first, then users in turn, then in submission
 * order. Finding the place of a job takes O(log n) comparisons; adding or removing it moves the jobs behind it in memory.
 *
 * Each job adds a turn after the user's last one. A user who had no waiting job enters at the turn that jobs are now taken
 * from (start-time fair queueing). So a user who submits one job behind 500 of another user waits for one of these. The turns of a
 * user go to the jobs in submission order: one that could not start before, as it needed another, comes before those after it.
 */
export class WaitingJobs {
  readonly #order: Turn[] = [];
  readonly #jobs = new Map<string, Waiting>();
  /** A job that comes back brings the turn that it took. */
  readonly #taken = new Map<string, Turn>();
  /** By priority and user. */
  readonly #lines = new Map<string, Line>();
  /** By priority: the turn that a job was last taken from. */
  readonly #now = new Map<number, number>();

  get size(): number {
    return this.#order.length;
  }

  head(): Waiting | null {
    return this.#order[0]?.line.jobs[0] ?? null;
  }

  /** Jobs of everybody with each priority, those first whose turn it is. */
  lines(): (readonly Waiting[])[] {
    const lines = [...this.#lines.values()].flatMap(({ jobs, turns: [turn] }) => (turn === undefined ? [] : [{ jobs, turn }]));
    return lines.sort((a, b) => (isTurnBefore(a.turn, b.turn) ? -1 : 1)).map(({ jobs }) => jobs);
  }

  /** In order. Nothing may change meanwhile. */
  *[Symbol.iterator](): Generator<Waiting> {
    const ranks = new Map<Line, number>();
    for (const { line } of this.#order) {
      const rank = ranks.get(line) ?? 0;
      ranks.set(line, rank + 1);
      const job = line.jobs[rank];
      if (job !== undefined) yield job;
    }
  }

  /** Adds a job; one that is already there stays where it is. */
  add(job: Waiting): void {
    if (this.#jobs.has(job.id)) return;
    const line = this.#lineOf(job);
    const now = this.#now.get(job.priority) ?? 0;
    // An empty line counts only the jobs that were taken, not those that were cancelled.
    const last = line.jobs.length === 0 ? Math.min(line.last, now) : line.last;
    const turn = this.#taken.get(job.id) ?? { line, at: Math.max(now, last + 1), seq: job.seq };
    this.#taken.delete(job.id);
    line.last = Math.max(turn.at, last);
    this.#jobs.set(job.id, job);
    line.jobs.splice(placeIn(line.jobs, job, isJobBefore), 0, job);
    line.turns.splice(placeIn(line.turns, turn, isTurnBefore), 0, turn);
    this.#order.splice(placeIn(this.#order, turn, isTurnBefore), 0, turn);
  }

  remove(id: string): void {
    const job = this.#jobs.get(id);
    if (job === undefined) return;
    const { line, turn, rank } = this.#find(job);
    if (turn === undefined) return;
    const place = placeIn(this.#order, turn, isTurnBefore);
    if (place === 0) this.#now.set(job.priority, Math.max(this.#now.get(job.priority) ?? 0, turn.at));
    this.#taken.set(id, turn);
    this.#jobs.delete(id);
    line.jobs.splice(rank, 1);
    line.turns.splice(rank, 1);
    this.#order.splice(place, 1);
  }

  /** Removes a job that never comes back. */
  forget(id: string): void {
    this.remove(id);
    this.#taken.delete(id);
  }

  /** How many jobs go before it; 0 when it is not there. */
  ahead(id: string): number {
    const job = this.#jobs.get(id);
    const turn = job === undefined ? undefined : this.#find(job).turn;
    return turn === undefined ? 0 : placeIn(this.#order, turn, isTurnBefore);
  }

  #find(job: Waiting): { readonly line: Line; readonly rank: number; readonly turn: Turn | undefined } {
    const line = this.#lineOf(job);
    const rank = placeIn(line.jobs, job, isJobBefore);
    return { line, rank, turn: line.turns[rank] };
  }

  #lineOf({ priority, user, person }: Waiting): Line {
    // What a client of root calls a user is not a person.
    const key = `${priority} ${person ?? ''} ${user ?? ''}`;
    const line = this.#lines.get(key) ?? { priority, jobs: [], turns: [], last: -1 };
    this.#lines.set(key, line);
    return line;
  }
}

function isJobBefore(a: Waiting, b: Waiting): boolean {
  return a.seq < b.seq;
}

function isTurnBefore(a: Turn, b: Turn): boolean {
  if (a.line.priority !== b.line.priority) return a.line.priority > b.line.priority;
  return a.at === b.at ? a.seq < b.seq : a.at < b.at;
}

/** How many of a sorted list come before it. */
function placeIn<T>(sorted: readonly T[], one: T, isBefore: (a: T, b: T) => boolean): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    const other = sorted[middle];
    if (other !== undefined && isBefore(other, one)) low = middle + 1;
    else high = middle;
  }
  return low;
}
