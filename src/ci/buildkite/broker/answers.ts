/**
 * What the service answers to an agent, as far as the broker believes it (agent v3.137 `api/`, `core/`). What is missing or
 * odd costs no job: only the session's token and a job's id must be there.
 */
import { z } from 'zod';
import type { GivenJob } from './protocol.ts';

/** Goes into a header as it is. */
const token = z.string().regex(/^[\x21-\x7e]{1,4096}$/);

/** Whole seconds; an agent whose interval were 0 would ask without a pause. */
const seconds = (usual: number) =>
  z
    .number()
    .catch(usual)
    .transform((found) => Math.min(Math.max(found, 1), 3600));

const endpoint = z
  .string()
  .nullish()
  .catch(null)
  .transform((found) => endpointOf(found ?? ''));

/** Only names that the service may set; null when it says nothing about them, and then the former stay. */
const requestHeaders = z
  .record(z.string(), z.unknown())
  .nullish()
  .catch(null)
  .transform((found) => {
    if (found == null) return null;
    const fitting = Object.entries(found).filter(
      (pair): pair is [string, string] =>
        /^Buildkite-[A-Za-z0-9-]+$/.test(pair[0]) && typeof pair[1] === 'string' && /^[\t\x20-\x7e]*$/.test(pair[1]),
    );
    return Object.fromEntries(fitting);
  });

export const registerAnswer = z.looseObject({ access_token: token, endpoint, request_headers: requestHeaders });

const intervals = z.object({ ping_interval: seconds(10), job_status_interval: seconds(5), heartbeat_interval: seconds(60) });

/** How often an agent speaks, in ms, from the answer to its `register`. */
export function intervalsOf(answer: unknown): { readonly ping: number; readonly status: number; readonly heartbeat: number } {
  const found = intervals.parse(typeof answer === 'object' && answer !== null ? answer : {});
  return {
    ping: found.ping_interval * 1000,
    status: found.job_status_interval * 1000,
    heartbeat: found.heartbeat_interval * 1000,
  };
}

const words = z
  .string()
  .nullish()
  .catch(null)
  .transform((found) => (found == null ? '' : oneLine(found)));

const jobId = z.string().min(1).max(256);

export const pingAnswer = z.object({
  action: words,
  message: words,
  job: z.object({ id: jobId }).nullish().catch(null),
  endpoint,
  request_headers: requestHeaders,
});
export type PingAnswer = z.output<typeof pingAnswer>;

export const jobState = z.object({ state: words });

/** States after which nobody wants the job's end any more (agent v3.137 `agent/job_runner.go`). */
export const unwantedStates: ReadonlySet<string> = new Set(['canceling', 'canceled', 'timing_out', 'timed_out']);

const accepted = z.looseObject({
  id: jobId.optional().catch(undefined),
  env: z.record(z.string(), z.unknown()).nullish().catch(null),
  token: token.nullish().catch(null),
});

/** A job as `accept` or `acquire` gave it, apart from its token; null when it is none. */
export function givenJob(answer: unknown, id: string): { readonly job: GivenJob; readonly token: string | null } | null {
  const found = accepted.safeParse(answer);
  if (!found.success) return null;
  const { token: secret, env, ...rest } = found.data;
  const texts = Object.entries(env ?? {}).filter((pair): pair is [string, string] => typeof pair[1] === 'string');
  return { job: { ...rest, id, env: Object.fromEntries(texts) }, token: secret ?? null };
}

const refusal = z.object({ message: z.string() });

/** What the service says about a refusal, on one line; empty when it says nothing. */
export function messageOf(body: unknown): string {
  const found = refusal.safeParse(body);
  return found.success ? oneLine(found.data.message) : '';
}

/** For people: without what a terminal would act on, 300 characters at most. */
export function oneLine(text: string): string {
  const line = text
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what must not reach a terminal
    .replace(/[\u0000-\u001f\u007f-\u009f]+/g, ' ')
    .trim();
  return line.length > 300 ? `${line.slice(0, 299)}…` : line;
}

/** An address of the service without a slash at its end; null for anything else. */
function endpointOf(text: string): string | null {
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol) || url.username !== '' || url.search !== '' || url.hash !== '') return null;
  return text.replace(/\/+$/, '');
}
