/**
 * How a manager comes to its end: asked by a person or a signal, or by itself when it is temporary and nobody needs it.
 * `finished` resolves when nothing is left, or when what is there was to be left (S10).
 */
import type { DownRequest, ForgottenView } from '../../api/schema.ts';
import type { CiService } from '../../ci/ci-service.ts';
import type { OwnQueue } from '../../ci/own-queue/own-queue.ts';
import { formatDuration } from '../../config/units.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { agentsOf, isEmpty, jobsIn, type Slot } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { RegistrationTable } from '../../store/registrations.ts';
import type { Reconciler } from './reconciler.ts';

export interface ShutdownParts {
  readonly reconciler: Reconciler;
  readonly clock: Clock;
  readonly log: Log;
  /** Why a runtime cannot be reached right now; null while it can. */
  readonly unreachable: (runtime: string) => string | null;
  /** Whether jobs are not done yet. */
  readonly busy: () => boolean;
  /** Takes back what stays at CI services otherwise, or says `instead` why not. Never fails. */
  readonly forget: (instead: string | null) => Promise<ForgottenView[]>;
  /** Gives up what is being kept of ended jobs, such as artifacts; `why` is a clause for people. */
  readonly hurry: (why: string) => void;
  readonly temporary: boolean;
  /** Whether the slot holds something that another service than the own queue is waited for, or waits for. */
  readonly isForeign: (slot: Slot) => boolean;
  /** Empties all slots but those. */
  readonly drainOthers: () => void;
}

/** How long what is kept of ended jobs may take beyond the time that jobs have to end, in ms. */
const keeping = 10_000;
/** How long a temporary manager waits for its first client, and then for another one, in ms. */
const firstClient = 10_000;
const anotherClient = 200;
/** How long a stop waits for a runtime that cannot be reached, and one that leaves something for the rest to be gone, in ms. */
const patience = 5_000;

export type Shutdown = ReturnType<typeof createShutdown>;

