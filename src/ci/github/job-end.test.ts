import { expect, it } from 'vitest';
import { failedIn, whyOutside } from './job-end.ts';

const job = (conclusion: string, ...steps: (readonly [string, string | null])[]) => ({
  conclusion,
  steps: steps.map(([name, end]) => ({ name, conclusion: end })),
});
const setUp = ['Set up job', 'success'] as const;

it.each([
  ['a step of its own', job('failure', setUp, ['make', 'failure'], ['Complete job', 'success']), 'script'],
  ['a step called "Build project"', job('failure', setUp, ['Build project', 'failure']), 'script'],
  ['a step called "Pull data"', job('failure', setUp, ['Pull data', 'failure']), 'script'],
  ['a step that took too long', job('failure', setUp, ['make', 'timed_out']), 'script'],
  ['its own time limit', job('timed_out'), 'script'],
  ['its containers', job('failure', setUp, ['Initialize containers', 'failure'], ['make', 'skipped']), 'runner'],
  ['the image of an action', job('failure', setUp, ['Pull alpine:3', 'failure'], ['make', 'skipped']), 'runner'],
  ['the Dockerfile of an action', job('failure', setUp, ['Build acme/tool@v1', 'failure'], ['make', 'skipped']), 'runner'],
  ['an action that could not be fetched', job('failure', ['Set up job', 'failure'], ['make', 'skipped']), 'runner'],
  ['the script in front of it', job('failure', setUp, ['Set up runner', 'failure'], ['make', 'skipped']), 'runner'],
  ['no step', job('failure', setUp, ['make', 'cancelled']), 'runner'],
  ['nobody knows', job('failure'), null],
])('a job that failed by %s', (_, one, where) => {
  expect(failedIn(one)).toBe(where);
});

it.each([
  [
    'Initialize containers',
    false,
    /"container:" or "services:" in its workflow, which sandboxes have with "containers: true" in their pool\. Without, name the image/,
  ],
  ['Pull alpine:3', false, /an action that is an image, which sandboxes have with/],
  ['Initialize containers', true, /the one of "docker" in services\.hub did not do it/],
  ['Set up job', false, /^Its runner failed at "Set up job", a step of its own\./],
])('says what a job wanted that failed at %s', (name, hasEngine, words) => {
  expect(whyOutside(job('failure', [name, 'failure']), { service: 'hub', hasEngine })).toMatch(words);
});
