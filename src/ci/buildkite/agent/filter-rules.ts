/**
 * What an untrusted job may ask of the service: what a plain step needs for itself, and nothing that gives out secrets, speaks for
 * another job, or stays for a later build. Calls and fields from the agent's `api/` and `core/` (v3.137).
 */
import { z } from 'zod';
import { serviceId } from '../../../http/service-id.ts';
import { isListed, type Rules, type RuleVerdict } from '../../filter/rules.ts';
import type { Seal, Sealed } from '../../filter/seal.ts';

export const buildkiteRulesOf = 'buildkite';

/** What a sealed token is for: to register an agent, its session, or its job. */
export type Use = 'register' | 'session' | 'job';

const ofAgent = [
  ['POST', 'connect'],
  ['GET', 'ping'],
  ['POST', 'heartbeat'],
  ['POST', 'disconnect'],
  ['PUT', 'jobs/own/acquire'],
] as const;

const ofJob = [
  ['GET', 'jobs/own'],
  ['PUT', 'jobs/own/start'],
  ['PUT', 'jobs/own/finish'],
  ['PUT', 'jobs/own/promise_failure'],
  ['POST', 'jobs/own/chunks?sequence&offset&size'],
  ['POST', 'jobs/own/header_times'],
  // The next steps of its build, which are judged by themselves.
  ['POST', 'jobs/own/pipelines?async'],
  ['GET', 'jobs/own/pipelines/*'],
  ['POST', 'jobs/own/annotations'],
  ['DELETE', 'jobs/own/annotations/*?scope'],
  ['POST', 'jobs/own/artifacts'],
  ['PUT', 'jobs/own/artifacts'],
  ['POST', 'jobs/own/data/set'],
  ['POST', 'jobs/own/data/set-batch'],
  ['POST', 'jobs/own/data/get'],
  ['POST', 'jobs/own/data/exists'],
  ['POST', 'jobs/own/data/keys'],
  ['POST', 'builds/own/data/get'],
  ['POST', 'builds/own/data/exists'],
  ['POST', 'builds/own/data/keys'],
  ['GET', 'builds/own/artifacts/search?query&scope&state&include_retried_jobs&include_duplicates'],
  // Only its own build, which the body names.
  ['POST', 'steps/*/export'],
  // It may store nothing, because a trusted job could find and run it.
  ['GET', 'cache_registries/*'],
  ['POST', 'cache_registries/*/peek'],
  ['POST', 'cache_registries/*/retrieve'],
] as const;

const tokens: ReadonlySet<string> = new Set(['secrets', 'oidc', 'repository_access_token']);

export const buildkiteRules: Rules = {
  root: 'v3',
  scheme: 'Token',
  judge(sealed, asked) {
    const { method, segments } = asked;
    const [first = '', id, what = ''] = segments;
    const own = { jobs: sealed.job, builds: sealed.build };
    switch (sealed.use as Use) {
      case 'register': {
        if (method !== 'POST' || first !== 'register' || segments.length !== 1 || asked.query !== '')
          return refused(401, 'This token can only register an agent.');
        return { kind: 'whole', answer: (json, seal) => registered(json, sealed, seal) };
      }
      case 'session': {
        if (!isListed(asked, ofAgent, own)) return refused(403, 'Agents of onejob may not make this call.');
        if (what === 'acquire') return { kind: 'whole', answer: (json, seal, host) => acquired(json, sealed, seal, host) };
        return { kind: 'whole', ...(first === 'ping' && { answer: pinged }) };
      }
      case 'job': {
        if (!isListed(asked, ofJob, own)) {
          if (first === 'jobs' && id !== sealed.job) return refused(403, 'This token does not belong to that job.');
          const why = "onejob's trust rule runs this job as untrusted (trust, in the pool's configuration)";
          const isToken = first === 'jobs' && tokens.has(what);
          const rest = isToken
            ? "it may not read the service's secrets and tokens"
            : 'it may only use its own job and read its own build';
          return refused(403, `${why}: ${rest}.`);
        }
        if (first === 'steps') {
          const ofItsBuild = (json: unknown): string | null => {
            const read = stepExport.safeParse(json);
            return read.data?.build_id !== undefined && read.data.build_id === sealed.build ? JSON.stringify(read.data) : null;
          };
          return { kind: 'whole', body: ofItsBuild, why: 'That step belongs to another build.' };
        }
        // The agent drops a chunk for any 4xx, also for one that only asks it to wait (`core/client.go`).
        return what === 'chunks' ? { kind: 'stream', toldAs: (status) => (status === 429 ? 503 : status) } : { kind: 'stream' };
      }
    }
  },
};

const stepExport = z.looseObject({ build_id: z.string() });

function refused(status: 401 | 403 | 404, why: string): RuleVerdict {
  return { kind: 'refused', status, why };
}

/** Must fit into a header. */
const token = z.string().regex(/^[\x21-\x7e]{1,4096}$/);
const registerAnswer = z.looseObject({ access_token: token });

/** Without what leads past the filter. Intervals are whole seconds; the agent does not survive a 0. */
function registered(json: unknown, sealed: Sealed, seal: Seal): unknown {
  const { endpoint: _, access_token, ...rest } = registerAnswer.parse(json);
  const seconds = (name: string): number => {
    const found = rest[name];
    return typeof found === 'number' && found >= 1 ? Math.floor(found) : 1;
  };
  return {
    ...rest,
    access_token: seal.close({ ...sealed, use: 'session' satisfies Use, token: access_token }),
    ping_interval: seconds('ping_interval'),
    job_status_interval: seconds('job_status_interval'),
    heartbeat_interval: seconds('heartbeat_interval'),
  };
}

/** It has its job, and gets no other. */
function pinged(json: unknown): unknown {
  const { endpoint: _, job: __, ...rest } = z.looseObject({}).parse(json);
  return rest;
}

const job = z.looseObject({
  id: serviceId,
  env: z.record(z.string(), z.unknown()).nullish(),
  token: token.nullish(),
  step: z.looseObject({ signature: z.unknown().optional() }).nullish(),
});

/** Without a token of the job, the session's is used. */
function acquired(json: unknown, sealed: Sealed, seal: Seal, host: string): unknown {
  const { endpoint: _, token: own, ...answer } = job.parse(json);
  if (answer.id !== sealed.job) throw new Error('it belongs to another job');
  const { BUILDKITE_AGENT_ACCESS_TOKEN: __, ...env } = answer.env ?? {};
  const read = (name: string): string | null => (typeof env[name] === 'string' ? env[name] : null);
  return {
    ...answer,
    token: seal.close({
      ...sealed,
      use: 'job' satisfies Use,
      token: own ?? sealed.token,
      build: read('BUILDKITE_BUILD_ID') ?? sealed.build,
    }),
    env: answer.step?.signature == null ? noProxyFor(env, host) : env,
  };
}

/**
 * A pipeline's proxy variables replace those of the sandbox, and so would lose the exception for the filter. The agent compares the
 * variables of a signed step with the signature, so those stay unchanged.
 */
function noProxyFor(env: Readonly<Record<string, unknown>>, host: string): Record<string, unknown> {
  if (!/^[\w.:-]+$/.test(host)) return { ...env };
  const ours = ['NO_PROXY', 'no_proxy'].flatMap((name) => {
    const theirs = env[name];
    return typeof theirs === 'string' && theirs !== '' ? [[name, `${theirs},${host}`]] : [];
  });
  return { ...env, ...Object.fromEntries(ours) };
}
