import { expect, it } from 'vitest';
import { readPath } from '../filter/rules.ts';
import { giteaRules, giteaRulesOf } from './filter-rules.ts';

const sealed = {
  rules: giteaRulesOf,
  endpoint: 'http://forge',
  token: 'key',
  use: 'job',
  job: 'forge-task-7',
  build: null,
  until: 0,
};

function judge(line: string) {
  const [method = '', url = ''] = line.split(' ');
  const asked = readPath(method, url);
  return typeof asked === 'string' ? asked : giteaRules.judge(sealed, asked);
}

const service = '/api/actions/runner.v1.RunnerService';

it.each(['Declare', 'UpdateTask', 'UpdateLog'])('goes to the server as it is: %s', (call) => {
  expect(judge(`POST ${service}/${call}`)).toEqual({ kind: 'stream' });
});

it('is answered here: the task, once', () => {
  expect(judge(`POST ${service}/FetchTask`)).toEqual({ kind: 'left', status: 200, type: 'application/proto', after: 404 });
});

it.each([
  `POST ${service}/Register`,
  `GET ${service}/FetchTask`,
  `PUT ${service}/UpdateTask`,
  `POST ${service}/UpdateTask?encoding=json`,
  `POST ${service}/UpdateTask/x`,
  `POST ${service}%2FUpdateTask`,
  'POST /api/actions/ping.v1.PingService/Ping',
  'POST /api/actions/UpdateTask',
  'GET /api/v1/user',
  'GET /acme/demo/info/refs?service=git-upload-pack',
  'POST /api/internal/hook/post-receive/acme/demo',
])('is refused: %s', (line) => {
  const verdict = judge(line);
  expect(typeof verdict === 'string' ? 'refused' : verdict.kind).toBe('refused');
});
