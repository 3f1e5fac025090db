import { expect, test } from 'vitest';
import { type AgentNews, jobFactsOf, learn, noFacts } from './agent-facts.ts';
import type { GithubJob } from './wire.ts';

const said = {
  repository: 'acme/app',
  run: 7,
  number: 3,
  workflow: 'ci',
  name: 'build',
  event: 'push',
  ref: 'refs/heads/main',
  refused: null,
};
const job: GithubJob = {
  id: 1,
  run_id: 7,
  name: 'build (linux)',
  workflow_name: 'CI',
  status: 'in_progress',
  conclusion: null,
  runner_name: 'one',
  labels: ['gpu'],
  created_at: 1,
  started_at: 2,
  completed_at: null,
  head_branch: 'main',
  html_url: 'https://github.test/acme/app/job/1',
} as GithubJob;
const after = (...news: readonly AgentNews[]) => news.reduce(learn, noFacts);
const completed = { ...job, status: 'completed', conclusion: 'failure' } as GithubJob;

test.each<[what: string, news: readonly AgentNews[], expected: object]>([
  ['nothing', [], { title: 'a job of GitHub', outcome: null, startedAt: null }],
  ['the script', [{ by: 'script', said }], { title: 'ci #3 build', repository: 'acme/app', branch: 'main', reason: 'push' }],
  [
    'a script that a job forges after the real one',
    [
      { by: 'script', said },
      { by: 'script', said: { ...said, repository: 'evil/app', refused: 'no' } },
    ],
    { repository: 'acme/app', outcome: null },
  ],
  ['a refusal', [{ by: 'script', said: { ...said, refused: 'a fork' } }], { result: 'refused', outcome: 'failed' }],
  [
    'the first words of a runner',
    [
      { by: 'runner', title: 'build', at: 5 },
      { by: 'runner', title: 'forged', at: 6 },
      { by: 'runner', result: 'Succeeded' },
      { by: 'runner', result: 'Failed' },
    ],
    { title: 'build', startedAt: 5, result: 'succeeded', outcome: 'passed' },
  ],
  [
    'GitHub against the words of a runner',
    [
      { by: 'runner', result: 'Succeeded' },
      { by: 'github', job: completed, repository: 'acme/app' },
    ],
    { outcome: 'failed', repository: 'acme/app', startedAt: 2 },
  ],
  [
    'an older state that GitHub sends after the end',
    [
      { by: 'github', job: completed, repository: 'acme/app' },
      { by: 'github', job, repository: 'acme/app' },
      { by: 'answer', job },
    ],
    { outcome: 'failed' },
  ],
  [
    'a look, and then the runner',
    [
      { by: 'look', at: 4 },
      { by: 'runner', title: 'build', at: 9 },
    ],
    { startedAt: 4 },
  ],
  [
    'an answer without the job',
    [
      { by: 'github', job, repository: 'acme/app' },
      { by: 'answer', job: null },
    ],
    { title: 'CI build (linux)' },
  ],
])('of %s', (_, news, expected) => {
  expect(jobFactsOf(after(...news))).toMatchObject(expected);
});
