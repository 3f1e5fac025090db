/**
 * Takes GitHub's webhooks: `workflow_job` events, signed with a secret that only GitHub and onejob know. They come through a proxy or
 * relay of the user, so anybody may reach this port. GitHub sends each event once, and does not send it again by itself.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { Log } from '../../base/log.ts';
import { formatDuration } from '../../base/units.ts';
import type { Clock } from '../../core/clock.ts';
import type { Listen } from '../../http/address.ts';
import { bytesOf } from '../../http/exchange.ts';
import { Inbound } from '../../http/inbound.ts';
import { addressText } from '../../http/listen.ts';
import type { Ports } from '../../http/ports.ts';
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
/** ms for which it is normal that nothing has come in. */
const young = 600_000;

export class Webhook {
  readonly #parts: WebhookParts;
  readonly #limits: WebhookLimits;
  readonly #inbound: Inbound;
  #since = 0;
  #last: number | null = null;

  constructor(parts: WebhookParts) {
    this.#parts = parts;
    this.#limits = { ...webhookLimits, ...parts.limits };
    const { service, listen, clock, log, ports } = parts;
    this.#inbound = new Inbound({
      listen,
      key: `services.${service}.webhook.listen`,
      tls: null,
      clock,
      log,
      ports,
      request: this.#limits.request,
      says: { opened: 'takes webhooks', failed: 'cannot take webhooks', fields: { service } },
      handle: (request, response) => this.#handle(request, response),
      opened: () => {
        this.#since = clock.now();
      },
    });
  }

  /** Never fails: agents work without it. */
  open(): Promise<void> {
    return this.#inbound.open();
  }

  findings(subject: string): Finding[] {
    const where = addressText(this.#parts.listen);
    const polling = 'Until then, onejob learns of jobs by polling.';
    const { problem: unusable, port } = this.#inbound;
    if (unusable !== null)
      return [problem(subject, `Cannot listen on ${where} for webhooks: ${unusable.why}.`, `${unusable.hint} ${polling}`)];
    if (port === null) return [];
    const ago = (from: number) => formatDuration(Math.max(1_000, Math.floor((this.#parts.clock.now() - from) / 1_000) * 1_000));
    if (this.#last !== null) return [fine(subject, `The last webhook came in ${ago(this.#last)} ago.`)];
    const none = `No webhook has come in since onejob listens on ${where}, for ${ago(this.#since)}.`;
    if (this.#parts.clock.now() - this.#since < young) return [fine(subject, none)];
    const hint = `Look at "Recent Deliveries" of the webhook at GitHub, and at what forwards them to ${where}. ${polling}`;
    return [warning(subject, none, hint)];
  }

  close(): Promise<void> {
    return this.#inbound.close();
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    this.#take(request, response)
      .catch((error: unknown) => {
        if (!request.destroyed || request.complete)
          this.#inbound.complain('a webhook was not taken', { reason: toFailure(error).message });
        return 503;
      })
      .then((status) => {
        // What was not read of a body must not be taken for another request.
        const how = status === 204 || status === 401 ? {} : { connection: 'close' };
        response.writeHead(status, { ...how, ...(status === 405 && { allow: 'POST' }) }).end();
      });
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
      this.#inbound.complain('a webhook was refused', { reason: 'its signature does not fit the secret of the service' });
      return 401;
    }
    this.#inbound.known(request, 'GitHub', response);
    if (headers['x-github-event'] !== 'workflow_job') {
      this.#last = this.#parts.clock.now();
      return 204;
    }
    const isForm = headers['content-type']?.startsWith('application/x-www-form-urlencoded') === true;
    const event = wire.jobEvent.safeParse(jsonOf(isForm ? (new URLSearchParams(String(body)).get('payload') ?? '') : String(body)));
    if (!event.success) {
      const how = isForm ? 'a form' : 'JSON';
      this.#inbound.complain('a webhook was not understood', {
        reason: `it is signed, but read as ${how} it does not report a job: check its content type`,
      });
      return 400;
    }
    this.#last = this.#parts.clock.now();
    this.#parts.heard(event.data);
    return 204;
  }
}
