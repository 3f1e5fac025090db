/**
 * An address of the config at which others call onejob: webhooks, and machines that join. Anybody may reach it, so requests and
 * connections have bounds. An address that cannot be used is tried again, and the certificate is read again after it was renewed.
 */
import { readFileSync } from 'node:fs';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type https from 'node:https';
import type { Duplex } from 'node:stream';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Clock } from '../core/clock.ts';
import type { Listen } from './address.ts';
import { createConnections, oneAtATime } from './connections.ts';
import { addressText, ended, listenAgain, whyNoPort } from './listen.ts';
import { openPorts, type Ports } from './ports.ts';

export interface InboundParts {
  readonly listen: Listen;
  /** The key of the config that has `listen`, for messages. */
  readonly key: string;
  /** Paths of certificate and key in PEM; null: a proxy in front of it has them, or it listens on loopback only. */
  readonly tls: { readonly cert: string; readonly key: string } | null;
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  /** Those of the daemon, which stay open when this ends. */
  readonly ports?: Ports | undefined;
  /** ms for a whole request. */
  readonly request: number;
  /** What the log says when it listens and when it cannot, with these fields. */
  readonly says: { readonly opened: string; readonly failed: string; readonly fields: Readonly<Record<string, string>> };
  readonly handle: (request: IncomingMessage, response: ServerResponse) => void;
  readonly upgrade?: (request: IncomingMessage, pipe: Duplex, head: Buffer) => void;
  /** It listens from now on. */
  readonly opened?: () => void;
}

/** Why it does not listen, as the end of a sentence, and what a person can do. */
export interface NoPort {
  readonly why: string;
  readonly hint: string;
}

/** ms: how often the log reports refused calls, which anybody can cause. */
const quiet = 60_000;

export class Inbound {
  readonly #parts: InboundParts;
  readonly #connections = createConnections();
  #server: http.Server | https.Server | null = null;
  #taken: { readonly port: number; leave(): Promise<void> } | null = null;
  #problem: NoPort | null = null;
  #quietUntil = 0;
  #isClosed = false;
  #callOff = (): void => {};

  constructor(parts: InboundParts) {
    this.#parts = parts;
  }

  /** null if it listens, or has not tried yet. */
  get problem(): NoPort | null {
    return this.#problem;
  }

  /** null while it does not listen. */
  get port(): number | null {
    return this.#taken?.port ?? null;
  }

  /** Counts the connection as this caller's, whom a stranger cannot displace. */
  known(request: IncomingMessage, caller: string, answer: ServerResponse | Duplex): void {
    this.#connections.known(request.socket, caller, answer);
  }

  /** Resolves once it listens, or it is known that it cannot; it then tries again by itself. Never fails. */
  async open(): Promise<void> {
    const { listen, tls, key, clock, log, says } = this.#parts;
    const fields = { ...says.fields, address: addressText(listen) };
    try {
      const made = await this.#make();
      this.#taken = await this.#answerAt(made);
      this.#server = made;
      this.#problem = null;
      this.#parts.opened?.();
      log.info(says.opened, fields);
      if (this.#isClosed) await this.#taken.leave();
    } catch (error) {
      const found = tls !== null && error instanceof BadCertificate ? error.noPort(key) : whyNoPort(listen, key, error);
      if (this.#problem?.why !== found.why) log.error(says.failed, { ...fields, reason: found.why });
      this.#problem = found;
      if (!this.#isClosed) this.#callOff = clock.after(listenAgain, () => void this.open());
    }
  }

  /** Reads the certificate again, after it was renewed. */
  refresh(): void {
    const { tls, log, says } = this.#parts;
    if (this.#server === null || tls === null || !('setSecureContext' in this.#server)) return;
    try {
      this.#server.setSecureContext(readTls(tls));
    } catch (error) {
      log.error('a renewed certificate was not taken', { ...says.fields, reason: messageOf(error) });
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#callOff();
    const left = this.#taken?.leave();
    // Also those whose handshake is not over, which the server does not count yet.
    this.#connections.closeAll();
    await left;
  }

  /** Anybody can cause these lines, so most of them are left out. */
  complain(text: string, fields: Readonly<Record<string, string>>): void {
    const { clock, log, says } = this.#parts;
    if (clock.now() < this.#quietUntil) return;
    this.#quietUntil = clock.now() + quiet;
    log.warn(text, { ...says.fields, ...fields });
  }

  async #make(): Promise<http.Server | https.Server> {
    const { tls, request, handle, upgrade } = this.#parts;
    const options: http.ServerOptions = {
      requestTimeout: request,
      headersTimeout: request,
      connectionsCheckingInterval: 1_000,
      keepAliveTimeout: 72_000,
      maxHeaderSize: 16 * 1024,
    };
    const answer = oneAtATime(handle);
    const made =
      tls === null
        ? http.createServer(options, answer)
        : (await import('node:https')).createServer({ ...options, handshakeTimeout: 10_000, ...readTls(tls) }, answer);
    this.#connections.watch(made);
    if (upgrade !== undefined) made.on('upgrade', upgrade);
    return made;
  }

  /** Lets the server answer at a kept port; without `ports`, at one that closes with it. Others' port: the system's error. */
  async #answerAt(server: http.Server | https.Server) {
    const { listen, log } = this.#parts;
    const ports = this.#parts.ports ?? (await openPorts([], log));
    const taken = await ports.take(listen);
    taken.serve(server);
    return {
      port: taken.address.port,
      leave: () => {
        taken.release();
        if (this.#parts.ports === undefined) ports.close();
        return ended(server);
      },
    };
  }
}

class BadCertificate extends Error {
  noPort(key: string): NoPort {
    const hint = `Correct "tls_cert" and "tls_key" next to "${key}", or these files. onejob tries again every 10 s.`;
    return { why: this.message, hint };
  }
}

function readTls({ cert, key }: NonNullable<InboundParts['tls']>) {
  try {
    const pair = { cert: readFileSync(cert), key: readFileSync(key), minVersion: 'TLSv1.2' as const };
    // Loaded late: most configs have no certificate.
    process.getBuiltinModule('node:tls').createSecureContext(pair);
    return pair;
  } catch (error) {
    throw new BadCertificate(`the certificate ${cert} cannot be used: ${messageOf(error)}`);
  }
}
