import { describe, expect, it } from 'vitest';
import { runIn, shells } from '../azure-pipelines/testing-shells.ts';
import { pastProxies } from './past-proxies.ts';

describe.each(shells)('in %s', (...shell) => {
  const said = (env: Record<string, string>, endpoint = 'http://172.18.0.1:7070/v3') =>
    runIn(shell, `${pastProxies(endpoint).join('\n')}\nsh -c 'echo "$NO_PROXY $no_proxy"'`, {
      PATH: '/usr/bin:/bin',
      ...env,
    }).out.trim();

  it.each<[Record<string, string>, string]>([
    [{}, '172.18.0.1'],
    [{ NO_PROXY: 'a,b' }, 'a,b,172.18.0.1'],
    [{ no_proxy: '.corp' }, '.corp,172.18.0.1'],
    [{ NO_PROXY: 'a', no_proxy: 'b' }, 'a,172.18.0.1'],
  ])('beside %j', (env, expected) => expect(said(env)).toBe(`${expected} ${expected}`));

  it('also for an address of IPv6', () => expect(said({}, 'http://[fd00::1]:7070/v3')).toBe('fd00::1 fd00::1'));
});
