import { expect, it } from 'vitest';
import { readPath } from '../filter/rules.ts';
import { gitlabRules, gitlabRulesOf, runnerTokenOf } from './filter-rules.ts';

const sealed = {
  rules: gitlabRulesOf,
  endpoint: 'http://lab',
  token: 'key',
  use: 'job',
  job: '7',
  build: null,
  file: 'f',
  until: 0,
};

function judge(line: string) {
  const [method = '', url = ''] = line.split(' ');
  const asked = readPath(method, url);
  return typeof asked === 'string' ? asked : gitlabRules.judge(sealed, asked);
}

it.each([
  'PUT /api/v4/jobs/7',
  'PATCH /api/v4/jobs/7/trace?debug_trace=false',
  'POST /api/v4/jobs/7/artifacts?artifact_format=zip&artifact_type=archive&expire_in=1+day',
  'POST /api/v4/jobs/7/artifacts',
  'GET /api/v4/jobs/6/artifacts?direct_download=true',
])('goes to the server as it is: %s', (line) => {
  expect(judge(line)).toEqual({ kind: 'stream' });
});

it('is answered here: the job, once, and that the runner is known', () => {
  const left = { kind: 'left', status: 201, type: 'application/json', after: 204 };
  expect(judge('POST /api/v4/jobs/request')).toEqual({ ...left, keyIn: expect.any(Function) });
  expect(judge('POST /api/v4/runners/verify')).toMatchObject({ kind: 'answered', status: 200 });
});

it.each([
  'PUT /api/v4/jobs/8',
  'PATCH /api/v4/jobs/8/trace',
  'POST /api/v4/jobs/8/artifacts',
  'POST /api/v4/jobs/7/artifacts?job_token=other',
  'GET /api/v4/jobs/7/trace',
  'GET /api/v4/job',
  'GET /api/v4/jobs/request',
  'GET /api/v4/runners/router/discovery',
  'POST /api/v4/runners/reset_authentication_token',
  'DELETE /api/v4/runners',
  'GET /api/v4/projects',
  'POST /jobs/request',
  'PUT /api/v3/jobs/7',
])('is refused: %s', (line) => {
  expect(judge(line)).toMatchObject({ kind: 'refused' });
});

it('reads the key of the job in what the runner takes for its token, which begins alike for all', () => {
  const verdict = judge('POST /api/v4/jobs/request');
  const keyIn = typeof verdict !== 'string' && verdict.kind === 'left' ? verdict.keyIn : undefined;
  expect(runnerTokenOf('a-key').slice(0, 9)).toBe(runnerTokenOf('b-key').slice(0, 9));
  expect(keyIn?.({ token: runnerTokenOf('a-key') })).toBe('a-key');
  for (const json of [null, {}, { token: 7 }, { token: 'a-key' }]) expect(keyIn?.(json)).toBeNull();
});
