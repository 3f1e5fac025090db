import { expect, it } from 'vitest';
import { engineAway } from '../../base/errors.ts';
import { jobsOwnFailure } from './job-rows.ts';

it('an Engine that is away counts against no job', () => {
  for (const code of engineAway) expect(jobsOwnFailure({ code, message: 'Away.', retry: false })).toBeNull();
  const own = { code: 'E_NO_SHELL', message: 'No shell.', retry: false };
  expect(jobsOwnFailure(own)).toBe(own);
});
