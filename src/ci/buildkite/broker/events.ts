/** The stream that a manager reads: the whole state first, then each change. While one is read, there is a manager. */
import type { ServerResponse } from 'node:http';
import type { Clock } from '../../../core/clock.ts';
import type { Book } from './book.ts';
import type { Desired } from './desired.ts';
import type { BrokerEvent, BrokerState, ServiceHealth } from './protocol.ts';

/** ms between two signs of life. */
const aliveInterval = 5_000;
/** Bytes that wait for a reader; beyond it is cut off, and sent the whole state when it comes back. */
const mostWaiting = 16 << 20;

export interface Events {
  /** Answers a request with the stream, until its reader goes. */
  stream(response: ServerResponse): void;
  /** Tells every reader of a service. */
  service(health: ServiceHealth): void;
  close(): void;
}

export interface EventsParts {
  readonly book: Book;
  readonly desired: Desired;
  readonly clock: Clock;
  state(): BrokerState;
}

export function createEvents({ book, desired, clock, state }: EventsParts): Events {
  const readers = new Set<ServerResponse>();
  let isClosed = false;
  const send = (reader: ServerResponse, event: BrokerEvent): void => {
    if (reader.writableLength > mostWaiting) reader.destroy();
    else reader.write(`${JSON.stringify(event)}\n`);
  };
  const tell = (event: BrokerEvent): void => {
    for (const reader of readers) send(reader, event);
  };
  const unwatch = book.watchAll(({ shown: agent }, before) => {
    // Progress of a log is nothing that is shown.
    if (before === null || before.shown !== agent) tell({ kind: 'agent', agent });
  });
  let callOff = (): void => {};
  const beat = (): void => {
    tell({ kind: 'alive' });
    callOff = clock.after(aliveInterval, beat);
  };
  callOff = clock.after(aliveInterval, beat);

  return {
    stream(response) {
      // A broker that is about to be gone is nobody's any more.
      if (isClosed) {
        response.destroy();
        return;
      }
      response.writeHead(200, { 'Content-Type': 'application/x-ndjson', 'Cache-Control': 'no-store' });
      response.socket?.setNoDelay(true);
      send(response, { kind: 'state', ...state() });
      readers.add(response);
      book.setHeard(true);
      book.farewellsSaid();
      const part = desired.join();
      response.once('close', () => {
        readers.delete(response);
        book.setHeard(readers.size > 0);
        part();
      });
      response.on('error', () => {});
    },
    service: (health) => tell({ kind: 'service', health }),
    close() {
      isClosed = true;
      unwatch();
      callOff();
      for (const reader of readers) reader.end();
    },
  };
}
