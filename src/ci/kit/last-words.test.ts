import { expect, it } from 'vitest';
import { whyLost } from './last-words.ts';

it.each([
  ['E_NO_CONTAINERS', 'The configuration of its pool is to blame, not the job.'],
  ['E_ENGINE_FAILED', 'The infrastructure is to blame, not the job.'],
])('the log of a job that cannot start for %s says whose fault that is', (code, last) => {
  const failure = { code, message: 'It failed.', retry: false };
  expect(whyLost({ kind: 'unstartable', failure }, undefined)).toBe(`This job was lost: It failed. ${last}`);
});
