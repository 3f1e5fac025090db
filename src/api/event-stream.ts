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

export type EventStreams = ReturnType<typeof createEventStreams>;

/** `failed` is called once for each kind of failure to show something. */
export function createEventStreams(events: Events, clock: Clock, failed: (error: Error) => void = () => {}) {
  const failures = new Set<string>();
  const clients = new Set<{ readonly pump: (texts: Map<number, string>) => void; readonly beat: () => void }>();
  let stop = (): void => {};

  function start(): void {
    const stopListening = events.listen(() => {
      // Clients that are up to date get the same text.
      const texts = new Map<number, string>();
      for (const client of [...clients]) client.pump(texts);
    });
    let callOff = (): void => {};
    const next = (): void => {
      callOff = clock.after(beat, () => {
        for (const client of [...clients]) client.beat();
        if (clients.size > 0) next();
      });
    };
    next();
    stop = () => {
      callOff();
      stopListening();
    };
  }

  /** Thrown by a timer or a listener, it would end the daemon. */
  function tellOnce(error: unknown): void {
    const failure = error instanceof Error ? error : new Error(String(error));
    if (failures.has(failure.message) || failures.size >= mostFailures) return;
    failures.add(failure.message);
    failed(failure);
  }

  return {
    get clients(): number {
      return clients.size;
    },
    /**
     * Answers with events until the client or the server goes, or wall clock `until`. `from`: id of the last event that the client
     * got; null if none.
     */
    serve(
      response: ServerResponse,
      { from, until, signal }: { from: string | null; until: number | null; signal: AbortSignal },
    ): void {
      const [epoch, number = ''] = from?.split('-') ?? [];
      const isOurs = epoch === events.epoch && /^\d{1,15}$/.test(number);
      let cursor = isOurs ? Number(number) : -1;
      let reason: EventView<'reset'>['reason'] = from === null ? 'new' : isOurs ? 'missed' : 'restarted';
      let isStuck = false;

      const write = (id: number, text: string): boolean => response.write(`id: ${events.epoch}-${id}\n${text}`);
      const shown = (subject: Subject): string | null => {
        try {
          return textOf(...events.view(subject));
        } catch (error) {
          tellOnce(error);
          return null;
        }
      };
      const client = {
        pump(texts: Map<number, string>): void {
          if (response.writableNeedDrain || response.destroyed) return;
          const missed = events.after(cursor);
          if (missed === null) {
            cursor = events.head;
            write(cursor, textOf('reset', { reason }));
          }
          reason = 'missed';
          for (const [id, subject] of missed ?? []) {
            const text = texts.get(id) ?? shown(subject);
            if (text === null) {
              // Clients read everything again; what cannot be shown is answered there with an error.
              cursor = events.head;
              write(cursor, textOf('reset', { reason }));
              return;
            }
            texts.set(id, text);
            cursor = id;
            if (!write(id, text)) return;
          }
        },
        beat(): void {
          if (isStuck) response.destroy();
          else if (until !== null && clock.wall() >= until) end();
          else isStuck = response.writableNeedDrain || !response.write(': \n\n');
        },
      };
      response.on('drain', () => {
        isStuck = false;
        client.pump(new Map());
      });
      response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' });
      response.write(`retry: ${retry}\n\n`);
      clients.add(client);
      if (clients.size === 1) start();
      client.pump(new Map());
      const end = (): void => {
        if (!clients.delete(client)) return;
        if (clients.size === 0) stop();
        response.end();
      };
      response.once('close', end);
      if (signal.aborted) end();
      else signal.addEventListener('abort', end, { once: true });
    },
  };
}

function textOf(...[name, data]: Event): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
