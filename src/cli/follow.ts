/**
 * The output of a job up to its end, across restarts of the daemon: no byte is lost or shown twice. And its printers: a job's bytes
 * unchanged and notes as lines of onejob, or everything as JSON.
 */
import { isUtf8 } from 'node:buffer';
import { abortable } from '../base/abortable.ts';
import { gapSize, none, plus } from '../contract/gap.ts';
import type { LogPiece, LogSource } from '../contract/manager.ts';
import type { JobView } from '../contract/schema.ts';
import { createColorsOnly, createPlain, type Plain } from '../logs/plain.ts';
import { afterInBackground } from '../system/system-clock.ts';
import { type Connection, isGone, isStopping, reconnect } from './connect.ts';
import type { Output } from './output.ts';
import type { Session } from './session.ts';
import { formatAge, harmless } from './text.ts';

export interface LastingOptions {
  /** Whether it is a temporary daemon, which nobody else starts again. */
  readonly temporary: boolean;
  /** Whether to start a lost temporary daemon again: a command that has a job in it does so, one that only looks does not. */
  readonly mayStart: boolean;
  readonly signal: AbortSignal;
  /** ms to wait for a lost daemon; default 10 min. */
  readonly patience?: number | undefined;
}

/** A connection that is made again when it is lost, until the signal aborts. */
export class Lasting {
  connection: Connection;
  temporary: boolean;
  readonly #session: Session;
  readonly #options: LastingOptions;
  /** Pending while a lost connection is made again. */
  #recovering: Promise<void> | null = null;

  constructor(session: Session, connection: Connection, options: LastingOptions) {
    this.#session = session;
    this.connection = connection;
    this.temporary = options.temporary;
    this.#options = options;
  }

