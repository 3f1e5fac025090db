/**
 * Where the API listens over TCP: where the config says, or on a port of 127.0.0.1 from the first login on. An address that cannot
 * be used is a problem that people are shown, and is tried again; it never keeps agents from working.
 */
import { once } from 'node:events';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import type https from 'node:https';
import type { Server } from 'node:net';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt, messageOf, OnejobError, toFailure } from '../base/errors.ts';
import { type Finding, warning } from '../base/finding.ts';
import type { Log } from '../base/log.ts';
import type { ApiConfig } from '../config/config.ts';
import type { Clock } from '../core/clock.ts';
import type { Listen } from '../http/address.ts';
import { createConnections, oneAtATime } from '../http/connections.ts';
import { addressText, ended, listenAgain, whyNoPort } from '../http/listen.ts';
import { openPorts, type Port, type Ports } from '../http/ports.ts';
import { jsonOf } from '../system/json.ts';

export interface WebOptions {
  /** null: from the first login on. */
  readonly config: ApiConfig | null;
  readonly stateDir: string;
  readonly log: Pick<Log, 'info' | 'error'>;
  /** Default: of this onejob. */
  readonly files?: string;
  /** What listens already. Default: nothing, and nothing is left open. */
  readonly ports?: Ports;
}

export interface WebPortParts extends WebOptions {
  readonly clock: Clock;
  /** Answers requests. */
  readonly handle: (request: IncomingMessage, response: ServerResponse) => void;
  readonly patience: http.ServerOptions;
  /** Called before each try to listen. @throws OnejobError E_API_LISTEN */
  readonly opens: () => void;
}

/** Connections at a time: of an address and of all without a login, and of all that have the same role. A browser has six. */
const most = { unknownFrom: 50, unknownInAll: 200, ofCaller: 384, calls: 1_000 };
/** ms for the handshake of TLS. */
const handshake = 10_000;

/** The port that was opened for a login, and until when somebody may be logged in there (wall clock, ms). */
const remembered = z.object({ port: z.int().min(1).max(65_535), until: z.number() });

export class WebPort {
  readonly connections = createConnections(most);
  readonly #parts: WebPortParts;
  /** The file that remembers a port that was opened for a login. */
  readonly #memory: string;
  readonly #answer: (request: IncomingMessage, response: ServerResponse) => void;
  #server: http.Server | https.Server | null = null;
  #port: Port | null = null;
  #ports: Ports | undefined;
  #problem: OnejobError | null = null;
  #callOff = (): void => {};
  #opening: Promise<void> | null = null;
  #isClosed = false;

  constructor(parts: WebPortParts) {
    this.#parts = parts;
    this.#ports = parts.ports;
    this.#memory = join(parts.stateDir, 'api', 'port.json');
    this.#answer = oneAtATime(parts.handle);
  }

