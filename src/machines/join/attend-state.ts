/**
 * What a machine that has joined does next: pure. Its daemon, its controller and its cloud are asked by attend.ts; each answer is an
 * event here, and what is to be asked, said or done next are effects, in their order. Every effect may be carried out again.
 *
 * It drains the daemon and ends it; it starts nothing. An unreachable controller changes nothing for jobs. Only a machine that has had
 * neither a job nor a controller for a long time drains itself. It never concludes from a daemon that does not answer that nothing runs.
 */
import { doubling } from '../../core/clock.ts';
import type { AttendLook } from './local-daemon.ts';
import type { BeatCall, MachineFile, Order, StageName } from './protocol.ts';

/** What must outlive a restart of this program. */
export interface Memory {
  readonly goal: Order;
  /** Whether the daemon was told to end, so that its absence means that it has. */
  readonly isDown: boolean;
  /** When the cloud takes the machine back; wall clock, ms since the epoch. */
  readonly notice: number | null;
}

export interface AttendRules extends Pick<MachineFile, 'guestEnds' | 'away'> {
  /** ms from one beat to the next. */
  readonly beat: number;
  /** ms from one look for a notice of the cloud to the next; null: the cloud gives none. */
  readonly askEvery: number | null;
}

/** What is done again and again: it may be asked for while it is under way, and is then done once more. */
interface Round {
  readonly isRunning: boolean;
  readonly again: boolean;
}

/** Times are ms of the monotonic clock. */
export interface AttendState extends Memory {
  readonly look: AttendLook | null;
  /** Why the machine cannot work, or is not known to. */
  readonly problem: string | null;
  readonly hasJoined: boolean;
  /** Since when there is no job, and no answer of the controller. */
  readonly idleSince: number;
  readonly awaySince: number;
  readonly isAway: boolean;
  /** null: it is not drained yet. */
  readonly drainedAt: number | null;
  /** When jobs are ended, because the cloud takes the machine; null: it does not. */
  readonly endsAt: number | null;
  /** What the daemon was last told. */
  readonly told: { readonly goal: Order; readonly at: number } | null;
  /** Since when no agent is left; null: there is one. */
  readonly emptySince: number | null;
  /** A look at the daemon, and what follows from it. */
  readonly turn: Round;
  readonly beat: Round;
  /** What the controller has to be told, in this order, each until it is taken. */
  readonly stages: readonly (readonly [StageName, string])[];
  readonly isStaging: boolean;
  /** Stages that were not taken, in a row. */
  readonly failures: number;
  /** Whether the cloud could not be asked for a notice, so that the log has it. */
  readonly isUnasked: boolean;
}

/** What an answer was not. `isAbsent`: no daemon runs. */
export interface Failed {
  readonly isAbsent: boolean;
  readonly why: string;
}

export type Wait = 'turn' | 'beat' | 'stage' | 'ask';

export type AttendEvent =
  | { readonly kind: 'started' }
  /** A wait is over. */
  | { readonly kind: 'due'; readonly wait: Wait }
  /** `isAsked`: the controller asks this machine something, or is about to. */
  | { readonly kind: 'looked'; readonly look: AttendLook | Failed; readonly isAsked: boolean }
  /** The daemon was told to drain or to end. */
  | { readonly kind: 'acted'; readonly how: 'drain' | 'down'; readonly goal: Order; readonly failed: Failed | null }
  | { readonly kind: 'ordered'; readonly order: Order }
  | { readonly kind: 'unanswered'; readonly why: string }
  /** `refused`: null: it was taken; else why not, and whether another try may help. */
  | { readonly kind: 'staged'; readonly refused: { readonly why: string; readonly retry: boolean } | null }
  /** `notice`: null: the cloud does not take the machine back, as far as it says. */
  | { readonly kind: 'asked'; readonly notice: number | null }
  | { readonly kind: 'unasked'; readonly why: string };

