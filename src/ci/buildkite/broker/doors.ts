/**
 * Where agents call in: one port, the same for ever, on the loopback and on every address that was asked for. An address that
 * this host does not have yet, such as that of a bridge that is made later, is tried again until it does.
 */
import http, { type RequestListener, type ServerOptions } from 'node:http';
import type { AddressInfo } from 'node:net';
import { isIP } from 'node:net';
import type { Clock } from '../../../core/clock.ts';
import { OnejobError } from '../../../errors.ts';
import type { Log } from '../../../log.ts';

export interface Doors {
  readonly port: number;
  /** Opens one more, now or as soon as it can be. Idempotent. @throws OnejobError E_API_REQUEST when it is no IP address */
  open(address: string): void;
  close(): Promise<void>;
}

export interface DoorsParts {
  readonly handler: RequestListener;
  readonly options: ServerOptions;
  /** Told of every server before it listens; bounds its connections. */
  watch(server: http.Server): void;
  readonly clock: Clock;
  readonly log: Log;
  /** The port of last time; null: any. */
  readonly port: number | null;
  /** Whether agents know that port, so that no other will do. */
  isPortKnown(): boolean;
  /** Keeps the port and the addresses for the next broker. */
  keepPort(port: number): void;
  keepAddress(address: string): void;
}

const first = '127.0.0.1';
/** The port of last time is tried so often, and so many ms apart, before another is taken. */
const [tries, apart] = [10, 500];
/** ms between two looks whether an address is there. */
const again = 1_000;

/** @throws OnejobError E_SOCKET_TAKEN when another program has the port that running agents know */
export async function openDoors(parts: DoorsParts): Promise<Doors> {
  const { clock, log } = parts;
  const servers = new Map<string, http.Server>();
  const waiting = new Map<string, () => void>();
  let isClosed = false;

  const bind = async (address: string, port: number): Promise<number> => {
    const server = http.createServer(parts.options, parts.handler);
    parts.watch(server);
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen({ host: address, port, exclusive: true }, () => {
        server.off('error', reject);
        resolve();
      });
    });
    server.on('error', (error) => log.warn('door', { address, reason: error.message }));
    if (isClosed) server.close();
    else servers.set(address, server);
    return (server.address() as AddressInfo).port;
  };

  const port = await firstPort(parts, (wanted) => bind(first, wanted));
  parts.keepPort(port);

  const tryOpen = (address: string, isFirst: boolean): void => {
    waiting.set(address, () => {});
    bind(address, port).then(
      () => void waiting.delete(address),
      (error: unknown) => {
        if (isClosed) return;
        if (isFirst)
          log.warn('door not open yet', { address, port, reason: error instanceof Error ? error.message : String(error) });
        waiting.set(
          address,
          clock.after(again, () => tryOpen(address, false)),
        );
      },
    );
  };

  return {
    port,
    open(address) {
      if (isIP(address) === 0)
        throw new OnejobError('E_API_REQUEST', `"${address}" is no IP address that agents could call in at.`);
      if (servers.has(address) || waiting.has(address)) return;
      parts.keepAddress(address);
      tryOpen(address, true);
    },
    async close() {
      isClosed = true;
      for (const callOff of waiting.values()) callOff();
      await Promise.all(
        [...servers.values()].map(
          (server) =>
            new Promise<void>((resolve) => {
              server.close(() => resolve());
              server.closeAllConnections();
            }),
        ),
      );
    },
  };
}

async function firstPort({ port, clock, log, isPortKnown }: DoorsParts, bind: (port: number) => Promise<number>): Promise<number> {
  if (port === null) return bind(0);
  for (let left = tries; ; left -= 1) {
    try {
      return await bind(port);
    } catch (error) {
      if (left > 1) {
        await new Promise<void>((resolve) => void clock.after(apart, resolve));
        continue;
      }
      const why = error instanceof Error ? error.message : String(error);
      if (isPortKnown()) {
        throw new OnejobError('E_SOCKET_TAKEN', `Cannot listen at ${first}:${port}, where running agents call in: ${why}.`, {
          hint: `End the program that has port ${port}; "ss -ltnp" names it. The broker is then started again by itself.`,
          retry: true,
          cause: error,
        });
      }
      log.warn('port changed', { port, reason: why });
      return bind(0);
    }
  }
}
