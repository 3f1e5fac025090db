/** Requests that become a connection of their own, both ways: shells. Only on sockets. */
import { once } from 'node:events';
import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { abortable } from '../base/abortable.ts';
import { OnejobError } from '../base/errors.ts';
import type { Person } from '../config/people.ts';
import { statusOf, toErrorView } from '../contract/http-errors.ts';
import {
  drained,
  readShellFrames,
  type ShellFrames,
  shellBodies,
  shellBody,
  shellFrame,
  shellFrames,
  shellProtocol,
} from '../contract/shell-frames.ts';
import { type Clock, deadline, every } from '../core/clock.ts';
import type { RunningShell } from '../ports/runtime.ts';
import type { Caller } from './caller.ts';
import { checkConcern } from './own-things.ts';
import { type Answering, checkedRequest, type FindRoute, type StartShell } from './route.ts';
import { checkRole } from './web.ts';

interface UpgradeParts {
  readonly findRoute: FindRoute;
  readonly answering: () => Answering;
  readonly version: string;
  readonly clock: Clock;
  readonly onBug?: ((error: Error, route: string) => void) | undefined;
}

export class Upgrades {
  readonly #parts: UpgradeParts;
  readonly #open = new Map<Duplex, { readonly gone: AbortController; readonly closed: Promise<void>; person: Person | null }>();

  constructor(parts: UpgradeParts) {
    this.#parts = parts;
  }

  /** Whether the request asks for that. Others are answered as usual, whatever they want to upgrade to. */
  isUpgrade(request: IncomingMessage): boolean {
    if (request.headers.upgrade !== shellProtocol) return false;
    try {
      return this.#routeOf(request)?.route.upgrade !== undefined;
    } catch {
      return false;
    }
  }

  /** Serves the connection of an upgraded request until its end. `admit` says who asks, or throws. Never fails. */
  async serve(request: IncomingMessage, connection: Duplex, head: Buffer, admit: () => Caller): Promise<void> {
    const { version, clock, onBug } = this.#parts;
    const gone = new AbortController();
    const { promise: closed, resolve } = Promise.withResolvers<void>();
    const open = { gone, closed, person: null as Person | null };
    this.#open.set(connection, open);
    connection.once('close', () => {
      this.#open.delete(connection);
      gone.abort(new OnejobError('E_DAEMON_CUT', 'The client of the shell has gone.'));
      resolve();
    });
    // An error leads to 'close'.
    connection.on('error', () => {});
    connection.unshift(head);
    let isOpen = false;
    try {
      const caller = admit();
      open.person = caller.person;
      const start = this.#startOf(request, caller, gone.signal);
      connection.write(
        `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ${shellProtocol}\r\nonejob-version: ${version}\r\n\r\n`,
      );
      isOpen = true;
      await talk(connection, start, gone, clock);
    } catch (error) {
      const view = toErrorView(gone.signal.aborted ? gone.signal.reason : error);
      if (view.code === 'E_BUG' && error instanceof Error) onBug?.(error, `${request.method} ${request.url}`);
      if (isOpen) finish(connection, shellFrame('error', view), clock);
      else {
        const status = error instanceof OnejobError ? statusOf(error.code) : 500;
        const body = JSON.stringify(view);
        const head = `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nonejob-version: ${version}\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n`;
        finish(connection, Buffer.from(head + body), clock);
      }
      // Nobody reads what the client may still send, its end included.
      connection.resume();
    }
  }