export type AttendEffect =
  | { readonly do: 'look' }
  | { readonly do: 'drain' }
  /** `memory` is written first. */
  | { readonly do: 'down'; readonly how: 'drain' | 'end'; readonly grace: number | null; readonly memory: Memory }
  | { readonly do: 'beat'; readonly said: Omit<BeatCall, 'run'> }
  | { readonly do: 'stage'; readonly stage: StageName; readonly text: string }
  | { readonly do: 'ask' }
  | { readonly do: 'remember'; readonly memory: Memory }
  | { readonly do: 'wait'; readonly wait: Wait; readonly ms: number }
  /** Ends the machine; it is the last effect. */
  | { readonly do: 'powerOff' }
  | {
      readonly do: 'log';
      readonly level: 'info' | 'warn';
      readonly event: string;
      readonly fields?: Readonly<Record<string, string>>;
    };

/** ms between two looks at the daemon while it drains. */
const attentive = 2_000;
/** ms from the end of the notice back to when jobs are ended: their services still have to hear of it. */
const margin = 12_000;
/** ms that a job then gets to end by itself. */
export const lastGrace = 5_000;
/** ms until the daemon is told to end once more. */
const tellAgain = 30_000;
/** ms that a drained machine waits for its end before it ends itself, and before that for the controller to fetch what its jobs made. */
const linger = 600_000;
/** ms until a stage is told again: the first try, and the longest wait. */
const [firstWait, longestWait] = [1_000, 30_000];

const rank: Readonly<Record<Order, number>> = { stay: 0, drain: 1, end: 2 };
const still: Round = { isRunning: false, again: false };
/** A daemon that was told to end, and is gone. */
const nothing: AttendLook = { busy: 0, agents: 0, slots: 0, waiting: null, problem: null, isDraining: true, lastEnd: null };

export const attendStart = (memory: Memory | null, now: number): AttendState => ({
  ...(memory ?? { goal: 'stay', isDown: false, notice: null }),
  look: null,
  problem: null,
  hasJoined: false,
  idleSince: now,
  awaySince: now,
  isAway: false,
  drainedAt: null,
  endsAt: null,
  told: null,
  emptySince: null,
  turn: still,
  beat: still,
  stages: [],
  isStaging: false,
  failures: 0,
  isUnasked: false,
});

/** `now`: of the monotonic clock, `wall`: since the epoch; ms. */
export interface AttendTime {
  readonly now: number;
  readonly wall: number;
}

export function next(
  state: AttendState,
  event: AttendEvent,
  time: AttendTime,
  rules: AttendRules,
): { readonly state: AttendState; readonly effects: readonly AttendEffect[] } {
  const step: Step = { state: { ...state }, effects: [], rules, ...time };
  react(step, event);
  return { state: step.state, effects: step.effects };
}

/** A new state and its effects, while they are put together. */
interface Step extends AttendTime {
  readonly state: { -readonly [K in keyof AttendState]: AttendState[K] };
  readonly effects: AttendEffect[];
  readonly rules: AttendRules;
}

function react(step: Step, event: AttendEvent): void {
  const { state, effects, rules } = step;
  switch (event.kind) {
    case 'started':
      turnNow(step);
      beatNow(step);
      if (rules.askEvery === null) return;
      if (state.notice === null) effects.push({ do: 'ask' });
      else heed(step, state.notice);
      return;
    case 'due':
      if (event.wait === 'turn') turnNow(step);
      else if (event.wait === 'beat') beatNow(step);
      else if (event.wait === 'stage') stageNow(step);
      else effects.push({ do: 'ask' });
      return;
    case 'looked':
      seen(step, event.look);
      if (!pursue(step, event.isAsked)) endTurn(step);
      return;
    case 'acted':
      acted(step, event);
      endTurn(step);
      return;
    case 'ordered':
      if (state.isAway) tell(step, 'info', 'the controller answers again');
      state.isAway = false;
      state.awaySince = step.now;
      aim(step, event.order, 'the controller asks for it');
      endBeat(step);
      return;
    case 'unanswered':
      if (!state.isAway) tell(step, 'warn', 'the controller does not answer; jobs continue', { reason: event.why });
      state.isAway = true;
      endBeat(step);
      return;
    case 'staged':
      staged(step, event.refused);
      return;
    case 'asked':
      state.isUnasked = false;
      if (event.notice === null) askLater(step);
      else {
        state.notice = event.notice;
        remember(step);
        heed(step, event.notice);
      }
      return;
    case 'unasked':
      if (!state.isUnasked) tell(step, 'warn', 'cannot ask the cloud for notices', { reason: event.why });
      state.isUnasked = true;
      askLater(step);
  }
}