  /** Why the configured address cannot be used, as a sentence; null if it can. */
  get problem(): string | null {
    if (this.#problem === null) return null;
    const { message, hint } = this.#problem;
    return hint === null ? message : `${message} ${hint}`;
  }

  /** 0 while it does not listen. */
  get number(): number {
    return this.#port?.address.port ?? 0;
  }

  /** Empty while it does not listen. */
  get address(): string {
    return this.#port?.address.address ?? '';
  }

  /** Resolves once it listens, or it is known that it cannot. */
  async start(): Promise<void> {
    const { config, clock, log } = this.#parts;
    if (config !== null) {
      this.#opening = this.#openConfigured(config);
      return this.#opening;
    }
    const found = remembered.safeParse(jsonOf(attempt(() => readFileSync(this.#memory, 'utf8')) ?? ''));
    if (!found.success || found.data.until <= clock.wall()) return;
    const { port, until } = found.data;
    await this.#openForLogins(port, until).catch((error: unknown) => {
      log.info('the dashboard has no port until the next "onejob dashboard"', { reason: toFailure(error).message });
    });
  }

  /**
   * Listens for at least so many ms: without a configured address on a port of 127.0.0.1. False: it is closed.
   * @throws OnejobError E_API_LISTEN
   */
  async openFor(life: number): Promise<boolean> {
    await this.#opening;
    if (this.#problem !== null) throw this.#problem;
    const until = this.#parts.clock.wall() + life;
    if (this.#server === null) {
      // Two may ask at the same moment.
      this.#opening ??= this.#openForLogins(0, until).finally(() => {
        this.#opening = null;
      });
      await this.#opening;
    } else if (this.#parts.config === null) this.#keepUntil(until);
    return this.#server !== null;
  }

  /** Reads the certificate again. @throws OnejobError E_API_LISTEN */
  refresh(): void {
    const tls = this.#parts.config?.tls;
    if (this.#server !== null && 'setSecureContext' in this.#server && tls != null) this.#server.setSecureContext(readTls(tls));
  }

  closeIdle(): void {
    this.#server?.closeIdleConnections();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#callOff();
    await this.#opening?.catch(() => {});
    this.#leave();
    this.closeIdle();
    await this.connections.drained();
  }

  /** @throws OnejobError E_API_LISTEN */
  async #open(listen: Listen): Promise<void> {
    const { opens, config, patience, log } = this.#parts;
    opens();
    const made =
      config?.tls == null
        ? http.createServer(patience, this.#answer)
        : (await import('node:https')).createServer(
            { ...patience, handshakeTimeout: handshake, ...readTls(config.tls) },
            this.#answer,
          );
    this.connections.watch(made);
    this.#ports ??= await openPorts([], log);
    const taken = await this.#ports.take(listen).catch((error: unknown) => {
      throw unusable(listen, error);
    });
    [this.#port, this.#server] = [taken, made];
    if (this.#isClosed) this.#leave();
    else taken.serve(made);
  }

  /** Answers nobody any more; who listens next continues with the port. */
  #leave(): void {
    this.#port?.release();
    // It never listened itself.
    this.#server?.close(() => {});
    if (this.#parts.ports === undefined) this.#ports?.close();
  }

  /** Opens what the config says, now or later. */
  async #openConfigured(written: ApiConfig): Promise<void> {
    const { log, clock } = this.#parts;
    const { listen } = written;
    try {
      await this.#open(listen);
      if (this.#problem !== null) log.info('listening after all', { address: addressText(listen) });
      this.#problem = null;
    } catch (error) {
      const failure = error instanceof OnejobError ? error : unusable(listen, error);
      if (this.#problem?.message !== failure.message)
        log.error('failed to listen', { reason: failure.message, hint: failure.hint });
      this.#problem = failure;
      if (!this.#isClosed)
        this.#callOff = clock.after(listenAgain, () => {
          this.#opening = this.#openConfigured(written);
        });
    }
  }

  /** Opens a port of 127.0.0.1 until nobody can be logged in any more; the next daemon opens the same. */
  async #openForLogins(at: number, until: number): Promise<void> {
    await this.#open({ host: '127.0.0.1', port: at });
    if (this.#server !== null) this.#keepUntil(until);
  }

  #keepUntil(until: number): void {
    const kept = { port: this.number, until } satisfies z.infer<typeof remembered>;
    // Without it the next daemon has another port.
    attempt(() => writeFileSync(this.#memory, JSON.stringify(kept), { mode: 0o600 }));
    this.#callOff();
    this.#callOff = this.#parts.clock.after(until - this.#parts.clock.wall(), () => {
      rmSync(this.#memory, { force: true });
      this.#leave();
      this.connections.closeAll();
      [this.#port, this.#server] = [null, null];
      this.#ports?.closeUnused();
    });
  }
}

/** For `doctor` of a service: whether systemd keeps the ports of the config while the daemon restarts, and no others. */
export function portFindings(
  listens: readonly Listen[],
  ports: Pick<Ports, 'isInherited' | 'inherited'>,
  user: boolean,
): Finding[] {
  const install = `type "${user ? 'onejob service install --user' : 'sudo onejob service install'}", which writes onejob.socket anew.`;
  const open = listens.filter((listen) => !ports.isInherited(listen)).map(addressText);
  const known = new Set(listens.map(({ port }) => port));
  const stray = ports.inherited.filter(({ port }) => !known.has(port)).map(addressText);
  const found: Finding[] = [];
  if (open.length > 0)
    found.push(
      warning(
        'ports',
        `systemd does not keep ${open.join(' and ')} while the daemon restarts, so another program of this host can take it.`,
        `To change that, ${install}`,
      ),
    );
  if (stray.length > 0)
    found.push(
      warning('ports', `onejob.socket has ${stray.join(' and ')}, which the config does not name.`, `To release it, ${install}`),
    );
  return found;
}

/** Whether it can be listened at an address. `own`: the port that this daemon has itself. @throws OnejobError E_API_LISTEN */
export async function checkListen(listen: Listen, own: number | null): Promise<void> {
  const probe = http.createServer();
  await listenAt(probe, listen, listen.port === own ? 0 : listen.port);
  await ended(probe);
}

async function listenAt(server: Server, listen: Listen, port = listen.port): Promise<void> {
  try {
    await once(server.listen({ ...listen, port }), 'listening');
  } catch (error) {
    throw unusable(listen, error);
  }
}

function unusable(listen: Listen, error: unknown): OnejobError {
  const { why, hint } = whyNoPort(listen, 'api.listen', error);
  const message = `Cannot listen on ${addressText(listen)} for the dashboard: ${why}.`;
  return new OnejobError('E_API_LISTEN', message, { hint, retry: true, cause: error });
}

/** @throws OnejobError E_API_LISTEN */
function readTls({ cert, key }: NonNullable<ApiConfig['tls']>) {
  try {
    const pair = { cert: readFileSync(cert), key: readFileSync(key), minVersion: 'TLSv1.2' as const };
    // Loaded late: most configs have no certificate.
    process.getBuiltinModule('node:tls').createSecureContext(pair);
    return pair;
  } catch (error) {
    throw new OnejobError('E_API_LISTEN', `Cannot use the certificate of the dashboard, ${cert}: ${messageOf(error)}.`, {
      hint: 'Correct "api.tls_cert" and "api.tls_key", or these files. onejob tries again every 10 s.',
      retry: true,
      cause: error,
    });
  }
}
