/**
 * What a job that is not trusted may ask of the service. Whoever wrote it may be anybody: it is given what a plain step of CI
 * needs for itself, and nothing that hands out secrets, speaks for somebody else, or stays for a later build to find.
 */
import type { AgentRecord } from './record.ts';

/**
 * `own` stands for its job's or its build's id, `*` for any one segment of plain letters: a service may decode once more what it gets,
 * and find a slash or a query in there. After `?` stand the names that its query may have (agent
 * v3.137 `api/`). A call that is not here is refused, and one that says more: a service may take a query for what a body or a path
 * has said, and so another build for its own.
 */
const allowed: readonly (readonly [method: string, path: string])[] = [
  ['GET', 'jobs/own'],
  ['PUT', 'jobs/own/start'],
  ['PUT', 'jobs/own/finish'],
  ['PUT', 'jobs/own/promise_failure'],
  ['POST', 'jobs/own/chunks?sequence&offset&size'],
  ['POST', 'jobs/own/header_times'],
  // Its build's next steps, which are judged by themselves: the first step of nearly every build.
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
  // Only about its own build, which stands in its body.
  ['POST', 'steps/*/export'],
  // What it would store, a trusted job could find and run.
  ['GET', 'cache_registries/*'],
  ['POST', 'cache_registries/*/peek'],
  ['POST', 'cache_registries/*/retrieve'],
];

const tokens: ReadonlySet<string> = new Set(['secrets', 'oidc', 'repository_access_token']);

export interface Asked {
  readonly method: string;
  /** After `/v3`, decoded. */
  readonly segments: readonly string[];
  /** As it came, without its `?`. */
  readonly query: string;
}

/** Why the agent's job may not make this call; null when it may. */
export function forbidden({ trusted, shown }: AgentRecord, { method, segments, query }: Asked): string | null {
  if (trusted) return null;
  const own = new Map([
    ['jobs', shown.job?.id],
    ['builds', buildOf(shown.job)],
  ]);
  const found = allowed.some(([how, path]) => {
    const [way = '', names = ''] = path.split('?');
    const parts = way.split('/');
    if (how !== method || parts.length !== segments.length) return false;
    if (!asksOnly(query, names.split('&'))) return false;
    return parts.every((part, at) => {
      if (part === 'own') return segments[at] !== undefined && segments[at] === own.get(parts[0] ?? '');
      return part === '*' ? /^[A-Za-z0-9._-]+$/.test(segments[at] ?? '') : part === segments[at];
    });
  });
  if (found) return null;
  const why = "onejob's trust rule runs this job as untrusted (trust, in the pool's configuration)";
  const name = segments[2];
  return segments[0] === 'jobs' && name !== undefined && tokens.has(name)
    ? `${why}: the service's secrets and tokens are not for it.`
    : `${why}: it may use its own job and read its own build, nothing else.`;
}

/** Names are compared as they came: the agent escapes none, and who reads one that is escaped is the service. */
function asksOnly(query: string, names: readonly string[]): boolean {
  if (query === '') return true;
  return query.split(/[&;]/).every((pair) => names.includes(/^[^=]+/.exec(pair)?.[0] ?? '?'));
}

/** The id of the build that a job is of; null where the service did not say. */
export function buildOf(job: AgentRecord['shown']['job']): string | null {
  return job?.env.BUILDKITE_BUILD_ID ?? null;
}
