/**
 * A socket for each person whom the config lets use the daemon. It belongs to that user, mode 0600, so the kernel decides who a
 * connection is from, and nothing that a client sends can change that. Each is made in a folder that only root can enter, and has its
 * owner before it is where others find it.
 */
import { once } from 'node:events';
import { chmodSync, chownSync, lstatSync, mkdirSync, readdirSync, renameSync, rmdirSync, rmSync, statSync } from 'node:fs';
import type { Server } from 'node:http';
import { basename, dirname, join } from 'node:path';
import { attempt, OnejobError } from '../base/errors.ts';
import { peopleFolder, personSocket } from '../config/paths.ts';
import type { PeopleTable } from '../config/people.ts';
import { checkSocketPath } from './sockets.ts';

interface PeopleSocketsParts {
  /** The daemon's own. */
  readonly socket: string;
  readonly people: PeopleTable;
  /** A server that answers one person. */
  readonly serve: (uid: number) => Server;
  /** Called when a socket cannot be made; it is tried again with the next change. */
  readonly failed: (error: unknown) => void;
}

/** Connections of one person at a time. */
const mostConnections = 384;

export class PeopleSockets {
  readonly #parts: PeopleSocketsParts;
  readonly #folder: string;
  readonly #servers = new Map<number, Server>();
  #stop = (): void => {};
  #last: Promise<void> = Promise.resolve();
  #isClosed = false;

  constructor(parts: PeopleSocketsParts) {
    this.#parts = parts;
    this.#folder = peopleFolder(parts.socket);
  }

  /** @throws OnejobError E_SOCKET_DENIED if the folder belongs to somebody else */
  async start(): Promise<void> {
    clearPeople(this.#parts.socket);
    makeFolder(this.#folder);
    this.#stop = this.#parts.people.onChange(() => void this.#sync());
    await this.#sync();
  }

  /** Nobody can connect any more; connections end with `end`. */
  unpublish(): void {
    this.#isClosed = true;
    this.#stop();
    clearPeople(this.#parts.socket);
  }

  closeIdle(): void {
    for (const server of this.#servers.values()) server.closeIdleConnections();
  }

  closeAll(): void {
    for (const server of this.#servers.values()) server.closeAllConnections();
  }

  /** Resolves once all connections have ended. */
  async end(): Promise<void> {
    await this.#last;
    await Promise.all([...this.#servers.values()].map(ended));
  }

  #sync(): Promise<void> {
    this.#last = this.#last.then(() => this.#make()).catch(this.#parts.failed);
    return this.#last;
  }

  /** Makes sockets that are missing, and ends those of people who may no longer. */
  async #make(): Promise<void> {
    const { people, socket } = this.#parts;
    for (const [uid, server] of this.#servers) {
      if (people.of(uid) !== null) continue;
      this.#servers.delete(uid);
      rmSync(personSocket(socket, uid), { force: true });
      void ended(server);
      server.closeAllConnections();
    }
    for (const { uid } of people.all()) {
      if (this.#isClosed) return;
      // One that cannot be made keeps no other away.
      if (!this.#servers.has(uid)) await this.#publish(uid).catch(this.#parts.failed);
    }
  }

  async #publish(uid: number): Promise<void> {
    const path = personSocket(this.#parts.socket, uid);
    checkSocketPath(path);
    const made = join(this.#folder, fresh, basename(path));
    rmSync(made, { force: true });
    const server = this.#parts.serve(uid);
    server.maxConnections = mostConnections;
    await once(server.listen({ path: made }), 'listening');
    chownSync(made, uid, -1);
    chmodSync(made, 0o600);
    if (this.#isClosed) return void ended(server);
    renameSync(made, path);
    this.#servers.set(uid, server);
  }
}

/** Where sockets are made. */
const fresh = '.new';

/**
 * A folder that nobody else can change, nor put another in its place: what root does in it would be done elsewhere.
 * @throws OnejobError E_SOCKET_DENIED
 */
function makeFolder(folder: string): void {
  const above = dirname(folder);
  const { uid, mode } = statSync(above);
  if ((uid !== 0 && uid !== process.geteuid?.()) || ((mode & 0o022) !== 0 && (mode & 0o1000) === 0))
    throw new OnejobError('E_SOCKET_DENIED', `Cannot make sockets of people below ${above}: others can change that folder.`, {
      hint: 'Remove "socket" from the config: the sockets are then in /run/onejob.',
    });
  if (!isOwnFolder(folder)) mkdirSync(folder, { mode: 0o755 });
  if (!isOwnFolder(folder)) throw foreign(folder);
  chmodSync(folder, 0o755);
  const inner = join(folder, fresh);
  if (!isOwnFolder(inner)) mkdirSync(inner, { mode: 0o700 });
}

function isOwnFolder(path: string): boolean {
  const found = lstatSync(path, { throwIfNoEntry: false });
  return found?.isDirectory() === true && found.uid === process.geteuid?.();
}

function foreign(folder: string): OnejobError {
  return new OnejobError('E_SOCKET_DENIED', `Cannot make sockets in ${folder}: it is not a folder of this user.`, {
    hint: 'Move it away.',
  });
}

/** Removes what an earlier daemon left, which nobody may use any more. @throws OnejobError E_SOCKET_DENIED */
export function clearPeople(socket: string): void {
  const folder = peopleFolder(socket);
  if (lstatSync(folder, { throwIfNoEntry: false }) === undefined) return;
  if (!isOwnFolder(folder)) throw foreign(folder);
  for (const inner of [join(folder, fresh), folder]) {
    for (const name of attempt(() => readdirSync(inner)) ?? []) if (name !== fresh) rmSync(join(inner, name), { force: true });
    attempt(() => rmdirSync(inner));
  }
}

function ended(server: Server): Promise<void> {
  return new Promise((resolve) => void server.close(() => resolve()));
}
