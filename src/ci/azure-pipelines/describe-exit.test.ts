import { expect, it } from 'vitest';
import { describeExit } from './service.ts';

it.each([3, 4])('takes exit %i for the wish to become a newer version', (code) => {
  const failure = describeExit({ kind: 'code', code }, 'Downloading agent');
  expect(failure).toMatchObject({ code: 'E_AGENT_OUTDATED', retry: true });
  expect(failure.message).toContain('onejob image refresh');
});

it.each([
  [{ kind: 'code', code: 1 }, 'with exit code 1'],
  [{ kind: 'code', code: 0 }, 'with exit code 0'],
  [{ kind: 'signal', signal: 'SIGKILL' }, 'by SIGKILL'],
  [{ kind: 'oom' }, 'because it ran out of memory'],
  [{ kind: 'lost', reason: 'its Engine ended it' }, 'because of a problem on this host'],
] as const)('says how an agent ended: %j', (exit, how) => {
  const failure = describeExit(exit, '');
  expect(failure).toEqual({ code: 'E_AGENT_ENDED', message: `The agent ended ${how} and had no job.`, retry: true });
});

it('quotes what the agent said last', () => {
  expect(describeExit({ kind: 'code', code: 2 }, 'The session\nwas refused.').message).toMatch(
    /Its last output was:\nThe session\nwas refused\.$/,
  );
});
