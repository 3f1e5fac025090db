/**
 * The controller's side of machines that cannot call it: it reads their consoles, and writes their mail (line.ts, mail.ts). What is on
 * the console of a machine was written by root of that machine, and counts as a call of it.
 */

import { messageOf, OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, every } from '../../core/clock.ts';
import type { Cloud, Made } from '../../ports/cloud.ts';
import type { Machine } from '../../store/machine.ts';
import { jsonOf } from '../../system/json.ts';
import type { MachineHandler } from './handler.ts';
import { type Line, linesOf } from './line.ts';
import { joinLine, mailText, packBox } from './mail.ts';
import { type BeatCall, beatCall, hashOf, type Order } from './protocol.ts';

export interface PostParts {
  readonly clock: Clock;
  readonly log: Pick<Log, 'warn'>;
  readonly handler: MachineHandler;
  readonly machines: () => readonly Machine[];
  readonly cloudOf: (machine: Machine) => Pick<Cloud, 'console' | 'deliver'> | null;
}

/** ms between two visits to a machine that begins or ends, and to one that works: less than a report holds, see plan.ts. */
const [visitSoon, visitUsual] = [10_000, 50_000];
/** ms for which a beat counts as the newest. A machine writes one a minute. */
const beatHolds = 150_000;
/** ms after which a mail is written again: one with a box that was not taken, and another, so that the machine knows of us. */
const [boxAgain, mailAgain] = [120_000, 600_000];
/** Visits without a word of a machine that drains, after which it has never joined. */
const silentVisits = 3;
/** Refusals of its config in a row after which a machine is given up. */
const mostRefusals = 5;

/** What is known of a machine since this program started. */
class Known {
  /** Lines of its console that were heard. */
  seen: ReadonlySet<string> = new Set();
  recipient: string | null = null;
  hasWorked = false;
  beat: { readonly said: BeatCall; readonly at: number } | null = null;
  visits = 0;
  sent: { readonly what: string; readonly at: number } | null = null;
  next = 0;
  isVisited = false;
  /** The newest failure, which is told once. */
  trouble: string | null = null;
  /** How often in a row its config could not be sent. */
  refusals = 0;
}

type Reached = Pick<Cloud, 'console' | 'deliver'>;

const isListenedTo = ({ state, why }: Machine): boolean =>
  state === 'booting' || state === 'joined' || state === 'draining' || (state === 'made' && why === null);

export class Post {
  readonly #parts: PostParts;
  readonly #known = new Map<string, Known>();
  readonly #ending = new AbortController();
  #callOff = (): void => {};

  constructor(parts: PostParts) {
    this.#parts = parts;
  }

  start(): void {
    const look = async (): Promise<void> => this.#look();
    void look();
    this.#callOff = every(this.#parts.clock, visitSoon, look, () => {});
  }

  close(): void {
    this.#callOff();
    this.#ending.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
  }

  #look(): void {
    const now = this.#parts.clock.now();
    const current = this.#parts.machines().filter(isListenedTo);
    const runs = new Set(current.map(({ run }) => run));
    for (const run of this.#known.keys()) if (!runs.has(run)) this.#known.delete(run);
    for (const machine of current) {
      const known = this.#known.get(machine.run) ?? new Known();
      this.#known.set(machine.run, known);
      // A machine that was told to drain is told at once.
      const isDue = now >= known.next || (machine.state === 'draining' && known.sent?.what !== 'drain');
      if (known.isVisited || !isDue) continue;
      known.isVisited = true;
      known.next = now + (machine.state === 'joined' ? visitUsual : visitSoon);
      void this.#begin(machine, known);
    }
  }

  /** Never fails. */
  async #begin(machine: Machine, known: Known): Promise<void> {
    try {
      await this.#visit(machine, known);
      known.trouble = null;
    } catch (error) {
      const why = messageOf(error);
      if (!this.#ending.signal.aborted && known.trouble !== why)
        this.#parts.log.warn('cannot communicate with a machine through its cloud', { machine: machine.run, reason: why });
      known.trouble = why;
    } finally {
      known.isVisited = false;
    }
  }

