import { expect, it } from 'vitest';
import { OnejobError } from '../../base/errors.ts';
import { proxyFindings, ServiceReport } from './doctor.ts';

const of = (https: string, none = '') => proxyFindings('bk', 'https://agent.example/v3', { http: null, https, none });

it('names the proxy of a service without its password, and says nothing without a proxy', () => {
  expect(of('http://alice:proxy-canary@proxy.example:3128')).toEqual([
    {
      level: 'ok',
      subject: 'service bk',
      message: 'https://agent.example/v3 is reached through the proxy proxy.example:3128.',
      hint: null,
    },
  ]);
  expect(of('http://proxy.example', '.example')).toEqual([]);
});

it('an invalid proxy address is an error that does not show it', () => {
  const found = of('alice:proxy-canary@proxy.example:3128');
  expect(found).toMatchObject([{ level: 'error', hint: expect.stringContaining('http://proxy.example:3128') }]);
  expect(JSON.stringify(found)).not.toContain('canary');
});

const report = () => new ServiceReport('lab', new AbortController().signal);

it.each([
  ['E_CI_DENIED', 'error', 'Give it a token.'],
  ['E_CI_UNREACHABLE', 'warning', 'Look at the network.'],
] as const)('a question that fails with %s is a finding (%s), with what to do', async (code, level, hint) => {
  const one = report();
  const question = async () => {
    throw new OnejobError(code, 'It did not work.', { hint: 'Look at the network.' });
  };
  expect(await one.ask(question, { level, refused: 'Give it a token.' })).toBe(false);
  expect(one.found).toEqual([{ level, subject: 'service lab', message: 'It did not work.', hint, code }]);
});

it('no question outlives its caller', async () => {
  const caller = AbortSignal.abort(new Error('the client is gone'));
  const one = new ServiceReport('lab', caller);
  await expect(one.ask(async () => Promise.reject(new Error('refused')))).rejects.toThrow('the client is gone');
  expect(one.found).toEqual([]);
});

it.each([
  [{ kind: 'ready', version: '2.1.0', path: '/p', sha256: '00' }, 'ok', 'The runner is version 2.1.0, at /p.'],
  [{ kind: 'preparing' }, 'warning', 'onejob is downloading and checking the runner.'],
  [{ kind: 'failed', failure: { code: 'E_AGENT_PACKAGE', message: 'No.', retry: false } }, 'error', 'No. (E_AGENT_PACKAGE)'],
] as const)('says what is known of a program: %j', (state, level, message) => {
  const one = report();
  one.runner(state);
  expect(one.found).toMatchObject([{ level, message }]);
});

it('names a few of the runners that take the same jobs', () => {
  const one = report();
  one.rivals('acme', 'all labels of pool gpu (h100)', []);
  expect(one.found).toEqual([]);
  one.rivals('acme', 'all labels of pool gpu (h100)', ['a', 'b', 'c', 'd', 'e', 'f', 'g']);
  expect(one.found).toMatchObject([
    { level: 'warning', message: expect.stringContaining('of acme have all labels of pool gpu (h100): a, b, c, d, e and 2 more.') },
  ]);
});
