/**
 * What the service says to an agent, as a sandbox may see it: the same answer, with the broker's tokens in the place of the
 * service's, and without anything that would lead the agent past the broker. Fields nobody knows stay as they are.
 *
 * Field names from the agent's `api/agents.go`, `api/jobs.go`, `api/pings.go`; the forms of `secrets` from `go-pipeline`.
 */
import { z } from 'zod';
import type { Sealed } from './record.ts';

/**
 * An answer to `register` for a sandbox. Intervals are whole seconds; the agent does not survive a 0.
 * @param pingInterval for an agent whose pings are answered here; null leaves the service's
 */
export function registerAnswerFor(stored: unknown, session: string, pingInterval: number | null): Record<string, unknown> {
  const { endpoint: _, ...rest } = z.record(z.string(), z.unknown()).parse(stored);
  return {
    ...rest,
    access_token: session,
    ping_interval: pingInterval ?? atLeastOne(rest.ping_interval),
    job_status_interval: atLeastOne(rest.job_status_interval),
    heartbeat_interval: atLeastOne(rest.heartbeat_interval),
  };
}

function atLeastOne(seconds: unknown): number {
  return typeof seconds === 'number' && seconds >= 1 ? Math.floor(seconds) : 1;
}

/** The service's own keys are letters, digits and underscores, so none of them is one of these. */
const ownKey = 'onejob:';

/** By which the agent asks for one of our secrets. */
export function secretKey(name: string): string {
  return `${ownKey}${name}`;
}

/** Whether `key` asks for one of ours, or for what looks like one: the service is never asked for it. */
export function isOwnKey(key: string): boolean {
  return key.trim().toLowerCase().startsWith(ownKey);
}

/** Taken out of every text in a foreign answer, names of fields among them: `clean` knows the service's tokens. */
export function withoutTokens(value: unknown, clean: (text: string) => string): unknown {
  if (typeof value === 'string') return clean(value);
  if (Array.isArray(value)) return value.map((each) => withoutTokens(each, clean));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [clean(name), withoutTokens(each, clean)]));
}

/** An agent's own session, which it sets for its job by itself. */
const sessionVariable = 'BUILDKITE_AGENT_ACCESS_TOKEN';

const withEnv = z.looseObject({ env: z.record(z.string(), z.unknown()) });

const withSignature = z.looseObject({ step: z.looseObject({ signature: z.unknown().optional() }).nullish() });

const withStep = z.looseObject({ step: z.looseObject({ secrets: z.unknown().optional() }).nullish() });

/**
 * An answer to `accept` or `acquire` for a sandbox. `token` null: the service gave none, then the session's stands for the job.
 * @param host under which the agent called here, which no proxy of the job's leads to
 */
export function jobAnswerFor(
  stored: unknown,
  token: string | null,
  secrets: Sealed['secrets'],
  host: string,
): Record<string, unknown> {
  const answer = withoutSession(z.record(z.string(), z.unknown()).parse(stored));
  const { endpoint: _, token: __, ...rest } = pastProxiesOf(answer, host);
  const own = secrets.map(({ name }) => ({ key: secretKey(name), environment_variable: name }));
  return { ...rest, ...(token === null ? {} : { token }), ...(own.length === 0 ? {} : { step: stepWith(rest, own) }) };
}

function withoutSession(answer: Record<string, unknown>): Record<string, unknown> {
  const read = withEnv.safeParse(answer);
  if (!read.success || !(sessionVariable in read.data.env)) return answer;
  const { [sessionVariable]: _, ...env } = read.data.env;
  return { ...answer, env };
}

/**
 * What a pipeline says of proxies takes the place of what the sandbox was given, and with it the exception for the broker. Of a
 * signed step the agent compares the variables with the signature: those stay as they are.
 */
function pastProxiesOf(answer: Record<string, unknown>, host: string): Record<string, unknown> {
  const read = withEnv.safeParse(answer);
  const isSigned = withSignature.safeParse(answer).data?.step?.signature != null;
  if (!read.success || isSigned || !/^[\w.:-]+$/.test(host)) return answer;
  const ours = ['NO_PROXY', 'no_proxy'].flatMap((name) => {
    const theirs = read.data.env[name];
    return typeof theirs === 'string' && theirs !== '' ? [[name, `${theirs},${host}`]] : [];
  });
  return ours.length === 0 ? answer : { ...answer, env: { ...read.data.env, ...Object.fromEntries(ours) } };
}

interface SecretEntry {
  readonly key: string;
  readonly environment_variable: string;
}

/** The service may write them as a list or as `{variable: key}`; the agent reads both. */
function stepWith(answer: Record<string, unknown>, own: readonly SecretEntry[]): unknown {
  const { step } = withStep.parse(answer);
  const theirs = step?.secrets;
  if (Array.isArray(theirs)) return { ...step, secrets: [...theirs, ...own] };
  if (typeof theirs !== 'object' || theirs === null) return { ...step, secrets: own };
  return { ...step, secrets: { ...theirs, ...Object.fromEntries(own.map((one) => [one.environment_variable, one.key])) } };
}
