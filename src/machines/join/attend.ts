/**
 * What `onejob cloud attend` does on a machine that has joined: it tells the controller what the machine does, and does what the
 * controller asks. attend-state.ts decides; this asks the daemon, the controller and the cloud, and tells it what they answered.
 */
import { Waiters } from '../../base/abortable.ts';
import { hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, deadline, sleep, Timers } from '../../core/clock.ts';
import {
  type AttendEffect,
  type AttendEvent,
  type AttendRules,
  type AttendState,
  attendStart,
  type Failed,
  lastGrace,
  type Memory,
  next,
} from './attend-state.ts';
import type { JoinClient } from './client.ts';
import type { Interruptions } from './interruptions.ts';
import type { AttendLook, LocalDaemon } from './local-daemon.ts';
import type { MachineFile, StageName } from './protocol.ts';
import type { Tunnel } from './tunnel.ts';

export interface AttendParts {
  readonly machine: Pick<MachineFile, 'guestEnds' | 'away'>;
  readonly credential: string;
  /** ms */
  readonly beat: number;
  readonly client: Pick<JoinClient, 'stage' | 'beat'>;
  readonly daemon: LocalDaemon;
  /** null: the cloud gives no notice. */
  readonly interruptions: Interruptions | null;
  /** null: the controller has no jobs of its own queue for this machine. */
  readonly tunnel: Tunnel | null;
  readonly memory: { read(): Memory | null; write(memory: Memory): void };
  /** Ends the machine. Only called where that ends it for good. */
  readonly powerOff: () => Promise<void>;
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
}

/** ms for what is done while the system shuts down; GCP leaves 30 s. And from one look to the next then. */
const [parting, closeLook] = [20_000, 200];

/** Returns once `signal` aborts, or after it has ended the machine. */
export async function attend(parts: AttendParts, signal: AbortSignal): Promise<void> {
  const over = new AbortController();
  const until = AbortSignal.any([signal, over.signal]);
  const attendant = new Attendant(parts, until, () => over.abort());
  await Promise.all([attendant.run(), parts.tunnel?.run(until)]);
}

class Attendant {
  readonly #parts: AttendParts;
  readonly #rules: AttendRules;
  readonly #until: AbortSignal;
  /** The machine has ended, or will not. */
  readonly #end: () => void;
  readonly #timers: Timers;
  readonly #events: AttendEvent[] = [{ kind: 'started' }];
  readonly #arrived = new Waiters();
  readonly #calls = new Set<Promise<void>>();
  #state: AttendState;

  constructor(parts: AttendParts, until: AbortSignal, end: () => void) {
    this.#parts = parts;
    this.#rules = { ...parts.machine, beat: parts.beat, askEvery: parts.interruptions?.every ?? null };
    this.#until = until;
    this.#end = end;
    this.#timers = new Timers(parts.clock);
    this.#state = attendStart(parts.memory.read(), parts.clock.now());
  }

  /** The loop: one event at a time. Returns when the calls that are under way have ended, too. */
  async run(): Promise<void> {
    const { clock } = this.#parts;
    while (!this.#until.aborted) {
      const event = this.#events.shift();
      if (event === undefined) {
        await this.#arrived.next(this.#until);
        continue;
      }
      const { state, effects } = next(this.#state, event, { now: clock.now(), wall: clock.wall() }, this.#rules);
      this.#state = state;
      for (const effect of effects) this.#carryOut(effect);
    }
    this.#timers.clear();
    await Promise.all(this.#calls);
  }

  #heard(event: AttendEvent): void {
    this.#events.push(event);
    this.#arrived.wake();
  }

  #call<T>(work: () => Promise<T>, ok: (value: T) => AttendEvent, failed: (error: unknown) => AttendEvent): void {
    this.#follow(
      (async () => work())()
        .then(ok, failed)
        .then((event) => this.#heard(event)),
    );
  }

