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
  readonly limits?: Partial<typeof webhookLimits>;
  /** Those of the daemon, which stay open when this ends. */
  readonly ports?: Ports | undefined;
}

const webhookLimits = {
  /** Bytes of a body. GitHub's own limit is 25 MB, but an event of a job has about 30 kB. */
  body: 1024 * 1024,
  /** ms for a whole request; GitHub gives up after 10 s. */
  request: 10_000,
};
/** ms: how often the log tells of refused requests, and how long it is normal that nothing has come in. */
const [quiet, young] = [60_000, 600_000];

export type Webhook = ReturnType<typeof createWebhook>;

export function createWebhook({ service, listen, secret, clock, log, heard, limits: given, ports }: WebhookParts) {
  const limits = { ...webhookLimits, ...given };
  const connections = createConnections();
  let answering: Answering | null = null;
  let unusable: { readonly why: string; readonly hint: string } | null = null;
  let since = 0;
  let last: number | null = null;
  let quietUntil = 0;
  let isClosed = false;
  let callOff = (): void => {};

  /** Anybody can cause these lines. */
  const complain = (text: string, reason: string): void => {
    if (clock.now() < quietUntil) return;
    quietUntil = clock.now() + quiet;
    log.warn(text, { service, reason });
  };

  async function isSigned(body: Buffer, header: unknown): Promise<boolean> {
    const expected = createHmac('sha256', await secret())
      .update(body)
      .digest();
    const [, sent = ''] = /^sha256=([0-9a-f]{64})$/i.exec(String(header)) ?? [];
    return sent !== '' && timingSafeEqual(Buffer.from(sent, 'hex'), expected);
  }

  /** The status of the answer. */
  async function take(request: IncomingMessage, response: ServerResponse): Promise<number> {
    const { method, headers } = request;
    if (method !== 'POST') return 405;
    if (Number(headers['content-length'] ?? 0) > limits.body) return 413;
    const body = await bytesOf(request, limits.body, () => new Error('the body is too large'));
    if (!(await isSigned(body, headers['x-hub-signature-256']))) {
      complain('a webhook was refused', 'its signature does not fit the secret of the service');
      return 401;
    }
    connections.known(request.socket, 'GitHub', response);
    if (headers['x-github-event'] !== 'workflow_job') {
      last = clock.now();
      return 204;
    }
    const isForm = headers['content-type']?.startsWith('application/x-www-form-urlencoded') === true;
    const event = wire.jobEvent.safeParse(jsonOf(isForm ? (new URLSearchParams(String(body)).get('payload') ?? '') : String(body)));
    if (!event.success) {
      const how = isForm ? 'a form' : 'JSON';
      complain(
        'a webhook was not understood',
        `it is signed, but read as ${how} it does not tell of a job: check its content type`,
      );
      return 400;
    }
    last = clock.now();
    heard(event.data);
    return 204;
  }

  const handle = oneAtATime((request, response) => {
    take(request, response)
      .catch((error: unknown) => {
        if (!request.destroyed || request.complete) complain('a webhook was not taken', toFailure(error).message);
        return 503;
      })
      .then((status) => {
        // What was not read of a body must not be taken for another request.
        const how = status === 204 || status === 401 ? {} : { connection: 'close' };
        response.writeHead(status, { ...how, ...(status === 405 && { allow: 'POST' }) }).end();
      });
  });

  async function open(): Promise<void> {
    const made = http.createServer(
      {
        requestTimeout: limits.request,
        headersTimeout: limits.request,
        connectionsCheckingInterval: 1_000,
        keepAliveTimeout: 72_000,
        maxHeaderSize: 16 * 1024,
      },
      handle,
    );
    connections.watch(made);
    try {
      answering = await answerAt(listen, made, { ports, log });
      since = clock.now();
      unusable = null;
      log.info('takes webhooks', { service, address: addressText(listen) });
      if (isClosed) await answering.leave();
    } catch (error) {
      const found = whyNoPort(listen, `services.${service}.webhook.listen`, error);
      if (unusable?.why !== found.why)
        log.error('cannot take webhooks', { service, address: addressText(listen), reason: found.why });
      unusable = found;
      if (!isClosed) callOff = clock.after(listenAgain, () => void open());
    }
  }

  return {
    /** Never fails: agents work without it. */
    open,
    findings(subject: string): Finding[] {
      const where = addressText(listen);
      const polling = 'Until then, onejob learns of jobs by polling.';
      if (unusable !== null)
        return [problem(subject, `Cannot listen on ${where} for webhooks: ${unusable.why}.`, `${unusable.hint} ${polling}`)];
      if (answering === null) return [];
      const ago = (from: number) => formatDuration(Math.max(1_000, Math.floor((clock.now() - from) / 1_000) * 1_000));
      if (last !== null) return [fine(subject, `The last webhook came in ${ago(last)} ago.`)];
      const none = `No webhook has come in since onejob listens on ${where}, for ${ago(since)}.`;
      if (clock.now() - since < young) return [fine(subject, none)];
      const hint = `Look at "Recent Deliveries" of the webhook at GitHub, and at what forwards them to ${where}. ${polling}`;
      return [warning(subject, none, hint)];
    },
    async close(): Promise<void> {
      isClosed = true;
      callOff();
      const left = answering?.leave();
      // Also those whose handshake is not over, which the server does not count yet.
      connections.closeAll();
      await left;
    },
  };
}
