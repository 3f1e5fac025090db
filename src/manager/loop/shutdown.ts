/**
 * The end of a manager: by a person, by a signal, or by itself if it is temporary and nobody needs it. `finished` resolves when
 * nothing is left, or when the rest was meant to be left (S10).
 */

import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { formatDuration } from '../../base/units.ts';
import type { OwnQueue } from '../../ci/own-queue/own-queue.ts';
import type { DownRequest, ForgottenView } from '../../contract/schema.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import { type AgentId, agentsOf, isEmpty, jobsIn, type Slot } from '../../core/slot.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { RegistrationTable } from '../../store/registrations.ts';
import type { Reconciler } from './reconciler.ts';

export interface ShutdownParts {
  readonly reconciler: Reconciler;
  readonly clock: Clock;
  readonly log: Log;
  /** Why a runtime cannot be reached now; null if it can. */
  readonly unreachable: (runtime: string) => string | null;
  /** Why the job of an agent that has ended cannot be settled, such as a service that is away; null: that did not fail. */
  readonly unsettled: (agent: AgentId) => string | null;
  /** Whether there are unfinished jobs. */
  readonly busy: () => boolean;
  /** Removes what would stay at CI services; `instead` says why not. Never fails. */
  readonly forget: (instead: string | null) => Promise<ForgottenView[]>;
  /** Stops keeping artifacts and the like of ended jobs; `why` is a clause for people. */
  readonly hurry: (why: string) => void;
  readonly temporary: boolean;
  /** Whether the slot holds something of another service than the own queue. */
  readonly isForeign: (slot: Slot) => boolean;
  /** Empties all other slots. */
  readonly drainOthers: () => void;
}

/** ms that keeping files of ended jobs may take beyond their grace. */
const keeping = 10_000;
/** ms that a temporary manager waits for its first client, and for another one. */
const firstClient = 10_000;
const anotherClient = 200;
/** ms that a stop waits for an unreachable runtime, and that leaving foreign slots waits for the rest to be gone. */
const patience = 5_000;

type How = DownRequest['how'];

export class Shutdown {
  readonly #parts: ShutdownParts;
  readonly #finishing = Promise.withResolvers<How>();
  readonly #forgetting = Promise.withResolvers<ForgottenView[]>();
  #wantsForgetting = false;
  #isOver = false;
  #decided: How | null = null;
  #clients = 0;
  #hadClient = false;
  #signals = 0;
  #leaving: (() => void) | null = null;
  #blocked: (() => void) | null = null;
  #hurrying: (() => void) | null = null;
  /** Nobody waits any more for what ended jobs still need. */
  #isHurried = false;
  #leavesForeign = false;

  constructor(parts: ShutdownParts) {
    this.#parts = parts;
  }

  /** A temporary manager has decided to end. It accepts no new requests, and clients do not keep it alive. */
  get isEnding(): boolean {
    return this.#parts.temporary && this.#decided !== null;
  }

  /** How it was told to end; null: not at all. */
  get decided(): How | null {
    return this.#decided;
  }

  get finished(): Promise<How> {
    return this.#finishing.promise;
  }

  /** The result of forgetting, right before `finished`; never resolves if it was not requested. */
  get forgotten(): Promise<ForgottenView[]> {
    return this.#forgetting.promise;
  }

