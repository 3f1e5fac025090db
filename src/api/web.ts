/**
 * The API over TCP, with the dashboard: who may ask what there, and logins. Where it listens is in `web-port.ts`.
 */
import { randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { OnejobError } from '../base/errors.ts';
import type { PeopleTable } from '../config/people.ts';
import { callRoles, type Role } from '../contract/calls.ts';
import type { LinkView } from '../contract/schema.ts';
import { type AccessTable, type CallerAdmission, type LoginFor, openAccess, sessionLife } from './access.ts';
import type { Caller } from './caller.ts';
import { checkHost, checkOrigin, type DoorOptions, originInstead } from './door.ts';
import { nonceHeader, type PublicKey, proofHeader, proofText } from './signed.ts';
import { WebPort, type WebPortParts } from './web-port.ts';

interface WebParts extends Omit<WebPortParts, 'opens'> {
  /** Whether there is a page. */
  readonly isBuilt: () => boolean;
  readonly people: PeopleTable | null;
}

export class Web {
  readonly #parts: WebParts;
  /** Where it listens. */
  readonly at: WebPort;
  readonly #door: DoorOptions;
  /** Null before it listens. */
  #access: AccessTable | null = null;
  /** Another one for each daemon, and for each config that it has. */
  readonly #challenge = randomBytes(16).toString('base64url');

  constructor(parts: WebParts) {
    this.#parts = parts;
    const { config, stateDir: dir, clock, people } = parts;
    this.#door = {
      listen: config?.listen.host ?? '127.0.0.1',
      hosts: config?.hosts ?? [],
      isSecure: config !== null && (config.tls !== null || config.behindProxy),
    };
    const opens = (): void => {
      this.#access ??= openAccess({ dir, clock, people });
    };
    this.at = new WebPort({ ...parts, opens });
  }

  /** A link for one login. @throws OnejobError E_API_LISTEN */
  async link(caller: LoginFor): Promise<LinkView> {
    const isOpen = await this.at.openFor(sessionLife);
    if (!isOpen || this.#access === null) throw new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', { retry: true });
    const { code, name, until } = this.#access.code(caller);
    // An address that no cache of the browser can have.
    return { url: `${this.#base()}/login/${name}#${code}`, until, built: this.#parts.isBuilt() };
  }

  /** Whether a path is the page of a link that was not used yet. */
  isLink(path: string): boolean {
    return this.#access?.isCode(/^\/login\/([\w-]{22})$/.exec(path)?.[1] ?? '') === true;
  }

  /** Where the page of a request is instead; null: here. */
  elsewhere({ headers, url = '' }: IncomingMessage): string | null {
    const origin = originInstead(headers, this.at.address, this.#door);
    return origin === null ? null : `${origin}${url}`;
  }

  /** Who sends a request, and whether that may be. @throws OnejobError E_API_ORIGIN, E_API_LOGIN, E_API_ROLE */
  admit({ headers, method = '', url = '' }: IncomingMessage, role: Role): CallerAdmission | null {
    checkOrigin(headers, this.#door);
    const asked = { method, path: url, challenge: this.#challenge, port: this.at.number };
    const found = this.#access?.callerOf(headers.authorization, asked) ?? null;
    if (role === 'anyone') return found;
    if (found === null) {
      throw new OnejobError('E_API_LOGIN', 'Cannot answer without a login or a token that is valid now.', {
        hint: 'Type "onejob dashboard" on the host for a link.',
      });
    }
    checkRole(found.caller, role);
    return found;
  }

  /** Tells a page that asks for it who answers. */
  prove({ headers }: IncomingMessage, response: ServerResponse): void {
    const nonce = headers[nonceHeader];
    if (this.#access === null || typeof nonce !== 'string' || !/^[\w-]{22}$/.test(nonce)) return;
    const challenge = this.#challenge;
    const signature = this.#access.prove(proofText({ nonce, challenge, port: this.at.number }));
    response.setHeader(proofHeader, `${challenge}.${signature}`);
  }

  challenge(): { readonly challenge: string; readonly at: number } {
    return { challenge: this.#challenge, at: this.#parts.clock.wall() };
  }

  /** The caller of a request has access, so its connection makes room for no stranger. */
  known({ socket }: IncomingMessage, response: ServerResponse, { id }: CallerAdmission): void {
    this.at.connections.known(socket, id, response);
  }

  /** @throws OnejobError E_API_ORIGIN */
  checkHost(request: IncomingMessage): void {
    checkHost(request.headers, this.#door);
  }

  /** Uses the code of a link. @throws OnejobError E_API_LOGIN, E_API_LIMIT, E_API_REQUEST */
  login(code: string, key: PublicKey) {
    if (this.#access === null) throw new OnejobError('E_API_LOGIN', 'Cannot log in here.');
    const port = this.at.number;
    const made = this.#access.login(code, key, port);
    this.#parts.log.info('logged in over TCP', { user: made.user, role: made.role });
    return { ...made, daemon: { key: this.#access.key, port } };
  }

  /** Reads tokens and certificate again. Logins of a replaced token end. @throws OnejobError E_API_LISTEN */
  refresh(): void {
    if (this.#access?.refresh() === true) this.at.connections.closeAll();
    this.at.refresh();
  }

  #base(): string {
    const { config } = this.#parts;
    const { listen: asked, isSecure, hosts } = this.#door;
    const [name] = hosts;
    // Other programs may have the port of another address that this name has.
    const listen = asked === 'localhost' && !isSecure ? this.at.address : asked;
    const host = name ?? (listen.includes(':') ? `[${listen}]` : listen);
    // The proxy has the usual port.
    return config?.behindProxy ? `https://${host}` : `${config?.tls == null ? 'http' : 'https'}://${host}:${this.at.number}`;
  }
}

/** @throws OnejobError E_API_ROLE if the caller may not do what needs this role */
export function checkRole({ role: has, person }: Caller, role: Role): void {
  if (callRoles.indexOf(has) >= callRoles.indexOf(role)) return;
  if (person !== null) {
    const { name, group } = person;
    const may = has === 'read' ? 'may only look' : 'may run jobs, and nothing else';
    throw new OnejobError('E_API_ROLE', `Cannot do that as ${name}: the group "${group.name}" ${may} here.`, {
      hint: 'Ask an operator of this host; "people" in the config says who may do what.',
    });
  }
  throw new OnejobError('E_API_ROLE', 'Cannot do that with a login or a token that may only read.', {
    hint: 'Type "onejob dashboard" on the host for a link of an operator.',
  });
}