  /** Ends all of them, with an error that says why. Resolves once their connections have closed. */
  async close(why: OnejobError): Promise<void> {
    const all = [...this.#open.values()];
    for (const { gone } of all) gone.abort(why);
    await Promise.all(all.map(({ closed }) => closed));
  }

  /** Ends those of people who no longer have the rights that they had. */
  endWhere(isOver: (person: Person) => boolean, why: (person: Person) => OnejobError): void {
    for (const { gone, person } of this.#open.values()) if (person !== null && isOver(person)) gone.abort(why(person));
  }

  /** Breaks off those that are left. */
  destroy(): void {
    for (const connection of this.#open.keys()) connection.destroy();
  }

  #routeOf({ method = '', url = '' }: IncomingMessage) {
    return this.#parts.findRoute(method, url.split('?')[0] ?? '');
  }

  /** @throws OnejobError if the caller may not, or the shell cannot be started */
  #startOf(request: IncomingMessage, caller: Caller, signal: AbortSignal): StartShell {
    const { route, params } = this.#routeOf(request) ?? {};
    if (route?.upgrade === undefined) throw new OnejobError('E_API_ROUTE', 'This request cannot be upgraded.');
    const asked = { params, query: {}, body: undefined, signal, caller, request } as Parameters<typeof checkedRequest>[1];
    checkRole(caller, route.role);
    const checked = checkedRequest(route, asked);
    checkConcern(caller, route, checked, this.#parts.answering().manager);
    return route.upgrade(checked, this.#parts.answering());
  }
}

/** ms between two empty frames. */
const heartbeat = 5_000;
/** ms that a client has for its first frame, and to end the connection once it was told all. */
const patience = 10_000;
/** ms that a client has to take what its shell has said, from the end of the shell on. Its terminal may be paused. */
const longPatience = 3_600_000;

/** Between a client and its shell, until the shell has ended. @throws what ended it */
async function talk(connection: Duplex, start: StartShell, gone: AbortController, clock: Clock): Promise<void> {
  // What cannot be read is answered, so the connection stays open.
  const frames = readShellFrames(connection.iterator({ destroyOnReturn: false }));
  const first = await begin(frames, gone.signal, clock);
  if (first.done === true || first.value.kind !== 'start') throw new OnejobError('E_API_REQUEST', 'The shell was not started.');
  gone.signal.throwIfAborted();
  // Nothing is read while a shell is prepared, or its program does not take its input. So only a failed write shows that the client
  // has gone.
  const stop = every(
    clock,
    heartbeat,
    async () => void connection.write(shellFrame('stdout')),
    () => {},
  );
  gone.signal.addEventListener('abort', stop, { once: true });
  let input: Promise<void>;
  try {
    const shell = await start(shellBody(shellBodies.start, first.value), gone.signal);
    // A frame that cannot be read, and the end of the client, end the shell.
    input = listen(shell, frames).then(
      () => gone.abort(new OnejobError('E_DAEMON_CUT', 'The client of the shell has gone.')),
      (error: unknown) => gone.abort(error),
    );
    const limit = () => breakOff(connection, longPatience, clock);
    shell.ended.then(limit, limit);
    for await (const { stream, bytes } of shell.output)
      for (const frame of shellFrames(stream, bytes)) await send(connection, frame, gone.signal);
    finish(connection, shellFrame('exit', { code: await shell.ended }), clock);
  } finally {
    stop();
  }
  await input;
}

async function begin(frames: ShellFrames, signal: AbortSignal, clock: Clock) {
  using limit = deadline(clock, patience, signal);
  try {
    return await abortable(frames.next(), limit.signal);
  } catch (error) {
    if (!limit.passed) throw error;
    throw new OnejobError('E_API_REQUEST', `The client did not start the shell within ${patience / 1_000} s.`, { retry: true });
  }
}

/** Sends the last bytes. A client that has taken them may not keep the connection. */
function finish(connection: Duplex, last: Buffer, clock: Clock): void {
  connection.end(last, () => breakOff(connection, patience, clock));
}

/** Closes the connection after `ms` if it is still open then. */
function breakOff(connection: Duplex, ms: number, clock: Clock): void {
  if (connection.destroyed) return;
  connection.once(
    'close',
    clock.after(ms, () => void connection.destroy()),
  );
}

async function listen(shell: RunningShell, frames: ShellFrames): Promise<void> {
  const { stdin } = shell;
  // A program may end without reading its input.
  stdin.on('error', () => {});
  for await (const frame of frames) {
    if (frame.kind === 'size') shell.resize(shellBody(shellBodies.size, frame));
    else if (frame.kind === 'eof') stdin.end();
    else if (frame.kind === 'stdin' && stdin.writable && !stdin.write(frame.bytes)) await drained(stdin);
  }
}

/** A client that reads slowly slows its shell down. */
async function send(connection: Duplex, frame: Buffer, signal: AbortSignal): Promise<void> {
  if (connection.write(frame) || signal.aborted) return;
  await once(connection, 'drain', { signal }).catch(() => {});
}
