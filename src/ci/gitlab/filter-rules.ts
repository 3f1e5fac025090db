/**
 * What a job's runner may ask through the filter (gitlab-runner 19.4, `network/gitlab.go`): its job, once, and what that needs. The
 * filter signs nothing, because the server knows each job by the job's own token, which the job knows anyway.
 */
import { z } from 'zod';
import { isListed, type Rules } from '../filter/rules.ts';

export const gitlabRulesOf = 'gitlab';

const ofJob = [
  ['PUT', 'jobs/own'],
  ['PATCH', 'jobs/own/trace?debug_trace'],
  ['POST', 'jobs/own/artifacts?artifact_format&artifact_type&expire_in'],
  // Of earlier jobs, with a token of each that the job was given.
  ['GET', 'jobs/*/artifacts?direct_download'],
] as const;

/**
 * What the runner takes for its token: the key of its job. It shows the beginning in its log, and in the names of folders, so that is
 * always the same.
 */
export const runnerTokenOf = (key: string): string => `${shown}${key}`;
/** As many letters as it shows (`helpers/shorten_token.go`). */
const shown = 'onejob001';

const requested = z.object({ token: z.string().startsWith(shown) });

function keyOf(json: unknown): string | null {
  return requested.safeParse(json).data?.token.slice(shown.length) ?? null;
}

export const gitlabRules: Rules = {
  root: 'gitlab',
  scheme: null,
  judge(sealed, { method, segments: [api, version, ...segments], query }) {
    const path = segments.join('/');
    if (api !== 'api' || version !== 'v4') return { kind: 'refused', status: 404, why: 'There is no such call.' };
    if (method === 'POST' && path === 'jobs/request')
      return { kind: 'left', status: 201, type: 'application/json', after: 204, keyIn: keyOf };
    if (method === 'POST' && path === 'runners/verify') return { kind: 'answered', status: 200, json: { id: 1 } };
    if (isListed({ method, segments, query }, ofJob, { jobs: sealed.job })) return { kind: 'stream' };
    return { kind: 'refused', status: 403, why: 'Runners of onejob may not make this call.' };
  },
};