function tell({ effects }: Step, level: 'info' | 'warn', event: string, fields?: Readonly<Record<string, string>>): void {
  effects.push({ do: 'log', level, event, ...(fields !== undefined && { fields }) });
}

function askLater({ effects, rules: { askEvery } }: Step): void {
  if (askEvery !== null) effects.push({ do: 'wait', wait: 'ask', ms: askEvery });
}

const memoryOf = ({ goal, isDown, notice }: Memory): Memory => ({ goal, isDown, notice });

function remember({ state, effects }: Step): void {
  effects.push({ do: 'remember', memory: memoryOf(state) });
}

/** A goal is never taken back. */
function aim(step: Step, order: Order, why: string): void {
  const { state } = step;
  if (rank[order] <= rank[state.goal]) return;
  state.goal = order;
  remember(step);
  tell(step, 'info', order === 'drain' ? 'draining' : 'ending', { why });
  turnNow(step);
}

/** Jobs that still run at the end of a notice are ended while their services can hear of it. */
function heed(step: Step, at: number): void {
  step.state.endsAt = step.now + Math.max(0, at - step.wall - margin);
  say(step, 'preempted', new Date(at).toISOString());
  aim(step, 'drain', `the cloud takes this machine back at ${new Date(at).toISOString()}`);
  turnNow(step);
}

function seen(step: Step, look: AttendLook | Failed): void {
  const { state, now, wall } = step;
  if (!('why' in look)) {
    state.look = look;
    state.problem = look.problem;
    if (look.busy > 0) state.idleSince = now;
    // Jobs may begin and end between two looks.
    else if (look.lastEnd !== null) state.idleSince = Math.max(state.idleSince, now - Math.max(0, wall - look.lastEnd));
  } else if (state.isDown && look.isAbsent) {
    state.look = nothing;
    state.problem = null;
    if (state.drainedAt !== null) return;
    state.drainedAt = now;
    tell(step, 'info', 'drained');
    say(step, 'drained');
    beatNow(step);
  } else state.problem = `the daemon does not answer: ${look.why}`;
  if (state.hasJoined || state.look === null || state.isDown) return;
  state.hasJoined = true;
  say(step, 'joined');
  beatNow(step);
}

/** What the goal asks for now. Whether the daemon is told something, whose answer ends the turn. */
function pursue(step: Step, isAsked: boolean): boolean {
  const { state, effects, now, rules } = step;
  if (state.endsAt !== null && now >= state.endsAt) aim(step, 'end', 'the notice of the cloud is over');
  const alone = now - Math.max(state.idleSince, state.awaySince);
  if (state.goal === 'stay' && state.isAway && alone > rules.away * 1000)
    aim(step, 'drain', 'for a long time there was neither a job nor a controller');
  const { goal, look } = state;
  if (goal === 'stay' || state.drainedAt !== null || look === null) return false;
  if (goal === 'drain' && !look.isDraining) {
    effects.push({ do: 'drain' });
    return true;
  }
  state.emptySince = look.agents > 0 ? null : (state.emptySince ?? now);
  const { emptySince, told } = state;
  if (goal === 'drain' && (emptySince === null || (isAsked && now - emptySince < linger))) return false;
  if (told?.goal === goal && now - told.at < tellAgain) return false;
  state.isDown = true;
  effects.push({ do: 'down', how: goal, grace: goal === 'end' ? lastGrace : null, memory: memoryOf(state) });
  return true;
}

