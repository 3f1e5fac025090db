/**
 * The API over TCP, with the dashboard: where the config says, or on a port of 127.0.0.1 from the first login on. An address that
 * cannot be used is a problem that people are shown, and is tried again; it never keeps agents from working.
 */
import { randomBytes } from 'node:crypto';
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
import type { LinkView } from '../contract/schema.ts';
import type { Clock } from '../core/clock.ts';
import type { Listen } from '../http/address.ts';
import { createConnections, oneAtATime } from '../http/connections.ts';
import { addressText, ended, listenAgain, whyNoPort } from '../http/listen.ts';
import { openPorts, type Port, type Ports } from '../http/ports.ts';
import { jsonOf } from '../system/json.ts';
import { type AccessTable, type CallerAdmission, openAccess, sessionLife } from './access.ts';
import type { AccessRole, Role } from './caller.ts';
import { checkHost, checkOrigin, originInstead } from './door.ts';
import { nonceHeader, type PublicKey, proofHeader, proofText } from './signed.ts';

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

interface WebParts extends WebOptions {
  readonly clock: Clock;
  /** Answers requests. */
  readonly handle: (request: IncomingMessage, response: ServerResponse) => void;
  readonly patience: http.ServerOptions;
  /** Whether there is a page. */
  readonly isBuilt: () => boolean;
}

/** Connections at a time: of an address and of all without a login, and of all that have the same role. A browser has six. */
const most = { unknownFrom: 50, unknownInAll: 200, ofCaller: 384, calls: 1_000 };
/** ms for the handshake of TLS. */
const handshake = 10_000;

/** The port that was opened for a login, and until when somebody may be logged in there (wall clock, ms). */
const remembered = z.object({ port: z.int().min(1).max(65_535), until: z.number() });

export type Web = ReturnType<typeof createWeb>;

