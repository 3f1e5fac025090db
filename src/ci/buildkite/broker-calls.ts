/** What the manager says to the broker, and hears of it: requests over its Unix socket, and one stream of events. */
import http from 'node:http';
import { createInterface } from 'node:readline';
import { json } from 'node:stream/consumers';
import { z } from 'zod';
import { OnejobError } from '../../errors.ts';
import { type BrokerEvent, phases } from './broker/protocol.ts';

/** ms after which a broker that does not answer is given up. */
const patience = 10_000;
/** ms after which a stream of events without a sign of life is given up; the broker gives one every 5 s. */
const silence = 15_000;

export interface BrokerCalls {
  /** @throws OnejobError E_BROKER (retry) when it is away or silent; what the broker said when it refused */
  post<T>(path: string, body: unknown, answer: z.ZodType<T>, signal: AbortSignal): Promise<T>;
  /** Until the stream ends, for whatever reason but `signal`. @throws OnejobError E_BROKER */
  events(each: (event: BrokerEvent) => void, signal: AbortSignal): Promise<void>;
}

const refusal = z.object({ code: z.string(), message: z.string(), hint: z.string().nullish(), retry: z.boolean().optional() });

/** @param limits ms, other than usual */
export function brokerCalls(
  socketPath: string,
  limits: { readonly patience?: number; readonly silence?: number } = {},
): BrokerCalls {
  const quiet = limits.silence ?? silence;
  const request = (method: 'GET' | 'POST', path: string, body: string | null, signal: AbortSignal) =>
    ask(socketPath, { method, path, body, patience: limits.patience ?? patience }, signal);

  return {
    async post(path, body, answer, signal) {
      const response = await request('POST', path, JSON.stringify(body), signal);
      const found: unknown = await json(response).catch((error: unknown) => {
        signal.throwIfAborted();
        throw away(`broke off its answer (${error instanceof Error ? error.message : 'no reason'})`);
      });
      if (response.statusCode === 200 || response.statusCode === 204) {
        const parsed = answer.safeParse(found);
        if (parsed.success) return parsed.data;
        throw away('answers in a way that this version does not understand');
      }
      const said = refusal.safeParse(found);
      if (!said.success) throw away(`answers with status ${response.statusCode}`);
      const { message, hint, retry } = said.data;
      throw new OnejobError('E_BROKER', message, { ...(typeof hint === 'string' && { hint }), retry: retry ?? false });
    },

    async events(each, signal) {
      const response = await request('GET', '/v1/events', null, signal);
      if (response.statusCode !== 200) {
        response.destroy();
        throw away(`answers with status ${response.statusCode}`);
      }
      let isQuiet = false;
      response.socket.setTimeout(quiet, () => {
        isQuiet = true;
        response.destroy();
      });
      const lines = createInterface({ input: response, crlfDelay: Number.POSITIVE_INFINITY });
      // A response that is destroyed here has neither an end nor an error, and its lines would be waited for for ever.
      response.once('close', () => lines.close());
      // Our own process wrote them, and `state` says by which protocol.
      const next = lines[Symbol.asyncIterator]();
      try {
        for (;;) {
          // A stream that broke off is one that ended.
          const { done, value } = await next.next().catch(() => ({ done: true as const, value: '' }));
          if (done === true) break;
          if (value === '') continue;
          const event = parsed(value);
          if (event === null) break;
          each(event);
        }
      } finally {
        lines.close();
        response.destroy();
      }
      if (isQuiet) throw away('gives no sign of life');
    },
  };
}

/** null for a line that was cut off, which is the last one of a broker that was killed. */
function parsed(line: string): BrokerEvent | null {
  try {
    return JSON.parse(line);
  } catch {
    return null;
  }
}

const agentOfState = z.object({
  name: z.string(),
  service: z.string(),
  kind: z.string(),
  phase: z.string(),
  problem: z.string().nullable(),
});
const stateAnswer = z.object({
  protocol: z.int(),
  version: z.string(),
  pid: z.int(),
  port: z.int(),
  // One of an earlier onejob does not say, and has none.
  proxy: z.string().nullish(),
  agents: z.array(agentOfState),
  services: z.array(z.object({ service: z.string(), kind: z.enum(['ok', 'refused', 'away']), why: z.string().nullable() })),
});

const knownAgent = z.object({ id: z.string(), service: z.string(), phase: z.enum(phases), agent: z.string().nullable() });

/** What `doctor` looks at of a broker. */
export type BrokerLook = z.infer<typeof stateAnswer>;

/** Asks a broker how it is, whoever follows its events. @throws OnejobError E_BROKER */
export const lookAtBroker = (socketPath: string, signal: AbortSignal): Promise<BrokerLook> =>
  stateOf(socketPath, stateAnswer, signal);

/** The agents that a broker has, whoever follows its events. @throws OnejobError E_BROKER */
export async function agentsOfBroker(socketPath: string, signal: AbortSignal): Promise<z.infer<typeof knownAgent>[]> {
  return (await stateOf(socketPath, z.object({ agents: z.array(knownAgent) }), signal)).agents;
}

async function stateOf<T>(socketPath: string, answer: z.ZodType<T>, signal: AbortSignal): Promise<T> {
  const response = await ask(socketPath, { method: 'GET', path: '/v1/state', body: null, patience }, signal);
  const found: unknown = await json(response).catch(() => signal.throwIfAborted());
  const parsed = answer.safeParse(found);
  if (response.statusCode === 200 && parsed.success) return parsed.data;
  throw away('answers in a way that this version does not understand');
}

interface Asked {
  readonly method: 'GET' | 'POST';
  readonly path: string;
  readonly body: string | null;
  /** ms */
  readonly patience: number;
}

function ask(
  socketPath: string,
  { method, path, body, patience: within }: Asked,
  signal: AbortSignal,
): Promise<http.IncomingMessage> {
  return new Promise((resolve, reject) => {
    const sent = http.request({ socketPath, path, method, signal, timeout: within, agent: false }, resolve);
    sent.once('timeout', () => sent.destroy(away(`does not answer within ${within / 1000} s`)));
    sent.once('error', (error) => reject(error instanceof OnejobError ? error : away(`cannot be reached (${error.message})`)));
    if (body !== null) sent.setHeader('Content-Type', 'application/json');
    sent.end(body ?? undefined);
  });
}

function away(why: string): OnejobError {
  return new OnejobError('E_BROKER', `The broker, which carries what Buildkite agents say, ${why}.`, {
    hint: 'It is started again by itself; "broker.log" in the state directory says what is wrong when it is not.',
    retry: true,
  });
}