function acted(step: Step, { how, goal, failed }: Extract<AttendEvent, { kind: 'acted' }>): void {
  const { state, now } = step;
  if (failed === null) {
    if (how === 'drain') turnNow(step);
    else state.told = { goal, at: now };
  }
  // Without a daemon, it has ended meanwhile, which the next look sees.
  else if (!failed.isAbsent) tell(step, 'warn', 'the daemon did not do what it was asked', { reason: failed.why });
}

/** Looks at the daemon now, or again once this turn is over. */
function turnNow({ state, effects }: Step): void {
  if (!state.turn.isRunning) effects.push({ do: 'look' });
  state.turn = { isRunning: true, again: state.turn.isRunning };
}

function endTurn(step: Step): void {
  const { state, effects, now, rules } = step;
  if (state.drainedAt !== null && rules.guestEnds && now - state.drainedAt >= linger) {
    tell(step, 'warn', 'ending this machine', { why: 'it was drained, and nobody destroyed it' });
    effects.push({ do: 'powerOff' });
    return;
  }
  const isDue = state.turn.again;
  state.turn = still;
  if (isDue) {
    turnNow(step);
    return;
  }
  const left = state.endsAt === null || state.goal === 'end' ? Number.POSITIVE_INFINITY : state.endsAt - now;
  const ms = Math.max(0, Math.min(state.goal === 'stay' ? rules.beat : attentive, left));
  effects.push({ do: 'wait', wait: 'turn', ms });
}

/** Tells the controller what the machine does, now or once the beat that is under way is over. Nothing is known before the first look. */
function beatNow(step: Step): void {
  const { state, effects, now } = step;
  if (state.look === null && state.problem === null) {
    endBeat(step);
    return;
  }
  const isRunning = state.beat.isRunning;
  state.beat = { isRunning: true, again: isRunning };
  if (isRunning) return;
  const { busy, agents, slots, waiting } = state.look ?? { busy: 0, agents: 0, slots: 0, waiting: null };
  const idleFor = busy > 0 ? 0 : Math.round(now - state.idleSince);
  effects.push({ do: 'beat', said: { busy, agents, slots, waiting, idleFor, problem: state.problem?.slice(0, 1000) ?? null } });
}

function endBeat(step: Step): void {
  const isDue = step.state.beat.again;
  step.state.beat = still;
  if (isDue) beatNow(step);
  else step.effects.push({ do: 'wait', wait: 'beat', ms: step.rules.beat });
}

function say(step: Step, stage: StageName, text = ''): void {
  step.state.stages = [...step.state.stages, [stage, text]];
  if (!step.state.isStaging) stageNow(step);
}

function stageNow({ state, effects }: Step): void {
  const [first] = state.stages;
  state.isStaging = first !== undefined;
  if (first !== undefined) effects.push({ do: 'stage', stage: first[0], text: first[1] });
}

function staged(step: Step, refused: { readonly why: string; readonly retry: boolean } | null): void {
  const { state, effects } = step;
  const [stage = ''] = state.stages[0] ?? [];
  // Another try does not help against a refusal.
  if (refused === null || !refused.retry) state.stages = state.stages.slice(1);
  state.failures = refused === null ? 0 : state.failures + 1;
  if (refused === null) stageNow(step);
  else effects.push({ do: 'wait', wait: 'stage', ms: doubling(firstWait, longestWait, state.failures) });
  if (refused !== null && state.failures === 1)
    tell(step, 'warn', 'the controller did not take a stage', { stage, reason: refused.why });
}
