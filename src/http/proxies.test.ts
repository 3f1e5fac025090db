import { describe, expect, it } from 'vitest';
import { handedOn, noProxies, proxyFor, readProxies } from './proxies.ts';

const on = { NODE_USE_ENV_PROXY: '1' };
const via = (variables: Record<string, string>, address: string): string | null =>
  proxyFor(new URL(address), readProxies({ ...on, ...variables }))?.shown ?? null;

describe('the variables', () => {
  it('count only where Node is told to heed them, as for its own fetch', () => {
    const variables = { HTTPS_PROXY: 'http://p:1' };
    expect(readProxies(variables)).toEqual(noProxies);
    expect(readProxies({ ...variables, NODE_USE_ENV_PROXY: 'true' })).toEqual(noProxies);
    expect(readProxies({ ...variables, ...on }).https).toBe('http://p:1');
  });

  it.each<[Record<string, string>, string, string | null]>([
    [{ HTTPS_PROXY: 'http://p:3128' }, 'https://a.example/v3', 'p:3128'],
    [{ HTTPS_PROXY: 'http://p:3128' }, 'http://a.example/v3', null],
    [{ HTTP_PROXY: 'http://p' }, 'http://a.example/', 'p:80'],
    [{ HTTP_PROXY: 'http://p' }, 'https://a.example/', 'p:80'],
    [{ HTTP_PROXY: 'http://p', HTTPS_PROXY: 'https://q' }, 'https://a.example/', 'q:443'],
    [{ https_proxy: 'http://low:1', HTTPS_PROXY: 'http://up:1' }, 'https://a.example/', 'low:1'],
    [{ https_proxy: '', HTTPS_PROXY: 'http://up:1' }, 'https://a.example/', 'up:1'],
    [{ HTTPS_PROXY: 'http://[fd00::1]:3128' }, 'https://a.example/', '[fd00::1]:3128'],
    [{}, 'https://a.example/', null],
  ])('%j lead to %s through %s', (variables, address, expected) => expect(via(variables, address)).toBe(expected));

  it.each([
    ['a.example', 'https://a.example/', true],
    ['a.example', 'https://b.a.example/', true],
    ['a.example', 'https://ba.example/', false],
    ['.a.example', 'https://b.a.example/', true],
    ['*.a.example', 'https://b.a.example/', true],
    ['A.Example', 'https://a.example./', false],
    ['x, a.example', 'https://A.example/', true],
    ['x a.example', 'https://a.example/', true],
    ['a.example:8443', 'https://a.example:8443/', true],
    ['a.example:8443', 'https://a.example/', false],
    ['a.example:443', 'https://a.example/', true],
    ['*', 'https://a.example/', true],
    ['10.1.2.3', 'https://10.1.2.3/', true],
    ['fd00::1', 'https://[fd00::1]/', true],
    ['[fd00::1]:443', 'https://[fd00::1]/', true],
    ['', 'https://a.example/', false],
    ['10.0.0.0/8', 'https://10.1.2.3', true],
    ['10.0.0.0/8', 'https://11.1.2.3', false],
    ['10.0.0.0/8:8443', 'https://10.1.2.3:8443', true],
    ['10.0.0.0/8:8443', 'https://10.1.2.3', false],
    ['fd00::/8,a', 'https://[fd12::1]', true],
    ['fd00::/8', 'https://[fe12::1]', false],
    ['10.1.0.1-10.1.0.9', 'https://10.1.0.9', true],
    ['10.1.0.1-10.1.0.9', 'https://10.1.0.10', false],
    ['10.0.0.0/99,::/x,10.1.0.9-10.1.0.1', 'https://10.1.0.5', false],
    // A name is not resolved for it.
    ['0.0.0.0/0', 'https://a.example', false],
  ])('NO_PROXY %j keeps %s from it: %s', (none, address, isDirect) => {
    expect(via({ HTTPS_PROXY: 'http://p:1', NO_PROXY: none }, address)).toBe(isDirect ? null : 'p:1');
  });

  it.each(['https://localhost/', 'https://x.localhost/', 'https://127.0.0.1:1/', 'https://[::1]/'])(
    'never lead to this host itself by one: %s',
    (address) => expect(via({ HTTPS_PROXY: 'http://p:1' }, address)).toBeNull(),
  );
});

it('a password is for the proxy only', () => {
  const proxies = readProxies({ ...on, HTTPS_PROXY: 'http://al%40ice:s3%3Acret@p:3128/' });
  const proxy = proxyFor(new URL('https://a.example/'), proxies);
  expect(proxy?.authorization).toBe(`Basic ${Buffer.from('al@ice:s3:cret').toString('base64')}`);
  expect(proxy?.shown).toBe('p:3128');
});

it.each(['socks5://alice:s3cret@p:1', 'alice:s3cret@p:1', 'http://alice:s3cret@bad host:1', 'p'])(
  'an invalid proxy address is not used, nor shown: %s',
  (written) => {
    const proxy = proxyFor(new URL('https://a.example/'), readProxies({ ...on, HTTPS_PROXY: written }));
    expect(proxy).toMatchObject({ server: null });
    expect(JSON.stringify(proxy)).not.toContain('s3cret');
  },
);

it('another process of ours finds the same way, and nothing else of ours', () => {
  const variables = { ...on, HTTPS_PROXY: 'http://u:p@p:1', no_proxy: 'a', NODE_EXTRA_CA_CERTS: 'ca.pem', TOKEN: 'x', HOME: '/h' };
  const given = handedOn(variables, '/srv');
  expect(given).toEqual({
    ONEJOB_USE_ENV_PROXY: '1',
    HTTPS_PROXY: 'http://u:p@p:1',
    NO_PROXY: 'a',
    NODE_EXTRA_CA_CERTS: '/srv/ca.pem',
  });
  expect(readProxies(given)).toEqual(readProxies(variables));
  expect(handedOn({ HTTPS_PROXY: 'http://p:1' }, '/srv')).toEqual({});
});