export function createShutdown(parts: ShutdownParts) {
  const { reconciler, log, clock, hurry, temporary, busy, isForeign, drainOthers, unreachable } = parts;
  const { forget } = parts;
  const finishing = Promise.withResolvers<DownRequest['how']>();
  const finished = finishing.promise;
  const forgetting = Promise.withResolvers<ForgottenView[]>();
  /** What came of forgetting, right before `finished` when that was asked for; never resolves when it was not. */
  const forgotten = forgetting.promise;
  let wantsForgetting = false;
  let isOver = false;
  let decided: DownRequest['how'] | null = null;
  let clientCount = 0;
  let hadClient = false;
  let signals = 0;
  let leaving: (() => void) | null = null;
  let blocked: (() => void) | null = null;
  let hurrying: (() => void) | null = null;
  let leavesForeign = false;

  /** A signal came: the first one stops as config says, the second ends agents at once, the third leaves what is left. */
  function signal(how: DownRequest['how']): void {
    signals += 1;
    if (signals === 1) begin({ how, grace: null, forget: false });
    else if (signals === 2) begin({ how: 'end', grace: 0, forget: false });
    else {
      const left = reconciler.slots.flatMap(agentsOf);
      log.warn('leaving at once', { agents: left });
      end('leave');
    }
  }

  /** Begins to stop, or hurries a stop that has begun. */
  function begin({ how, grace, forget }: DownRequest): void {
    log.info('stopping', { how, grace, forget });
    decided = how;
    wantsForgetting ||= forget;
    if (how === 'leave') {
      end('leave');
      return;
    }
    reconciler.beginStop();
    if (how === 'end') {
      for (const { key, agent, grace: usual } of reconciler.slots) {
        if (agent.kind === 'free' || agent.kind === 'proving') continue;
        reconciler.post(key, { kind: 'stop', agent: agent.agent, why: 'shutdown', grace: grace ?? usual });
      }
      hurryAfter(grace);
    }
    look();
  }

  /** A job may have made its artifacts as long to read as it likes; an end has an end. */
  function hurryAfter(grace: number | null): void {
    const longest = grace ?? Math.max(0, ...reconciler.slots.map((slot) => slot.grace));
    hurrying?.();
    const now = () => hurry('onejob was stopped while it was reading them');
    if (grace === 0) now();
    else hurrying = clock.after(longest + keeping, now);
  }

  /** Number of clients that hold a temporary manager open. */
  function clients(count: number): void {
    clientCount = count;
    if (count > 0) hadClient = true;
    look();
  }

  /** Looks whether the end has come. */
  function look(): void {
    if (decided !== null) {
      if (leavesForeign && decided === 'leave') leaveForeign();
      else if (reconciler.isEmpty) end(decided);
      else if (decided === 'end') blocked ??= clock.after(patience, () => giveUp());
      return;
    }
    leaving?.();
    leaving = null;
    if (!temporary || clientCount > 0 || busy()) return;
    leaving = clock.after(hadClient ? anotherClient : firstClient, () => endByItself());
  }

  /**
   * Nobody has asked for the end of what a daemon before this one had begun for other services: jobs of theirs may run, and the
   * next daemon takes them over (S5).
   */
  function endByItself(): void {
    const foreign = reconciler.slots.filter(isForeign);
    if (foreign.length === 0) {
      begin({ how: 'end', grace: null, forget: false });
      return;
    }
    log.info("leaving other services' agents", {
      agents: foreign.flatMap(agentsOf),
      reason: 'they do not belong to this daemon, which is temporary; "onejob up" takes them over',
    });
    decided = 'leave';
    leavesForeign = true;
    blocked = clock.after(patience, () => end('leave'));
    drainOthers();
    look();
  }

  function leaveForeign(): void {
    if (reconciler.slots.every((slot) => isEmpty(slot) || isForeign(slot))) end('leave');
  }

  /**
   * What a runtime that is away still holds can be neither ended nor removed, and waiting for it could take for ever. It
   * stays in the books, and the next manager sees to it.
   */
  function giveUp(): void {
    blocked = null;
    const held = reconciler.slots.filter((slot) => !isEmpty(slot));
    const why = held.map((slot) => unreachable(slot.runtime));
    if (why.includes(null)) {
      look();
      return;
    }
    log.warn('leaving agents that cannot be reached', { agents: held.flatMap(agentsOf), reason: why[0] ?? null });
    end('leave');
  }

  /** Nothing is taken back from CI services before nothing is here that needs it; leaving waits for nothing. */
  function end(how: DownRequest['how']): void {
    blocked?.();
    hurrying?.();
    const forgets = wantsForgetting && !isOver;
    isOver = true;
    if (!forgets) {
      if (how === 'leave' || !wantsForgetting) finishing.resolve(how);
      return;
    }
    const instead = how === 'leave' ? 'agents were left running and need it' : null;
    void forget(instead).then((forgotten) => {
      forgetting.resolve(forgotten);
      finishing.resolve(how);
    });
  }

  return {
    /** It is decided how a temporary manager ends. Nobody does afterwards what it is given now, and clients do not keep it. */
    get isEnding(): boolean {
      return temporary && decided !== null;
    },
    ...{ finished, forgotten, signal, begin, clients, look },
  };
}

/**
 * Logs what a signal to stop means for jobs that run: who pressed Ctrl-C sits before it and waits. `first`: whether it is the first
 * signal; after it whoever sends them knows. Says nothing where no job runs.
 */
export function tellStop(slots: readonly Slot[], how: 'end' | 'drain' | 'leave', first: boolean, log: Log): void {
  const running = slots.filter(({ agent }) => 'job' in agent && agent.job !== null);
  if (!first || running.length === 0) return;
  const jobs = running.length;
  const next = 'a second Ctrl-C kills them';
  if (how === 'leave') log.info('leaving running jobs', { jobs, hint: 'the next daemon takes them over' });
  else if (how === 'drain') log.info('waiting for running jobs', { jobs, hint: next });
  else
    log.info('ending running jobs', { jobs, within: formatDuration(Math.max(...running.map(({ grace }) => grace))), hint: next });
}

