import { expect, it } from 'vitest';
import { proxyFindings } from './service-findings.ts';

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