  /** `run` returns only once it has ended. */
  #follow(call: Promise<void>): void {
    const followed = call.finally(() => this.#calls.delete(followed));
    this.#calls.add(followed);
  }

  #carryOut(effect: AttendEffect): void {
    const { credential, client, daemon, interruptions, clock, log } = this.#parts;
    const until = this.#until;
    switch (effect.do) {
      case 'look': {
        this.#timers.cancel('turn');
        const looked = (look: AttendLook | Failed): AttendEvent => ({ kind: 'looked', look, isAsked: this.#isAsked() });
        this.#call(
          () => daemon.look(),
          looked,
          (error) => looked(failedBy(error)),
        );
        break;
      }
      case 'drain':
        this.#act('drain', 'drain', () => daemon.drain());
        break;
      case 'down':
        this.#act('down', effect.how, async () => {
          this.#parts.memory.write(effect.memory);
          await daemon.down(effect.how, effect.grace, effect.memory.notice !== null);
        });
        break;
      case 'beat':
        this.#timers.cancel('beat');
        this.#call(
          () => client.beat(effect.said, credential, until),
          (order) => ({ kind: 'ordered', order }),
          (error) => ({ kind: 'unanswered', why: messageOf(error) }),
        );
        break;
      case 'stage':
        this.#call(
          () => client.stage(effect.stage, effect.text, credential, until),
          () => ({ kind: 'staged', refused: null }),
          (error) => ({
            kind: 'staged',
            refused: { why: messageOf(error), retry: !(error instanceof OnejobError) || error.retry },
          }),
        );
        break;
      case 'ask':
        this.#call(
          async () => (await interruptions?.look(until)) ?? null,
          (notice) => ({ kind: 'asked', notice }),
          (error) => ({ kind: 'unasked', why: messageOf(error) }),
        );
        break;
      case 'wait':
        this.#timers.arm(effect.wait, clock.now() + effect.ms, () => this.#heard({ kind: 'due', wait: effect.wait }));
        break;
      case 'remember':
        this.#remember(effect.memory);
        break;
      case 'powerOff':
        this.#follow(this.#powerOff());
        break;
      case 'log':
        log[effect.level](effect.event, effect.fields);
    }
  }

  #isAsked(): boolean {
    return this.#parts.tunnel?.isBusy() === true;
  }

  #act(how: 'drain' | 'down', goal: 'drain' | 'end', work: () => Promise<void>): void {
    const acted = (failed: Failed | null): AttendEvent => ({ kind: 'acted', how, goal, failed });
    this.#call(
      work,
      () => acted(null),
      (error) => acted(failedBy(error)),
    );
  }

  #remember(memory: Memory): void {
    try {
      this.#parts.memory.write(memory);
    } catch (error) {
      this.#parts.log.error('failed to write down what a restart must know', { reason: messageOf(error) });
    }
  }

  async #powerOff(): Promise<void> {
    const { powerOff, log } = this.#parts;
    await powerOff().catch((error: unknown) => log.error('cannot end this machine', { reason: messageOf(error) }));
    this.#end();
  }
}

const failedBy = (error: unknown): Failed => ({ isAbsent: hasCode(error, 'E_DAEMON_ABSENT'), why: messageOf(error) });

/**
 * What is left to do when the system shuts down, for any reason: GCP does it at once when it takes a machine back. Ends the jobs
 * that run while their services can still hear of it. Never fails, and takes at most `parting` ms.
 */
export async function depart(
  parts: Pick<AttendParts, 'credential' | 'client' | 'daemon' | 'interruptions' | 'clock' | 'log'>,
): Promise<void> {
  const { credential, client, daemon, interruptions, clock, log } = parts;
  using limit = deadline(clock, parting);
  const tell = (stage: StageName, text = ''): Promise<void> => client.stage(stage, text, credential, limit.signal).catch(() => {});
  const warn = async (): Promise<void> => {
    const at = (await interruptions?.look(limit.signal).catch(() => null)) ?? null;
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
