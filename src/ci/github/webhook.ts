/**
 * Takes GitHub's webhooks: `workflow_job` events, signed with a secret that only GitHub and onejob know. They come through a proxy or
 * relay of the user, so anybody may reach this port. GitHub sends each event once, and does not send it again by itself.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import http, { type IncomingMessage, type ServerResponse } from 'node:http';
import { toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { formatDuration } from '../../base/units.ts';
import type { Clock } from '../../core/clock.ts';
import type { Listen } from '../../http/address.ts';
import { createConnections, oneAtATime } from '../../http/connections.ts';
import { bytesOf } from '../../http/exchange.ts';
import { addressText, listenAgain, whyNoPort } from '../../http/listen.ts';
import { type Answering, answerAt, type Ports } from '../../http/ports.ts';
import { jsonOf } from '../../system/json.ts';
import * as wire from './wire.ts';

export interface WebhookParts {
  /** Its name in the config. */
  readonly service: string;
  readonly listen: Listen;
  /** @throws OnejobError E_SECRET */
  readonly secret: () => Promise<string>;
  readonly clock: Clock;
  readonly log: Pick<Log, 'info' | 'warn' | 'error'>;
  readonly heard: (event: wire.JobEvent) => void;
  readonly limits?: Partial<WebhookLimits>;
  /** Those of the daemon, which stay open when this ends. */
  readonly ports?: Ports | undefined;
}

const webhookLimits = {
  /** Bytes of a body. GitHub's own limit is 25 MB, but an event of a job has about 30 kB. */
  body: 1024 * 1024,
  /** ms for a whole request; GitHub gives up after 10 s. */
  request: 10_000,
};
type WebhookLimits = Readonly<typeof webhookLimits>;
/** ms: how often the log tells of refused requests, and how long it is normal that nothing has come in. */
const [quiet, young] = [60_000, 600_000];

export class Webhook {
  readonly #parts: WebhookParts;
  readonly #limits: WebhookLimits;
  readonly #connections = createConnections();
  #answering: Answering | null = null;
  #unusable: { readonly why: string; readonly hint: string } | null = null;
  #since = 0;
  #last: number | null = null;
  #quietUntil = 0;
  #isClosed = false;
  #callOff: () => void = () => {};

  constructor(parts: WebhookParts) {
    this.#parts = parts;
    this.#limits = { ...webhookLimits, ...this.#parts.limits };
  }

  /** Never fails: agents work without it. */
  async open(): Promise<void> {
    const made = http.createServer(
      {
        requestTimeout: this.#limits.request,
        headersTimeout: this.#limits.request,
        connectionsCheckingInterval: 1_000,
        keepAliveTimeout: 72_000,
        maxHeaderSize: 16 * 1024,
      },
      oneAtATime((request, response) => this.#handle(request, response)),
    );
    this.#connections.watch(made);
    try {
      this.#answering = await answerAt(this.#parts.listen, made, { ports: this.#parts.ports, log: this.#parts.log });
      this.#since = this.#parts.clock.now();
      this.#unusable = null;
      this.#parts.log.info('takes webhooks', { service: this.#parts.service, address: addressText(this.#parts.listen) });
      if (this.#isClosed) await this.#answering.leave();
    } catch (error) {
      const found = whyNoPort(this.#parts.listen, `services.${this.#parts.service}.webhook.listen`, error);
      if (this.#unusable?.why !== found.why)
        this.#parts.log.error('cannot take webhooks', {
          service: this.#parts.service,
          address: addressText(this.#parts.listen),
          reason: found.why,
        });
      this.#unusable = found;
      if (!this.#isClosed) this.#callOff = this.#parts.clock.after(listenAgain, () => void this.open());
    }
  }

  findings(subject: string): Finding[] {
    const where = addressText(this.#parts.listen);
    const polling = 'Until then, onejob learns of jobs by polling.';
    if (this.#unusable !== null)
      return [
        problem(subject, `Cannot listen on ${where} for webhooks: ${this.#unusable.why}.`, `${this.#unusable.hint} ${polling}`),
      ];
    if (this.#answering === null) return [];
    const ago = (from: number) => formatDuration(Math.max(1_000, Math.floor((this.#parts.clock.now() - from) / 1_000) * 1_000));
    if (this.#last !== null) return [fine(subject, `The last webhook came in ${ago(this.#last)} ago.`)];
    const none = `No webhook has come in since onejob listens on ${where}, for ${ago(this.#since)}.`;
    if (this.#parts.clock.now() - this.#since < young) return [fine(subject, none)];
    const hint = `Look at "Recent Deliveries" of the webhook at GitHub, and at what forwards them to ${where}. ${polling}`;
    return [warning(subject, none, hint)];
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#callOff();
    const left = this.#answering?.leave();
    // Also those whose handshake is not over, which the server does not count yet.
    this.#connections.closeAll();
    await left;
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    this.#take(request, response)
      .catch((error: unknown) => {
        if (!request.destroyed || request.complete) this.#complain('a webhook was not taken', toFailure(error).message);
        return 503;
      })
      .then((status) => {
        // What was not read of a body must not be taken for another request.
        const how = status === 204 || status === 401 ? {} : { connection: 'close' };
        response.writeHead(status, { ...how, ...(status === 405 && { allow: 'POST' }) }).end();
      });
  }

  /** Anybody can cause these lines. */
  #complain(text: string, reason: string): void {
    if (this.#parts.clock.now() < this.#quietUntil) return;
    this.#quietUntil = this.#parts.clock.now() + quiet;
    this.#parts.log.warn(text, { service: this.#parts.service, reason });
  }

  async #isSigned(body: Buffer, header: unknown): Promise<boolean> {
    const expected = createHmac('sha256', await this.#parts.secret())
      .update(body)
      .digest();
    const [, sent = ''] = /^sha256=([0-9a-f]{64})$/i.exec(String(header)) ?? [];
    return sent !== '' && timingSafeEqual(Buffer.from(sent, 'hex'), expected);
  }

  /** The status of the answer. */
  async #take(request: IncomingMessage, response: ServerResponse): Promise<number> {
    const { method, headers } = request;
    if (method !== 'POST') return 405;
    if (Number(headers['content-length'] ?? 0) > this.#limits.body) return 413;
    const body = await bytesOf(request, this.#limits.body, () => new Error('the body is too large'));
    if (!(await this.#isSigned(body, headers['x-hub-signature-256']))) {
      this.#complain('a webhook was refused', 'its signature does not fit the secret of the service');
      return 401;
    }
    this.#connections.known(request.socket, 'GitHub', response);
    if (headers['x-github-event'] !== 'workflow_job') {
      this.#last = this.#parts.clock.now();
      return 204;
    }
    const isForm = headers['content-type']?.startsWith('application/x-www-form-urlencoded') === true;
    const event = wire.jobEvent.safeParse(jsonOf(isForm ? (new URLSearchParams(String(body)).get('payload') ?? '') : String(body)));
    if (!event.success) {
      const how = isForm ? 'a form' : 'JSON';
      this.#complain(
        'a webhook was not understood',
        `it is signed, but read as ${how} it does not tell of a job: check its content type`,
      );
      return 400;
    }
    this.#last = this.#parts.clock.now();
    this.#parts.heard(event.data);
    return 204;
  }
}
