/**
 * What a runner may ask through the filter (runner 1.0.8): its task, once, and what it says of that. The filter signs with the key of
 * the ephemeral runner that the task was given to, and with that key the server takes nothing about other tasks.
 */
import type { Rules } from '../filter/rules.ts';

export const giteaRulesOf = 'gitea';

export const giteaRules: Rules = {
  root: 'gitea',
  scheme: 'x-runner-token',
  judge(_sealed, { method, segments, query }) {
    const call = /^api\/actions\/runner\.v1\.RunnerService\/(\w+)$/.exec(segments.join('/'))?.[1];
    if (method !== 'POST' || call === undefined || query !== '')
      return { kind: 'refused', status: 404, why: 'There is no such call.' };
    if (call === 'FetchTask') return { kind: 'left', status: 200, type: 'application/proto', after: 404 };
    if (['Declare', 'UpdateTask', 'UpdateLog'].includes(call)) return { kind: 'stream' };
    return { kind: 'refused', status: 403, why: 'Runners of onejob may not make this call.' };
  },
};