  /** Repeats `work` when the daemon is lost: only for what may be done twice. `what` tells people what that means for the job. */
  async persist<T>(what: string, work: (connection: Connection) => Promise<T>): Promise<T> {
    for (;;) {
      const { connection } = this;
      let stopping = false;
      try {
        return await work(connection);
      } catch (error) {
        this.#options.signal.throwIfAborted();
        if (!isGone(error)) throw error;
        stopping = isStopping(error);
      }
      // The first of several that notice the loss connects again.
      if (this.connection !== connection) continue;
      this.#recovering ??= this.#recover(what, stopping).finally(() => {
        this.#recovering = null;
      });
      await this.#recovering;
    }
  }

  /** Shows the output of a job; resolves with the job once it is done. */
  async followJob(id: string, show: (piece: LogPiece) => Promise<void>): Promise<JobView> {
    const what = `job ${id} keeps running`;
    // Asked first: a stopping daemon still answers earlier requests, but takes no new ones.
    const done = this.persist(what, ({ client }) => client.settled(id, this.#options.signal));
    done.catch(() => {});
    await this.followLogs({ what, source: { job: id }, tail: null }, show);
    return done;
  }

  /** Shows output to its end. `what` as for `persist`; `tail`: first only so many of the last lines. */
  async followLogs(
    { what, source, tail }: { readonly what: string; readonly source: LogSource; readonly tail: number | null },
    show: (piece: LogPiece) => Promise<void>,
  ): Promise<void> {
    const { signal } = this.#options;
    let shown = none;
    let isBegun = false;
    await this.persist(what, async ({ client }) => {
      for await (const piece of client.logs(source, { follow: true, from: shown, tail: isBegun ? null : tail, signal })) {
        isBegun = true;
        await show(piece);
        shown = plus(shown, gapSize(piece));
      }
    });
  }

  async #recover(what: string, stopping: boolean): Promise<void> {
    const { connection } = this;
    const { output } = this.#session;
    const { signal, mayStart, patience = 600_000 } = this.#options;
    const temporary = this.temporary && mayStart;
    // It says why only with its end, which usually follows at once.
    let ended = await abortable(Promise.race([connection.gone, within(usualEnd, null)]), signal);
    if (stopping && ended === null) {
      // It may wait for its jobs, and would refuse every request until it has ended.
      output.say('the daemon is stopping and accepts no new requests; waiting for it to end');
      ended = await abortable(connection.gone, signal);
    }
    connection.close();
    const connecting = reconnect(this.#session, connection.client, { temporary, patience, signal });
    connecting.catch(() => {});
    const isReload = ended?.reloads === true;
    if (isReload) output.say('the daemon reads a new config');
    const isBack = isReload && (await isWithin(usualReload, connecting, signal));
    const wait = temporary ? 'starting another' : `waiting for up to ${formatAge(patience)}`;
    if (!isBack) output.say(`the daemon is gone; ${what}; ${wait}`);
    this.connection = await connecting;
    // A permanent daemon may have replaced a temporary one, or the other way round.
    const status = await this.connection.client.status().catch(() => null);
    this.temporary = status?.temporary ?? this.temporary;
    if (!isBack) output.say('connected again');
  }
}

/** ms in which a daemon that was lost has usually ended, and in which one that reads a new config is usually back. */
const [usualEnd, usualReload] = [1_000, 10_000];

/** Resolves with `value` after `ms`, and keeps no process alive. */
function within<T>(ms: number, value: T): Promise<T> {
  return new Promise((resolve) => afterInBackground(ms, () => resolve(value)));
}

/** Whether the work is done in so many ms; not how. */
async function isWithin(ms: number, work: Promise<unknown>, signal: AbortSignal): Promise<boolean> {
  const done = work.then(
    () => true,
    () => true,
  );
  return abortable(Promise.race([done, within(ms, false)]), signal);
}

export interface JobPrinter {
  /** Resolves when it is written. @throws OutputClosed, or OnejobError E_OUTPUT */
  show(piece: LogPiece): Promise<void>;
  /** Shows what was held back for a next piece. */
  end?(): Promise<void>;
}

/** As `printer`, but pieces of streams that have a filter pass through it, if `isMeant`. */
function filtered(
  printer: JobPrinter,
  filters: ReadonlyMap<LogPiece['stream'], Plain>,
  isMeant = (_: LogPiece): boolean => true,
): JobPrinter {
  return {
    async show(piece) {
      const filter = isMeant(piece) ? filters.get(piece.stream) : undefined;
      await printer.show(filter === undefined ? piece : { stream: piece.stream, bytes: filter.take(piece.bytes) });
    },
    async end() {
      for (const [stream, filter] of filters) await printer.show({ stream, bytes: filter.rest() });
      await printer.end?.();
    },
  };
}

const streams = ['stdout', 'stderr'] as const;

/**
 * As `jobPrinter`, for a job that may belong to another user: on a terminal only its text and colours, elsewhere every byte. `run`
 * shows the user's own job unchanged, as a shell would.
 */
export function foreignPrinter(output: Output): JobPrinter {
  const printer = jobPrinter(output);
  if (output.json) return printer;
  const shown = streams.filter((stream) => output.isTerminal(stream));
  return filtered(printer, new Map(shown.map((stream) => [stream, createColorsOnly()])));
}

/** As `printer`, but if the output must be plain, it removes escape sequences from what was written for a terminal. */
export function plainPrinter(output: Output, printer: JobPrinter): JobPrinter {
  if (!output.plain) return printer;
  const filters = new Map(streams.map((stream) => [stream, createPlain()]));
  return filtered(printer, filters, ({ forTerminal }) => forTerminal === true);
}

export function jobPrinter(output: Output): JobPrinter {
  return {
    async show({ stream, bytes }) {
      if (bytes.length === 0) return;
      const text = () => Buffer.from(bytes).toString();
      if (output.json) {
        const data = isUtf8(bytes) ? { text: text() } : { base64: Buffer.from(bytes).toString('base64') };
        return output.value({ event: 'output', stream, ...data });
      }
      if (stream === 'note') return output.say(text().trimEnd());
      await output.write(stream, bytes);
    },
  };
}

/** As `jobPrinter`, for text that was not written for a terminal: without control characters. */
export function agentLogPrinter(output: Output): JobPrinter {
  const printer = jobPrinter(output);
  if (output.json) return printer;
  // A letter may be split between two pieces.
  const decoder = new TextDecoder();
  const take = (bytes: Uint8Array) => Buffer.from(harmless(decoder.decode(bytes, { stream: true })));
  return filtered(printer, new Map(streams.map((stream) => [stream, { take, rest: () => Buffer.alloc(0) }])));
}
