/**
 * What `onejob cloud attend` does on a machine that has joined: it tells the controller what the machine does, and does what the
 * controller asks. It drains the daemon and ends it; it starts nothing.
 *
 * An unreachable controller changes nothing for jobs. Only a machine that has had neither a job nor a controller for a long time
 * drains itself. It never concludes from a daemon that does not answer that nothing runs.
 */
import type { Client } from '../../api/client.ts';
import { hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { PoolView } from '../../contract/schema.ts';
import { type Clock, deadline, doubling, sleep } from '../../core/clock.ts';
import type { JoinClient } from './client.ts';
import type { Notices } from './notices.ts';
import type { BeatCall, MachineFile, Order, StageName } from './protocol.ts';
import type { Tunnel } from './tunnel.ts';

/** What the machine's daemon has. */
export interface AttendLook extends Pick<BeatCall, 'busy' | 'agents' | 'slots' | 'waiting' | 'problem'> {
  /** Whether it starts nothing new. */
  readonly isDraining: boolean;
  /** When the last job ended; wall clock, ms since the epoch; null: there was none. */
  readonly lastEnd: number | null;
}

/** The daemon of this machine. Methods throw OnejobError, E_DAEMON_ABSENT if none runs. */
export interface LocalDaemon {
  look(): Promise<AttendLook>;
  /** Starts nothing new. Stays so, also after a restart. Idempotent. */
  drain(): Promise<void>;
  /** Ends the daemon: once its agents have ended, or by ending them within `grace` ms. `taken`: because the cloud takes the machine. */
  down(how: 'drain' | 'end', grace: number | null, taken: boolean): Promise<void>;
}

/** What must outlive a restart of this program. */
export interface Memory {
  readonly goal: Order;
  /** Whether the daemon was told to end, so that its absence means that it has. */
  readonly isDown: boolean;
  /** When the cloud takes the machine back; wall clock, ms since the epoch. */
  readonly notice: number | null;
}

export interface AttendParts {
  readonly machine: Pick<MachineFile, 'guestEnds' | 'away'>;
  readonly credential: string;
  /** ms */
  readonly beat: number;
  readonly client: Pick<JoinClient, 'stage' | 'beat'>;
  readonly daemon: LocalDaemon;
  /** null: the cloud gives none. */
  readonly notices: Notices | null;
  /** null: the controller has no jobs of its own queue for this machine. */
  readonly tunnel: Tunnel | null;
  readonly memory: { read(): Memory | null; write(memory: Memory): void };
  /** Ends the machine. Only called where that ends it for good. */
  readonly powerOff: () => Promise<void>;
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
}

/** ms between two looks at the daemon while it drains. */
const attentive = 2_000;
/** ms from the end of the notice back to when jobs are ended: their services still have to hear of it. */
const margin = 12_000;
/** ms that a job then gets to end by itself. */
const lastGrace = 5_000;
/** ms until the daemon is told to end once more. */
const tellAgain = 30_000;
/** ms that a drained machine waits for its end before it ends itself, and before that for the controller to fetch what its jobs made. */
const linger = 600_000;
/** ms until a stage is told again: the first try, and the longest wait. */
const [firstWait, longestWait] = [1_000, 30_000];
/** ms for what is done while the system shuts down; GCP leaves 30 s. And from one look to the next then. */
const [parting, closeLook] = [20_000, 200];

const rank: Readonly<Record<Order, number>> = { stay: 0, drain: 1, end: 2 };

/** Returns once `signal` aborts, or after it has ended the machine. */
export async function attend(parts: AttendParts, signal: AbortSignal): Promise<void> {
  const { machine, credential, beat, client, daemon, notices, memory, clock, log } = parts;
  const over = new AbortController();
  const until = AbortSignal.any([signal, over.signal]);
  let { goal, isDown, notice }: Memory = memory.read() ?? { goal: 'stay', isDown: false, notice: null };
  let look: AttendLook | null = null;
  let problem: string | null = null;
  /** Since when there is no job, and no answer of the controller. */
  let [idleSince, awaySince] = [clock.now(), clock.now()];
  let isAway = false;
  /** null: it is not drained yet. */
  let drainedAt: number | null = null;
  let endsAt: number | null = null;
  let told: { readonly goal: Order; readonly at: number } | null = null;
  /** Since when no agent is left; null: there is one. */
  let emptySince: number | null = null;
  const sayings: (readonly [StageName, string])[] = [];
  const bells = { turn: createBell(clock), beat: createBell(clock), say: createBell(clock) };

  const remember = (): void => memory.write({ goal, isDown, notice });
  const say = (stage: StageName, text = ''): void => {
    sayings.push([stage, text]);
    bells.say.ring();
  };
  /** A goal is never taken back. */
  const aim = (order: Order, why: string): void => {
    if (rank[order] <= rank[goal]) return;
    goal = order;
    remember();
    log.info(order === 'drain' ? 'draining' : 'ending', { why });
    bells.turn.ring();
  };

  /** Jobs that still run at the end of a notice are ended while their services can hear of it. */
  const heed = (at: number): void => {
    endsAt = clock.now() + Math.max(0, at - clock.wall() - margin);
    say('preempted', new Date(at).toISOString());
    aim('drain', `the cloud takes this machine back at ${new Date(at).toISOString()}`);
    bells.turn.ring();
  };

  async function observe(): Promise<void> {
    try {
      look = await daemon.look();
      problem = look.problem;
      if (look.busy > 0) idleSince = clock.now();
      // Jobs may begin and end between two looks.
      else if (look.lastEnd !== null) idleSince = Math.max(idleSince, clock.now() - Math.max(0, clock.wall() - look.lastEnd));
    } catch (error) {
      if (isDown && hasCode(error, 'E_DAEMON_ABSENT')) {
        look = { busy: 0, agents: 0, slots: 0, waiting: null, problem: null, isDraining: true, lastEnd: null };
        problem = null;
        if (drainedAt !== null) return;
        drainedAt = clock.now();
        log.info('drained');
        say('drained');
        bells.beat.ring();
        return;
      }
      problem = `the daemon does not answer: ${messageOf(error)}`;
    }
  }

  /** What the goal asks for now. Every step may be done again. */
  async function pursue(): Promise<void> {
    if (endsAt !== null && clock.now() >= endsAt) aim('end', 'the notice of the cloud is over');
    if (goal === 'stay' && isAway && longFor() > machine.away * 1000) {
      const why = 'for a long time there was neither a job nor a controller';
      aim('drain', why);
    }
    if (goal === 'stay' || drainedAt !== null || look === null) return;
    if (goal === 'drain' && !look.isDraining) {
      await daemon.drain();
      bells.turn.ring();
      return;
    }
    emptySince = look.agents > 0 ? null : (emptySince ?? clock.now());
    if (goal === 'drain' && emptySince === null) return;
    const isFetched = parts.tunnel?.isBusy() !== true || clock.now() - (emptySince ?? 0) >= linger;
    if (goal === 'drain' && !isFetched) return;
    if (told?.goal === goal && clock.now() - told.at < tellAgain) return;
    isDown = true;
    remember();
    await daemon.down(goal, goal === 'end' ? lastGrace : null, notice !== null);
    told = { goal, at: clock.now() };
  }

  /** ms without both a job and a controller. */
  function longFor(): number {
    return clock.now() - Math.max(idleSince, awaySince);
  }

  async function turns(): Promise<void> {
    let hasJoined = false;
    while (!until.aborted) {
      await observe();
      if (!hasJoined && look !== null && !isDown) {
        hasJoined = true;
        say('joined');
        bells.beat.ring();
      }
      await pursue().catch((error: unknown) => {
        // It has ended meanwhile, which the next look sees.
        if (!hasCode(error, 'E_DAEMON_ABSENT')) log.warn('the daemon did not do what it was asked', { reason: messageOf(error) });
      });
      if (drainedAt !== null && machine.guestEnds && clock.now() - drainedAt >= linger) {
        log.warn('ending this machine', { why: 'it was drained, and nobody destroyed it' });
        await parts.powerOff().catch((error: unknown) => log.error('cannot end this machine', { reason: messageOf(error) }));
        over.abort();
        return;
      }
      const due = endsAt === null || goal === 'end' ? Number.POSITIVE_INFINITY : endsAt - clock.now();
      await bells.turn.wait(Math.max(0, Math.min(goal === 'stay' ? beat : attentive, due)), until);
    }
  }

  async function beats(): Promise<void> {
    while (!until.aborted) {
      // Nothing is known before the first look.
      if (look !== null || problem !== null) {
        const { busy, agents, slots, waiting } = look ?? { busy: 0, agents: 0, slots: 0, waiting: null };
        const said = {
          busy,
          agents,
          slots,
          waiting,
          idleFor: busy > 0 ? 0 : Math.round(clock.now() - idleSince),
          problem: problem?.slice(0, 1000) ?? null,
        };
        try {
          const order = await client.beat(said, credential, until);
          if (isAway) log.info('the controller answers again');
          [isAway, awaySince] = [false, clock.now()];
          aim(order, 'the controller asks for it');
        } catch (error) {
          if (until.aborted) return;
          if (!isAway) log.warn('the controller does not answer; jobs continue', { reason: messageOf(error) });
          isAway = true;
        }
      }
      await bells.beat.wait(beat, until);
    }
  }

  /** Tells stages in their order, each until it is taken. */
  async function says(): Promise<void> {
    for (let failures = 0; !until.aborted; ) {
      const [next] = sayings;
      if (next === undefined) await bells.say.wait(Number.POSITIVE_INFINITY, until);
      else
        try {
          await client.stage(...next, credential, until);
          sayings.shift();
          failures = 0;
        } catch (error) {
          if (until.aborted) return;
          failures += 1;
          // Another try does not help against a refusal.
          if (error instanceof OnejobError && !error.retry) sayings.shift();
          if (failures === 1) log.warn('the controller did not take a stage', { stage: next[0], reason: messageOf(error) });
          await sleep(clock, doubling(firstWait, longestWait, failures), until);
        }
    }
  }

  async function watch({ every, look: ask }: Notices): Promise<void> {
    let isQuiet = false;
    while (!until.aborted && notice === null) {
      try {
        notice = await ask(until);
        isQuiet = false;
      } catch (error) {
        if (until.aborted) return;
        if (!isQuiet) log.warn('cannot ask the cloud for notices', { reason: messageOf(error) });
        isQuiet = true;
      }
      if (notice === null) await sleep(clock, every, until);
    }
    if (notice === null) return;
    remember();
    heed(notice);
  }

  await Promise.all([turns(), beats(), says(), parts.tunnel?.run(until), ...(notices === null ? [] : [watch(notices)])]);
}

/**
 * What is left to do when the system shuts down, for any reason: GCP does it at once when it takes a machine back. Ends the jobs
 * that run while their services can still hear of it. Never fails, and takes at most `parting` ms.
 */
export async function depart(
  parts: Pick<AttendParts, 'credential' | 'client' | 'daemon' | 'notices' | 'clock' | 'log'>,
): Promise<void> {
  const { credential, client, daemon, notices, clock, log } = parts;
  using limit = deadline(clock, parting);
  const tell = (stage: StageName, text = ''): Promise<void> => client.stage(stage, text, credential, limit.signal).catch(() => {});
  const warn = async (): Promise<void> => {
    const at = (await notices?.look(limit.signal).catch(() => null)) ?? null;
    if (at !== null) await tell('preempted', new Date(at).toISOString());
  };
  const warned = warn();
  log.info('ending jobs, since the system shuts down');
  for (let isAsked = false; !limit.signal.aborted; await sleep(clock, closeLook, limit.signal)) {
    try {
      if (!isAsked) await daemon.down('end', lastGrace, true);
      isAsked = true;
      await daemon.look();
    } catch (error) {
      if (!hasCode(error, 'E_DAEMON_ABSENT')) continue;
      await warned;
      await tell('drained');
      return;
    }
  }
}

/** A wait that somebody may end early, also before it begins. */
function createBell(clock: Clock) {
  let isRung = false;
  let wake = (): void => {};
  return {
    ring(): void {
      isRung = true;
      wake();
    },
    async wait(ms: number, signal: AbortSignal): Promise<void> {
      if (!isRung) {
        const rung = new AbortController();
        wake = () => rung.abort();
        const both = AbortSignal.any([signal, rung.signal]);
        if (Number.isFinite(ms)) await sleep(clock, ms, both);
        else if (!both.aborted) await new Promise((resolve) => both.addEventListener('abort', resolve, { once: true }));
      }
      isRung = false;
    },
  };
}

/** ms that services may take to forget what is registered there. */
const forgetting = 90_000;

/** Why none of the pools can start an agent; null: one can, or a person keeps them from it. */
function whyStuck(pools: readonly PoolView[]): string | null {
  const whys = pools.map(({ name, paused, backoff, draining, leaving, slots }) => {
    const isMeant = draining || leaving || paused.some((held) => held.startsWith('by '));
    if (isMeant || slots.some(({ agent }) => agent.online === true || agent.job !== null)) return null;
    const why = paused[0] ?? backoff?.reason ?? (slots.length === 0 ? 'it has no agents, since no device fits' : null);
    return why === null ? null : `pool ${name}: ${why}`;
  });
  return whys.includes(null) ? null : (whys[0] ?? null);
}

/** The daemon behind a socket. */
export function localDaemon(
  client: Pick<Client, 'status' | 'endedJobs' | 'drain' | 'down' | 'forgotten'>,
  { clock, log }: Pick<AttendParts, 'clock' | 'log'>,
): LocalDaemon {
  return {
    async look() {
      const { pools, problems } = await client.status();
      const [last] = await client.endedJobs({ limit: 1 });
      const slots = pools.flatMap((pool) => pool.slots);
      const known = pools.flatMap(({ waiting }) => (waiting === null ? [] : [waiting]));
      const agents = slots.flatMap(({ agent, standby, leaving }) => [agent.agent, standby.agent, ...leaving]);
      return {
        busy: slots.filter(({ agent }) => agent.job !== null || agent.state === 'busy').length,
        agents: agents.filter((one) => one !== null).length,
        slots: slots.length,
        waiting: known.length === 0 ? null : known.reduce((sum, one) => sum + one, 0),
        problem: problems[0] ?? whyStuck(pools),
        isDraining: pools.every(({ draining, leaving }) => draining || leaving),
        lastEnd: last?.endedAt ?? null,
      };
    },
    drain: () => client.drain(null),
    async down(how, grace, taken) {
      // Asked for first: once it is told to end, the daemon may be gone at once.
      void tellLeft();
      await client.down({ how, grace, forget: true, taken });
    },
  };

  /** What services did not forget is for the controller's sweep. */
  async function tellLeft(): Promise<void> {
    using limit = deadline(clock, forgetting);
    const late = new Promise<[]>((resolve) => limit.signal.addEventListener('abort', () => resolve([]), { once: true }));
    const forgotten = await Promise.race([client.forgotten().catch(() => []), late]);
    for (const { service, left, problem } of forgotten)
      if (problem !== null) log.warn('entries are left at a CI service', { service, left, reason: problem });
  }
}
