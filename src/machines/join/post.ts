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
import type { Desk } from './desk.ts';
import { type Line, linesOf } from './line.ts';
import { joinLine, mailText, packBox } from './mail.ts';
import { type BeatCall, beatCall, hashOf, type Order } from './protocol.ts';

export interface PostParts {
  readonly clock: Clock;
  readonly log: Pick<Log, 'warn'>;
  readonly desk: Desk;
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
interface Known {
  /** Lines of its console that were heard. */
  seen: ReadonlySet<string>;
  recipient: string | null;
  hasWorked: boolean;
  beat: { readonly said: BeatCall; readonly at: number } | null;
  visits: number;
  sent: { readonly what: string; readonly at: number } | null;
  next: number;
  isVisited: boolean;
  /** The newest failure, which is told once. */
  trouble: string | null;
  /** How often in a row its config could not be sent. */
  refusals: number;
}

export function createPost({ clock, log, desk, machines, cloudOf }: PostParts) {
  const all = new Map<string, Known>();
  const ending = new AbortController();
  const { signal } = ending;
  let callOff = (): void => {};

  const isListenedTo = ({ state, why }: Machine): boolean =>
    state === 'booting' || state === 'joined' || state === 'draining' || (state === 'made' && why === null);
  const find = (run: string): Machine | undefined => machines().find((one) => one.run === run);

  async function hear(machine: Machine, made: Made, known: Known, cloud: Pick<Cloud, 'console'>): Promise<void> {
    const { run } = machine;
    const lines = linesOf(await cloud.console(made, signal), run);
    const fresh = lines.filter(({ raw }) => !known.seen.has(raw));
    for (const line of fresh) {
      signal.throwIfAborted();
      if (line.word === 'join') await greet(machine, known, line);
      else if (line.word !== 'beat') await desk.stage({ run, stage: line.word, text: line.text });
      known.hasWorked ||= line.word === 'beat' || line.word === 'joined' || line.word === 'drained';
    }
    const beat = fresh.findLast(({ word }) => word === 'beat');
    const said = beatCall.safeParse({ ...(jsonOf(beat?.text ?? '') as object | undefined), run });
    if (said.success) known.beat = { said: said.data, at: clock.now() };
    if (known.beat !== null && clock.now() - known.beat.at <= beatHolds) {
      const { said: newest, at } = known.beat;
      // It would have told of a job at once.
      await desk.beat({ ...newest, idleFor: newest.busy > 0 ? 0 : newest.idleFor + clock.now() - at });
    }
    known.seen = new Set(lines.map(({ raw }) => raw));
  }

  /** Only one key ever gets the machine's config. */
  async function greet({ run }: Machine, known: Known, { text }: Line): Promise<void> {
    const said = joinLine.safeParse(jsonOf(text));
    if (!said.success) return;
    const { recipient } = said.data;
    const hash = hashOf(recipient);
    const before = await desk.secretsOf(run);
    if (before === null) return;
    const isFirst = before.credential === null && (await desk.bind(run, hash));
    if (isFirst || (await desk.secretsOf(run))?.credential === hash) known.recipient = recipient;
    else await desk.stolen(run, 'its console');
  }

  async function tell(machine: Machine, made: Made, known: Known, cloud: Pick<Cloud, 'deliver'>): Promise<void> {
    const { run, state, joinedAt, tokenHash } = machine;
    const isNew = state !== 'draining' && joinedAt === null;
    if (isNew && known.recipient === null) return;
    const order: Order = state === 'draining' ? 'drain' : 'stay';
    const what = isNew ? `box for ${known.recipient}` : order;
    if (known.sent?.what === what && clock.now() - known.sent.at < (isNew ? boxAgain : mailAgain)) return;
    const box = isNew && known.recipient !== null ? await packBox(await desk.belongings(run), known.recipient, tokenHash) : null;
    await cloud.deliver(made, mailText({ do: order, at: Math.floor(clock.wall() / 1000), box }), signal);
    known.sent = { what, at: clock.now() };
  }

  async function visit(machine: Machine, known: Known): Promise<void> {
    const { run, made } = machine;
    const cloud = cloudOf(machine);
    if (made === null || cloud === null) return;
    try {
      await hear(machine, made, known, cloud);
    } catch (error) {
      if (find(run)?.state === 'joined' && !signal.aborted) desk.unheard(run, `its console cannot be read: ${messageOf(error)}`);
      throw error;
    }
    const now = find(run);
    if (now === undefined || !isListenedTo(now)) return;
    known.visits = known.hasWorked ? 0 : known.visits + 1;
    if (now.state === 'draining' && now.joinedAt === null && known.visits >= silentVisits)
      return void (await desk.stage({ run, stage: 'drained', text: '' }));
    try {
      await tell(now, made, known, cloud);
      known.refusals = 0;
    } catch (error) {
      if (signal.aborted || !(error instanceof OnejobError) || error.retry || now.joinedAt !== null) throw error;
      known.refusals += 1;
      if (known.refusals < mostRefusals || now.state === 'draining') throw error;
      await desk.stage({ run, stage: 'failed', text: messageOf(error) });
    }
  }

  async function look(): Promise<void> {
    const now = clock.now();
    const current = machines().filter(isListenedTo);
    const runs = new Set(current.map(({ run }) => run));
    for (const run of all.keys()) if (!runs.has(run)) all.delete(run);
    for (const machine of current) {
      const fresh = { seen: new Set<string>(), recipient: null, hasWorked: false, beat: null, visits: 0, sent: null, next: 0 };
      const known: Known = all.get(machine.run) ?? { ...fresh, isVisited: false, trouble: null, refusals: 0 };
      all.set(machine.run, known);
      // A machine that was told to drain is told at once.
      const isDue = now >= known.next || (machine.state === 'draining' && known.sent?.what !== 'drain');
      if (known.isVisited || !isDue) continue;
      known.isVisited = true;
      known.next = now + (machine.state === 'joined' ? visitUsual : visitSoon);
      void visit(machine, known)
        .then(() => {
          known.trouble = null;
        })
        .catch((error: unknown) => {
          const why = messageOf(error);
          if (!signal.aborted && known.trouble !== why)
            log.warn('cannot communicate with a machine through its cloud', { machine: machine.run, reason: why });
          known.trouble = why;
        })
        .finally(() => {
          known.isVisited = false;
        });
    }
  }

  return {
    start(): void {
      void look();
      callOff = every(clock, visitSoon, look, () => {});
    },
    close(): void {
      callOff();
      ending.abort(new OnejobError('E_DAEMON_STOPPING', 'onejob is stopping.'));
    },
  };
}