/**
 * What a temporary manager found in its slots that is not its own: a daemon before it had begun it, and the next one takes it over.
 * What is not `own`'s counts as another's, sandboxes at the gate as well as running jobs; so do jobs that `own` holds for their daemon.
 */
export function foreignTo(own: OwnQueue, reconciler: Reconciler): Pick<ShutdownParts, 'isForeign' | 'drainOthers'> {
  const isForeign = (slot: Slot): boolean =>
    !isEmpty(slot) && (reconciler.poolOf(slot.key).serviceOf(slot) !== own || jobsIn(slot).some((job) => own.isHeld(job)));
  return {
    isForeign,
    drainOthers() {
      const kept = new Set(reconciler.slots.filter(isForeign).map(({ key }) => reconciler.poolOf(key)));
      for (const pool of reconciler.pools) {
        // A pool that is drained takes its idle agents back from their service, too.
        if (kept.has(pool)) continue;
        pool.draining = true;
        reconciler.replanAll(pool);
      }
    },
  };
}

export interface ForgetParts {
  /** Those beside the own queue. */
  readonly services: readonly Pick<CiService, 'name' | 'forget'>[];
  readonly registrations: Pick<RegistrationTable, 'open' | 'services'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms a service may take to forget: a manager that is to end must not wait for ever. */
const forgetPatience = 60_000;

/**
 * Takes back what stays at CI services when a manager ends: their placeholders (`down --forget`). Says of each service what it has
 * no more, and what it still has: an outage at this moment leaves entries that the next manager, or a person, has to remove.
 * `instead`: why nothing may be taken back now; null when all may be.
 */
export async function forgetServices(
  { services, registrations, clock, log }: ForgetParts,
  instead: string | null,
): Promise<ForgottenView[]> {
  const names = new Set([...services.map(({ name }) => name), ...registrations.services()]);
  const forget = async (name: string): Promise<ForgottenView> => {
    const before = registrations.open(name).map((one) => one.name);
    const service = services.find((one) => one.name === name);
    const failure =
      instead ??
      (service === undefined ? `no pool of the config uses the service "${name}" any more` : await attempt(service, clock));
    const left = registrations.open(name).map((one) => one.name);
    const removed = before.filter((one) => !left.includes(one));
    const problem = left.length === 0 ? null : (failure ?? 'the service has not removed them yet');
    if (problem !== null) log.warn('registrations are left at the CI service', { service: name, left, reason: problem });
    else if (removed.length > 0) log.info('registrations forgotten', { service: name, removed });
    return { service: name, removed, left, problem };
  };
  return await Promise.all([...names].map(forget));
}

/** Names what CI services still list of agents that are gone: nobody takes that back before the next manager. */
export function tellLeft({ registrations, log }: Pick<ForgetParts, 'registrations' | 'log'>): void {
  for (const service of registrations.services()) {
    const left = registrations.open(service).filter(({ placeholder }) => !placeholder);
    if (left.length > 0)
      log.warn('entries of agents are left at the CI service; the next manager removes them', {
        service,
        left: left.map(({ name }) => name),
      });
  }
}

/** Why it could not be done; null when it was. */
async function attempt(service: Pick<CiService, 'forget'>, clock: Clock): Promise<string | null> {
  using limit = deadline(clock, forgetPatience);
  try {
    await service.forget?.(limit.signal);
    return null;
  } catch (error) {
    if (limit.passed) return `the service did not answer within ${forgetPatience / 1000} s`;
    // Without its hint, which may say that it is tried again: nobody is left who would.
    return error instanceof OnejobError ? error.message : toFailure(error).message;
  }
}
