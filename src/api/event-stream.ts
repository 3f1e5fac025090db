/**
 * `GET /v1/events`: server-sent events for everything that changes. A client is a cursor in the ring of changes, so one that reads
 * slowly costs nothing but the few bytes on their way to it; one that does not read at all is cut off.
 */
import type { ServerResponse } from 'node:http';
import type { Subject } from '../contract/changes.ts';
import type { Events } from '../contract/manager.ts';
import type { Event, EventView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';

/** ms between signs of life. A client that has not read anything for so long is cut off. */
const beat = 15_000;
/** ms after which a client connects again. */
const retry = 1_000;
/** Different failures that are told. */
const mostFailures = 10;

interface StreamParts {
  readonly events: Events;
  readonly clock: Clock;
  /** Called once for each kind of failure to show something. */
  readonly failed?: (error: Error) => void;
}

interface Asked {
  /** Id of the last event that the client got; null if none. */
  readonly from: string | null;
  /** Wall clock, ms; null: without end. */
  readonly until: number | null;
  readonly signal: AbortSignal;
}

export class EventStreams {
  readonly #parts: StreamParts;
  readonly #failures = new Set<string>();
  readonly #clients = new Set<EventClient>();
  #stop = (): void => {};

  constructor(parts: StreamParts) {
    this.#parts = parts;
  }

  get clients(): number {
    return this.#clients.size;
  }

  /** Answers with events until the client or the server goes, or `until`. */
  serve(response: ServerResponse, { from, until, signal }: Asked): void {
    const { events, clock } = this.#parts;
    const end = (): void => {
      if (!this.#clients.delete(client)) return;
      if (this.#clients.size === 0) this.#stop();
      response.end();
    };
    const endLate = (): boolean => {
      if (until === null || clock.wall() < until) return false;
      end();
      return true;
    };
    const client = new EventClient({ response, events, from, endLate, failed: (error) => this.#tellOnce(error) });
    this.#clients.add(client);
    if (this.#clients.size === 1) this.#start();
    client.pump(new Map());
    response.once('close', end);
    if (signal.aborted) end();
    else signal.addEventListener('abort', end, { once: true });
  }

  #start(): void {
    const { events, clock } = this.#parts;
    const stopListening = events.listen(() => {
      // Clients that are up to date get the same text.
      const texts = new Map<number, string>();
      for (const client of [...this.#clients]) client.pump(texts);
    });
    let callOff = (): void => {};
    const next = (): void => {
      callOff = clock.after(beat, () => {
        for (const client of [...this.#clients]) client.beat();
        if (this.#clients.size > 0) next();
      });
    };
    next();
    this.#stop = () => {
      callOff();
      stopListening();
    };
  }

  /** Thrown by a timer or a listener, it would end the daemon. */
  #tellOnce(error: unknown): void {
    const failure = error instanceof Error ? error : new Error(String(error));
    if (this.#failures.has(failure.message) || this.#failures.size >= mostFailures) return;
    this.#failures.add(failure.message);
    this.#parts.failed?.(failure);
  }
}

interface ClientParts extends Pick<StreamParts, 'events'>, Pick<Asked, 'from'> {
  readonly response: ServerResponse;
  /** Ends the stream if its time has come, and says whether. */
  readonly endLate: () => boolean;
  readonly failed: (error: unknown) => void;
}

/** One that listens, and how far it has got in the ring of changes. */
class EventClient {
  readonly #parts: ClientParts;
  #cursor: number;
  #reason: EventView<'reset'>['reason'];
  #isStuck = false;

  constructor(parts: ClientParts) {
    this.#parts = parts;
    const { response, events, from } = parts;
    const [epoch, number = ''] = from?.split('-') ?? [];
    const isOurs = epoch === events.epoch && /^\d{1,15}$/.test(number);
    this.#cursor = isOurs ? Number(number) : -1;
    this.#reason = from === null ? 'new' : isOurs ? 'missed' : 'restarted';
    response.on('drain', () => {
      this.#isStuck = false;
      this.pump(new Map());
    });
    response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
    response.write(`retry: ${retry}\n\n`);
  }

  /** Sends what it has missed, as far as it takes it. `texts`: of events by their place, for the next client. */
  pump(texts: Map<number, string>): void {
    const { response, events } = this.#parts;
    if (response.writableNeedDrain || response.destroyed) return;
    const missed = events.after(this.#cursor);
    if (missed === null) this.#reset();
    this.#reason = 'missed';
    for (const [id, subject] of missed ?? []) {
      const text = texts.get(id) ?? this.#shown(subject);
      // Clients read everything again; what cannot be shown is answered there with an error.
      if (text === null) {
        this.#reset();
        return;
      }
      texts.set(id, text);
      this.#cursor = id;
      if (!this.#write(text)) return;
    }
  }

  /** A sign of life. */
  beat(): void {
    const { response, endLate } = this.#parts;
    if (this.#isStuck) response.destroy();
    else if (!endLate()) this.#isStuck = response.writableNeedDrain || !response.write(': \n\n');
  }

  #reset(): void {
    this.#cursor = this.#parts.events.head;
    this.#write(textOf('reset', { reason: this.#reason }));
  }

  #shown(subject: Subject): string | null {
    try {
      return textOf(...this.#parts.events.view(subject));
    } catch (error) {
      this.#parts.failed(error);
      return null;
    }
  }

  #write(text: string): boolean {
    const { response, events } = this.#parts;
    return response.write(`id: ${events.epoch}-${this.#cursor}\n${text}`);
  }
}

function textOf(...[name, data]: Event): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
