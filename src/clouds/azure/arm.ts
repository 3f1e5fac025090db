/**
 * Calls of Azure Resource Manager. The token goes to the configured address only, so pages and operations that Azure names elsewhere
 * are refused.
 */
import { z } from 'zod';
import { invalidPart } from '../../http/api.ts';
import { asksFor, brief, type Outgoing } from '../../http/exchange.ts';
import { CloudError } from '../../ports/cloud.ts';
import { without } from '../../secrets/credential.ts';
import { jsonOf } from '../../system/json.ts';
import type { Caller, CloudParts } from '../kit/caller.ts';
import type { AzureConfig } from './config.ts';
import type { ArmCredential } from './credential.ts';
import { armRefusal, type Said, saidOf } from './errors.ts';
import { type Doing, permissions } from './permissions.ts';

/** Versions of the API, one for each provider. Inline interfaces have tags since 2025-04-01 of Compute. */
export const versions = {
  authorization: '2022-04-01',
  compute: '2025-04-01',
  disks: '2024-03-02',
  galleries: '2024-03-03',
  network: '2024-05-01',
  resources: '2021-04-01',
  schedule: '2025-05-01',
  skus: '2021-07-01',
  subscriptions: '2022-12-01',
} as const;

export interface ArmCall {
  readonly method: Outgoing['method'];
  /** Below the endpoint, beginning with a slash; or a whole address of the same origin. */
  readonly path: string;
  readonly version?: keyof typeof versions;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: unknown;
  /** Which permissions it needs. */
  readonly needs: Doing;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  /** Whether a machine may be the result of the call, so that its fate is unknown when no answer comes. */
  readonly makesMachine?: boolean;
}

/** A call that reads. */
export const get = (version: keyof typeof versions, needs: Doing, path: string, doing: string): ArmCall => ({
  method: 'GET',
  version,
  needs,
  path,
  doing,
});

/** A success, or a refusal that the caller may understand. */
export interface ArmAnswer {
  readonly status: number;
  readonly ok: boolean;
  readonly body: unknown;
  readonly headers: Headers;
  /** Empty for a success. */
  readonly said: Said;
  /** ms to wait that Azure asks for; null: it does not. */
  readonly wait: number | null;
}

/** Most pages of one list. */
const mostPages = 500;

export class Arm {
  readonly #config: Pick<AzureConfig, 'endpoint'>;
  readonly #caller: Caller;
  readonly #credential: ArmCredential;
  readonly #parts3: Pick<CloudParts, 'clock'>;
  readonly #place: string;

  constructor(config: Pick<AzureConfig, 'endpoint'>, caller: Caller, credential: ArmCredential, parts3: Pick<CloudParts, 'clock'>) {
    this.#config = config;
    this.#caller = caller;
    this.#credential = credential;
    this.#parts3 = parts3;
    this.#place = new URL(this.#config.endpoint).host;
  }

  /** Any answer but a refused credential. @throws CloudError */
  async ask(call: ArmCall, signal: AbortSignal): Promise<ArmAnswer> {
    const { method, body, doing, makesMachine = false } = call;
    const url = this.#urlOf(call);
    const header = await this.#credential.header(signal);
    const headers = { Authorization: header, Accept: 'application/json' };
    const answer = await this.#caller.send(
      { method, url, headers, json: body },
      { doing, place: `Azure (${this.#place})`, changes: makesMachine },
      signal,
    );
    const found = answer.text === '' ? undefined : jsonOf(answer.text);
    const ok = answer.status >= 200 && answer.status < 300;
    const { code, message } = ok ? { code: '', message: '' } : saidOf(found, answer.status);
    const said = { code, message: without(this.#credential.redact(), message) };
    if (answer.status === 401) {
      const { message: why, hint, retry } = this.#credential.rejected(brief(`${code}: ${message}`), header);
      throw new CloudError('E_CLOUD_CREDENTIAL', `Cannot ${doing}: ${why}`, { hint, retry, reason: code });
    }
    return {
      status: answer.status,
      ok,
      body: found,
      headers: answer.headers,
      said,
      wait: asksFor(answer.headers, this.#parts3.clock.wall()),
    };
  }

  refuse({ doing, needs, makesMachine = false }: ArmCall, { said, status }: ArmAnswer): CloudError {
    return armRefusal({ doing, said, status, makesMachine, needs: permissions[needs] });
  }

  /** @throws CloudError E_CLOUD_ANSWER if the body is not what it should be */
  bodyAs<T extends z.ZodType>(schema: T, { doing, makesMachine = false }: ArmCall, { body, status }: ArmAnswer): z.output<T> {
    const found = schema.safeParse(body);
    if (found.success) return found.data;
    const where = invalidPart(found.error, 'its answer');
    const message = `Cannot ${doing}: Azure answered ${status}, and ${where} is not what it should be.`;
    const hint = 'Check "endpoint", and any proxy in front of it.';
    throw new CloudError('E_CLOUD_ANSWER', message, { retry: true, isAmbiguous: makesMachine, hint });
  }

  /** A success. @throws CloudError */
  async carryOut(call: ArmCall, signal: AbortSignal): Promise<ArmAnswer> {
    const answer = await this.ask(call, signal);
    if (!answer.ok) throw this.refuse(call, answer);
    return answer;
  }

  /** What a success says. @throws CloudError */
  async read<T extends z.ZodType>(schema: T, call: ArmCall, signal: AbortSignal): Promise<z.output<T>> {
    return this.bodyAs(schema, call, await this.carryOut(call, signal));
  }

  /** All pages, each told as it comes: what came before an error is not lost. @throws CloudError */
  async pages<T extends z.ZodType>(item: T, call: ArmCall, take: (items: z.output<T>[]) => void, signal: AbortSignal) {
    const page = z.object({ value: z.array(item), nextLink: z.string().nullish() });
    let next: ArmCall = call;
    for (let count = 0; count < mostPages; count += 1) {
      const found = await this.read(page, next, signal);
      take(found.value as z.output<T>[]);
      if (found.nextLink == null || found.nextLink === '') return;
      const { method, needs, doing } = call;
      next = { method, needs, doing, path: found.nextLink };
    }
    throw new CloudError('E_CLOUD_ANSWER', `Cannot ${call.doing}: Azure has more than ${mostPages} pages.`);
  }

  /** The items of all pages. @throws CloudError */
  async all<T extends z.ZodType>(item: T, call: ArmCall, signal: AbortSignal): Promise<z.output<T>[]> {
    const found: z.output<T>[] = [];
    await this.pages(item, call, (items) => found.push(...items), signal);
    return found;
  }

  #urlOf({ path, version, query, doing, makesMachine = false }: ArmCall): URL {
    const url = URL.parse(path, this.#config.endpoint);
    if (url === null || url.origin !== new URL(this.#config.endpoint).origin) {
      const where = url?.origin ?? 'an invalid address';
      const message = `Cannot ${doing}: Azure refers to ${where}, which is not ${this.#config.endpoint}, so the token is not sent there.`;
      throw new CloudError('E_CLOUD_ANSWER', message, { isAmbiguous: makesMachine, hint: 'Check "endpoint".' });
    }
    if (version !== undefined) url.searchParams.set('api-version', versions[version]);
    for (const [name, value] of Object.entries(query ?? {})) url.searchParams.set(name, value);
    return url;
  }
}
