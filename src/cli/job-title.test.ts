import { expect, it } from 'vitest';
import { waiting } from './gitlab-scripts.ts';
import { titleOf } from './job-title.ts';

const own = { about: null, name: null, command: ['make', 'test'] };

it.each([
  ['a command', own, 'make test'],
  ['a name', { ...own, name: 'nightly' }, 'nightly: make test'],
  ['a place in an array', { ...own, name: 'sweep', array: { id: 'a', index: 3 } }, '[3] sweep: make test'],
  // The command is onejob's own, and the same for each of them.
  [
    'a gitlab-runner',
    { ...own, name: 'GitLab job 7 build (acme/demo)', command: waiting().command },
    'GitLab job 7 build (acme/demo)',
  ],
])('a job with %s', (_, job, title) => {
  expect(titleOf(job)).toBe(title);
});