  /** Handles a signal: the first stops as config says, the second ends agents at once, the third leaves the rest. */
  signal(how: How): void {
    this.#signals += 1;
    if (this.#signals === 1) this.begin({ how, grace: null, forget: false });
    else if (this.#signals === 2) this.begin({ how: 'end', grace: 0, forget: false });
    else {
      this.#parts.log.warn('leaving at once', { agents: this.#parts.reconciler.slots.flatMap(agentsOf) });
      this.#end('leave');
    }
  }

  /** Begins to stop, or hurries a stop that has begun. */
  begin({ how, grace, forget, taken = false }: DownRequest): void {
    const { log, reconciler } = this.#parts;
    log.info('stopping', { how, grace, forget, ...(taken && { taken }) });
    this.#decided = how;
    this.#wantsForgetting ||= forget;
    if (how === 'leave') {
      this.#end('leave');
      return;
    }
    reconciler.beginStop();
    if (how === 'end') {
      const why = taken ? 'taken' : 'shutdown';
      for (const { key, agent, grace: usual } of reconciler.slots) {
        if (agent.kind === 'free' || agent.kind === 'proving') continue;
        reconciler.post(key, { kind: 'stop', agent: agent.agent, why, grace: grace ?? usual });
      }
      this.#hurryAfter(grace);
    }
    this.look();
  }

  /** Sets the number of clients that keep a temporary manager alive. */
  clients(count: number): void {
    this.#clients = count;
    if (count > 0) this.#hadClient = true;
    this.look();
  }

  /** Checks whether to end. */
  look(): void {
    const { reconciler, clock, temporary, busy, isForeign } = this.#parts;
    if (this.#decided !== null) {
      if (this.#leavesForeign && this.#decided === 'leave') {
        if (reconciler.slots.every((slot) => isEmpty(slot) || isForeign(slot))) this.#end('leave');
      } else if (reconciler.isEmpty) this.#end(this.#decided);
      else if (this.#decided === 'end' && !this.#isOver) this.#blocked ??= clock.after(patience, () => this.#giveUp());
      return;
    }
    this.#leaving?.();
    this.#leaving = null;
    if (!temporary || this.#clients > 0 || busy()) return;
    this.#leaving = clock.after(this.#hadClient ? anotherClient : firstClient, () => this.#endByItself());
  }

  /** Reading a job's artifacts may take any time, but a stop must end. */
  #hurryAfter(grace: number | null): void {
    const { clock, hurry, reconciler } = this.#parts;
    const longest = grace ?? Math.max(0, ...reconciler.slots.map((slot) => slot.grace));
    this.#hurrying?.();
    const now = () => {
      this.#isHurried = true;
      hurry('onejob was stopped while it was reading them');
    };
    if (grace === 0) now();
    else this.#hurrying = clock.after(longest + keeping, now);
  }

  /**
   * Nobody asked to end what a previous daemon had begun for other services. Their jobs may run, and the next daemon adopts them
   * (S5).
   */
  #endByItself(): void {
    const { reconciler, log, clock, isForeign, drainOthers } = this.#parts;
    const foreign = reconciler.slots.filter(isForeign);
    if (foreign.length === 0) {
      this.begin({ how: 'end', grace: null, forget: false });
      return;
    }
    log.info("leaving other services' agents", {
      agents: foreign.flatMap(agentsOf),
      reason: 'they do not belong to this daemon, which is temporary; "onejob up" takes them over',
    });
    this.#decided = 'leave';
    this.#leavesForeign = true;
    this.#blocked = clock.after(patience, () => this.#end('leave'));
    drainOthers();
    this.look();
  }

  /**
   * Sandboxes of an unreachable runtime can be neither ended nor removed, and a service that is away cannot say how its job ended.
   * Waiting could take forever. They stay recorded for the next manager.
   */
  #giveUp(): void {
    const { reconciler, log, unreachable } = this.#parts;
    this.#blocked = null;
    const held = reconciler.slots.filter((slot) => !isEmpty(slot));
    const why = held.map((slot) => unreachable(slot.runtime) ?? (this.#isHurried ? this.#unsettled(slot) : null));
    if (why.includes(null)) {
      this.look();
      return;
    }
    const isAway = held.some((slot) => unreachable(slot.runtime) !== null);
    const what = isAway ? 'leaving agents that cannot be reached' : 'leaving ended jobs of a service that does not answer';
    log.warn(what, { agents: held.flatMap(agentsOf), reason: why[0] ?? null });
    this.#end('leave');
  }

  /** Why nothing but jobs that cannot be settled keeps the slot; null: something else does. */
  #unsettled({ agent, standby, leaving }: Slot): string | null {
    if (agent.kind !== 'free' || standby.kind !== 'none') return null;
    const whys = leaving.map((one) => this.#parts.unsettled(one.agent));
    return whys.includes(null) ? null : (whys[0] ?? null);
  }

  /** Entries at CI services are removed only once nothing here needs them; leaving waits for nothing. */
  #end(how: How): void {
    this.#blocked?.();
    this.#hurrying?.();
    const forgets = this.#wantsForgetting && !this.#isOver;
    this.#isOver = true;
    if (!forgets) {
      if (how === 'leave' || !this.#wantsForgetting) this.#finishing.resolve(how);
      return;
    }
    const instead = how === 'leave' ? 'agents were left running and need it' : null;
    void this.#parts.forget(instead).then((forgotten) => {
      this.#forgetting.resolve(forgotten);
      this.#finishing.resolve(how);
    });
  }
}

/**
 * Logs what a signal to stop means for running jobs, for the person who pressed Ctrl-C and waits. `first`: only the first signal
 * is explained. Logs nothing without running jobs.
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
 * The slots that a temporary manager found but does not own: a previous daemon began their work, and the next one adopts it. All
 * slots of services other than `own` count, with sandboxes at the gate, and jobs that `own` holds for their daemon.
 */
export function foreignTo(own: OwnQueue, reconciler: Reconciler): Pick<ShutdownParts, 'isForeign' | 'drainOthers'> {
  const isForeign = (slot: Slot): boolean =>
    !isEmpty(slot) && (reconciler.poolOf(slot.key).serviceOf(slot) !== own || jobsIn(slot).some((job) => own.isHeld(job)));
  return {
    isForeign,
    drainOthers() {
      const kept = new Set(reconciler.slots.filter(isForeign).map(({ key }) => reconciler.poolOf(key)));
      for (const pool of reconciler.pools) {
        // Draining a pool also removes its idle agents from their service.
        if (kept.has(pool)) continue;
        pool.draining = true;
        reconciler.replanAll(pool);
      }
    },
  };
}

export interface ForgetParts {
  /** All CI services but the own queue. */
  readonly services: readonly Pick<CiService, 'name' | 'forget'>[];
  readonly registrations: Pick<RegistrationTable, 'open' | 'services'>;
  readonly clock: Clock;
  readonly log: Log;
}

/** ms that a service may take to forget: an ending manager must not wait forever. */
const forgetPatience = 60_000;

/**
 * Removes placeholders from CI services when a manager ends (`down --forget`). Reports for each service what was removed and what
 * is left: after an outage the next manager, or a person, has to remove the rest. `instead`: why nothing may be removed now; null
 * if everything may be.
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

/** Logs the entries of ended agents that CI services still list. The next manager removes them. */
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

/** Why it failed; null if it succeeded. */
async function attempt(service: Pick<CiService, 'forget'>, clock: Clock): Promise<string | null> {
  using limit = deadline(clock, forgetPatience);
  try {
    await service.forget?.(limit.signal);
    return null;
  } catch (error) {
    if (limit.passed) return `the service did not answer within ${forgetPatience / 1000} s`;
    // Without its hint, which may promise a retry that nobody makes.
    return messageOf(error);
  }
}