export function createWeb({ config, stateDir, log, clock, handle, patience, isBuilt, ports: given }: WebParts) {
  const memory = join(stateDir, 'api', 'port.json');
  const door = {
    listen: config?.listen.host ?? '127.0.0.1',
    hosts: config?.hosts ?? [],
    isSecure: config !== null && (config.tls !== null || config.behindProxy),
  };
  let server: http.Server | https.Server | null = null;
  let port: Port | null = null;
  let ports = given;
  let access: AccessTable | null = null;
  let problem: OnejobError | null = null;
  let callOff = (): void => {};
  let opening: Promise<void> | null = null;
  let isClosed = false;
  /** Another one for each daemon, and for each config that it has. */
  const challenge = randomBytes(16).toString('base64url');
  const connections = createConnections(most);
  const answer = oneAtATime(handle);

  /** @throws OnejobError E_API_LISTEN */
  async function open(listen: Listen): Promise<void> {
    access ??= openAccess({ dir: stateDir, clock });
    const made =
      config?.tls == null
        ? http.createServer(patience, answer)
        : (await import('node:https')).createServer({ ...patience, handshakeTimeout: handshake, ...readTls(config.tls) }, answer);
    connections.watch(made);
    ports ??= await openPorts([], log);
    const taken = await ports.take(listen).catch((error: unknown) => {
      throw unusable(listen, error);
    });
    [port, server] = [taken, made];
    if (isClosed) leave();
    else taken.serve(made);
  }

  /** Answers nobody any more; who listens next continues with the port. */
  function leave(): void {
    port?.release();
    // It never listened itself.
    server?.close(() => {});
    if (given === undefined) ports?.close();
  }

  /** Opens what the config says, now or later. */
  async function openConfigured(written: ApiConfig): Promise<void> {
    const { listen } = written;
    try {
      await open(listen);
      if (problem !== null) log.info('listening after all', { address: addressText(listen) });
      problem = null;
    } catch (error) {
      const failure = error instanceof OnejobError ? error : unusable(listen, error);
      if (problem?.message !== failure.message) log.error('failed to listen', { reason: failure.message, hint: failure.hint });
      problem = failure;
      if (!isClosed)
        callOff = clock.after(listenAgain, () => {
          opening = openConfigured(written);
        });
    }
  }

  /** Opens a port of 127.0.0.1 until nobody can be logged in any more; the next daemon opens the same. */
  async function openForLogins(at: number, until: number): Promise<void> {
    await open({ host: '127.0.0.1', port: at });
    if (server !== null) keepUntil(until);
  }

  function keepUntil(until: number): void {
    const opened = portOf(port);
    // Without it the next daemon has another port.
    attempt(() =>
      writeFileSync(memory, JSON.stringify({ port: opened, until } satisfies z.infer<typeof remembered>), { mode: 0o600 }),
    );
    callOff();
    callOff = clock.after(until - clock.wall(), () => {
      rmSync(memory, { force: true });
      leave();
      connections.closeAll();
      [port, server] = [null, null];
      ports?.closeUnused();
    });
  }

  return {
    /** Why the configured address cannot be used, as a sentence; null if it can. */
    get problem(): string | null {
      return problem === null ? null : `${problem.message}${problem.hint === null ? '' : ` ${problem.hint}`}`;
    },
    /** null while it does not listen. */
    get port(): number | null {
      return portOf(port) || null;
    },
    /** Resolves once it listens, or it is known that it cannot. */
    async start(): Promise<void> {
      if (config !== null) {
        opening = openConfigured(config);
        return opening;
      }
      const found = remembered.safeParse(jsonOf(attempt(() => readFileSync(memory, 'utf8')) ?? ''));
      if (!found.success || found.data.until <= clock.wall()) return;
      const { until } = found.data;
      await openForLogins(found.data.port, until).catch((error: unknown) => {
        log.info('the dashboard has no port until the next "onejob dashboard"', { reason: toFailure(error).message });
      });
    },
    /** A link for one login. @throws OnejobError E_API_LISTEN */
    async link(caller: { readonly role: AccessRole; readonly user: string | null }): Promise<LinkView> {
      await opening;
      if (problem !== null) throw problem;
      const life = clock.wall() + sessionLife;
      if (server === null) {
        // Two may ask at the same moment.
        opening ??= openForLogins(0, life).finally(() => {
          opening = null;
        });
        await opening;
      } else if (config === null) keepUntil(life);
      if (server === null || access === null)
        throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', { retry: true });
      const { code, name, until } = access.code(caller);
      // An address that no cache of the browser can have.
      return { url: `${base(portOf(port))}/login/${name}#${code}`, until, built: isBuilt() };
    },
    /** Whether a path is the page of a link that was not used yet. */
    isLink: (path: string): boolean => access?.isCode(/^\/login\/([\w-]{22})$/.exec(path)?.[1] ?? '') === true,
    /** Where the page of a request is instead; null: here. */
    elsewhere({ headers, url = '' }: IncomingMessage): string | null {
      const origin = originInstead(headers, addressOf(port), door);
      return origin === null ? null : `${origin}${url}`;
    },
    /** Who sends a request, and whether that may be. @throws OnejobError E_API_ORIGIN, E_API_LOGIN, E_API_ROLE */
    admit({ headers, method = '', url = '' }: IncomingMessage, role: Role): CallerAdmission | null {
      checkOrigin(headers, door);
      const asked = { method, path: url, challenge, port: portOf(port) };
      const found = access?.callerOf(headers.authorization, asked) ?? null;
      if (role === 'anyone') return found;
      if (found === null) {
        throw new OnejobError('E_API_LOGIN', 'Cannot answer without a login or a token that is valid now.', {
          hint: 'Type "onejob dashboard" on the host for a link.',
        });
      }
      if (role === 'operator' && found.caller.role !== 'operator')
        throw new OnejobError('E_API_ROLE', 'Cannot do that with a login or a token that may only read.', {
          hint: 'Type "onejob dashboard" on the host for a link of an operator.',
        });
      return found;
    },
    /** Tells a page that asks for it who answers. */
    prove({ headers }: IncomingMessage, response: ServerResponse): void {
      const nonce = headers[nonceHeader];
      if (access === null || typeof nonce !== 'string' || !/^[\w-]{22}$/.test(nonce)) return;
      const signature = access.prove(proofText({ nonce, challenge, port: portOf(port) }));
      response.setHeader(proofHeader, `${challenge}.${signature}`);
    },
    challenge: () => ({ challenge, at: clock.wall() }),
    /** The caller of a request has access, so its connection makes room for no stranger. */
    known: ({ socket }: IncomingMessage, response: ServerResponse, { id }: CallerAdmission): void =>
      connections.known(socket, id, response),
    /** @throws OnejobError E_API_ORIGIN */
    checkHost: (request: IncomingMessage): void => checkHost(request.headers, door),
    /** Uses the code of a link. @throws OnejobError E_API_LOGIN, E_API_LIMIT, E_API_REQUEST */
    login(code: string, key: PublicKey) {
      if (access === null) throw new OnejobError('E_API_LOGIN', 'Cannot log in here.');
      const at = portOf(port);
      const made = access.login(code, key, at);
      log.info('logged in over TCP', { user: made.user, role: made.role });
      return { ...made, daemon: { key: access.key, port: at } };
    },
    /** Reads tokens and certificate again. Logins of a replaced token end. @throws OnejobError E_API_LISTEN */
    refresh(): void {
      if (access?.refresh() === true) connections.closeAll();
      if (server !== null && 'setSecureContext' in server && config?.tls != null) server.setSecureContext(readTls(config.tls));
    },
    closeIdle: (): void => server?.closeIdleConnections(),
    closeAll: connections.closeAll,
    async close(): Promise<void> {
      isClosed = true;
      callOff();
      await opening?.catch(() => {});
      leave();
      server?.closeIdleConnections();
      await connections.drained();
    },
  };

  function base(at: number): string {
    const [name] = door.hosts;
    // Other programs may have the port of another address that this name has.
    const listen = door.listen === 'localhost' && !door.isSecure ? addressOf(port) : door.listen;
    const host = name ?? (listen.includes(':') ? `[${listen}]` : listen);
    // The proxy has the usual port.
    return config?.behindProxy ? `https://${host}` : `${config?.tls == null ? 'http' : 'https'}://${host}:${at}`;
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

/** 0 while it does not listen. */
function portOf(port: Port | null): number {
  return port?.address.port ?? 0;
}

/** Empty while it does not listen. */
function addressOf(port: Port | null): string {
  return port?.address.address ?? '';
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