  async #visit(machine: Machine, known: Known): Promise<void> {
    const { handler, cloudOf } = this.#parts;
    const { run, made } = machine;
    const cloud = cloudOf(machine);
    if (made === null || cloud === null) return;
    try {
      await this.#hear(run, made, known, cloud);
    } catch (error) {
      if (this.#find(run)?.state === 'joined' && !this.#ending.signal.aborted)
        handler.unheard(run, `its console cannot be read: ${messageOf(error)}`);
      throw error;
    }
    const now = this.#find(run);
    if (now === undefined || !isListenedTo(now)) return;
    known.visits = known.hasWorked ? 0 : known.visits + 1;
    if (now.state === 'draining' && now.joinedAt === null && known.visits >= silentVisits)
      return void (await handler.stage({ run, stage: 'drained', text: '' }));
    try {
      await this.#tell(now, made, known, cloud);
      known.refusals = 0;
    } catch (error) {
      if (this.#ending.signal.aborted || !(error instanceof OnejobError) || error.retry || now.joinedAt !== null) throw error;
      known.refusals += 1;
      if (known.refusals < mostRefusals || now.state === 'draining') throw error;
      await handler.stage({ run, stage: 'failed', text: messageOf(error) });
    }
  }

  #find(run: string): Machine | undefined {
    return this.#parts.machines().find((one) => one.run === run);
  }

  async #hear(run: string, made: Made, known: Known, cloud: Reached): Promise<void> {
    const { handler, clock } = this.#parts;
    const { signal } = this.#ending;
    const lines = linesOf(await cloud.console(made, signal), run);
    const fresh = lines.filter(({ raw }) => !known.seen.has(raw));
    for (const line of fresh) {
      signal.throwIfAborted();
      if (line.word === 'join') await this.#greet(run, known, line);
      else if (line.word !== 'beat') await handler.stage({ run, stage: line.word, text: line.text });
      known.hasWorked ||= line.word === 'beat' || line.word === 'joined' || line.word === 'drained';
    }
    const beat = fresh.findLast(({ word }) => word === 'beat');
    const said = beatCall.safeParse({ ...(jsonOf(beat?.text ?? '') as object | undefined), run });
    if (said.success) known.beat = { said: said.data, at: clock.now() };
    if (known.beat !== null && clock.now() - known.beat.at <= beatHolds) {
      const { said: newest, at } = known.beat;
      // It would have told of a job at once.
      await handler.beat({ ...newest, idleFor: newest.busy > 0 ? 0 : newest.idleFor + clock.now() - at });
    }
    known.seen = new Set(lines.map(({ raw }) => raw));
  }

  /** Only one key ever gets the machine's config. */
  async #greet(run: string, known: Known, { text }: Line): Promise<void> {
    const { handler } = this.#parts;
    const said = joinLine.safeParse(jsonOf(text));
    if (!said.success) return;
    const { recipient } = said.data;
    const hash = hashOf(recipient);
    const before = await handler.secretsOf(run);
    if (before === null) return;
    const isFirst = before.credential === null && (await handler.bind(run, hash));
    if (isFirst || (await handler.secretsOf(run))?.credential === hash) known.recipient = recipient;
    else await handler.stolen(run, 'its console');
  }

  async #tell({ run, state, joinedAt, tokenHash }: Machine, made: Made, known: Known, cloud: Reached): Promise<void> {
    const { handler, clock } = this.#parts;
    const isNew = state !== 'draining' && joinedAt === null;
    if (isNew && known.recipient === null) return;
    const order: Order = state === 'draining' ? 'drain' : 'stay';
    const what = isNew ? `box for ${known.recipient}` : order;
    if (known.sent?.what === what && clock.now() - known.sent.at < (isNew ? boxAgain : mailAgain)) return;
    const box = isNew && known.recipient !== null ? await packBox(await handler.belongings(run), known.recipient, tokenHash) : null;
    await cloud.deliver(made, mailText({ do: order, at: Math.floor(clock.wall() / 1000), box }), this.#ending.signal);
    known.sent = { what, at: clock.now() };
  }
}
