/** Calls of a machine to its controller, see protocol.ts. Each ends in bounded time. Nothing of an answer or a secret is in an error. */
import type { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { exchange, NoAnswer, shown } from '../../http/exchange.ts';
import { jsonOf } from '../../system/json.ts';
import {
  type BeatCall,
  beatAnswer,
  type JoinAnswer,
  type JoinCall,
  joinAnswer,
  type Order,
  type StageName,
  stageText,
} from './protocol.ts';

export interface JoinClientParts {
  /** Of the controller, such as `https://ci.example.org:7718`. */
  readonly url: string;
  readonly run: string;
  readonly clock: Clock;
  readonly fetch: typeof fetch;
}

/** ms for one answer. */
const patience = 30_000;
/** Bytes of an answer. */
const most = 16 * 1024 * 1024;

/** All methods throw OnejobError: E_CLOUD_UNREACHABLE, E_CLOUD_ANSWER, or E_CLOUD_DENIED if the controller does not know this machine. */
export interface JoinClient {
  /** `secret`: the token before the join, the credential after it. Of a long text only the end is sent. */
  stage(stage: StageName, text: string, secret: string, signal: AbortSignal): Promise<void>;
  join(said: Omit<JoinCall, 'run'>, signal: AbortSignal): Promise<JoinAnswer>;
  beat(
    said: Omit<BeatCall, 'run' | 'slots'> & Partial<Pick<BeatCall, 'slots'>>,
    credential: string,
    signal: AbortSignal,
  ): Promise<Order>;
}

export function createJoinClient({ url, run, clock, fetch }: JoinClientParts): JoinClient {
  const base = url.replace(/\/+$/, '');

  async function call(what: string, body: object, secret: string | null, signal: AbortSignal): Promise<string> {
    const doing = `Cannot tell the controller (${what})`;
    const headers = { 'content-type': 'application/json', ...(secret !== null && { authorization: `Bearer ${secret}` }) };
    try {
      const request = { method: 'POST', url: `${base}/cloud/${what}`, headers, body: JSON.stringify({ run, ...body }) } as const;
      const { status, text } = await exchange(request, { clock, fetch, timeout: patience, most }, signal);
      if (status === 200 || status === 204) return text;
      const came = `${shown(base)} answered ${status}`;
      if (status === 403) {
        const hint = 'Its token or credential is not known there any more, so nobody waits for this machine. Destroy it.';
        throw new OnejobError('E_CLOUD_DENIED', `${doing}: ${came}.`, { hint });
      }
      const hint = 'Look at "cloud" in the controller’s config, at what is in front of it, and at its log.';
      throw new OnejobError('E_CLOUD_ANSWER', `${doing}: ${came}.`, {
        hint,
        retry: status >= 500 || status === 404 || status === 429,
      });
    } catch (error) {
      if (!(error instanceof NoAnswer)) throw error;
      const { why, hint } = error.about;
      throw new OnejobError('E_CLOUD_UNREACHABLE', `${doing}: ${shown(base)} gave no answer: ${why}.`, { hint, retry: true });
    }
  }

  /** @throws OnejobError E_CLOUD_ANSWER */
  function understand<T extends z.ZodType>(schema: T, what: string, text: string): z.output<T> {
    const found = schema.safeParse(jsonOf(text));
    if (found.success) return found.data;
    const issue = found.error.issues[0];
    const where = issue === undefined ? '' : ` (${issue.path.map(String).join('.')}: ${issue.message})`;
    const hint = 'The controller may be another version of onejob than this machine, or something else answers there.';
    throw new OnejobError('E_CLOUD_ANSWER', `Cannot understand what ${shown(base)} answered (${what})${where}.`, { hint });
  }

  return {
    async stage(stage, text, secret, signal) {
      await call('stage', { stage, text: text.slice(-stageText) }, secret, signal);
    },
    join: async (said, signal) => understand(joinAnswer, 'join', await call('join', said, null, signal)),
    beat: async (said, credential, signal) => understand(beatAnswer, 'beat', await call('beat', said, credential, signal)).do,
  };
}
