import { expect, test } from 'vitest';
import { checkHost, checkOrigin, originInstead } from './door.ts';

const refused = expect.objectContaining({ code: 'E_API_ORIGIN' });
const door = { listen: '192.168.1.7', hosts: ['ci.example.org'], isSecure: false };

test.each([
  '127.0.0.1:7717',
  'localhost',
  'LOCALHOST:80',
  '[::1]:7717',
  '127.8.8.8:1',
  '192.168.1.7:443',
  'ci.example.org',
  'ci.example.org:8443',
])('requests for %s are answered', (host) => {
  expect(() => checkHost({ host }, door)).not.toThrow();
});

test.each([
  '',
  'evil.example',
  'localhost.evil.example',
  'localhost@evil.example',
  'evil.example:7717',
  '127.0.0.1.evil.example',
  '127.evil.example',
  '127.0.0.1:7717/x',
  '127.0.0.1, evil.example',
  'ci.example.org.',
  'xci.example.org',
  '0.0.0.0:7717',
  '192.168.1.8',
  '[::ffff:127.0.0.1]',
])('requests for %j are refused: a page may have been pointed here', (host) => {
  expect(() => checkHost({ host }, door)).toThrow(refused);
});

const host = '127.0.0.1:7717';
const own = `http://${host}`;

test.each([
  { origin: own },
  { origin: own, 'sec-fetch-site': 'same-origin' },
  { 'sec-fetch-site': 'same-origin' },
  // Typed into the address bar.
  { 'sec-fetch-site': 'none' },
  // A program.
  {},
  // Behind a proxy that passes its own name on.
  { origin: 'https://ci.example.org' },
])('%j is answered', (headers) => {
  expect(() => checkOrigin({ host, ...headers }, door)).not.toThrow();
});

test('where browsers use https, a page that came without is another origin', () => {
  const ask = (origin: string) => checkOrigin({ host: 'ci.example.org', origin }, { ...door, isSecure: true });
  expect(() => ask('http://ci.example.org')).toThrow(refused);
  expect(() => ask('https://ci.example.org')).not.toThrow();
});

test.each([
  { origin: 'https://evil.example' },
  { origin: 'null' },
  { origin: 'http://127.0.0.1:8080' },
  { origin: 'http://localhost:7717' },
  { origin: 'https://ci.example.org.evil.example' },
  { origin: `${own}/` },
  { 'sec-fetch-site': 'cross-site' },
  // Another port of this host, perhaps of another user.
  { 'sec-fetch-site': 'same-site' },
  { origin: own, 'sec-fetch-site': 'cross-site' },
])('%j is refused', (headers) => {
  expect(() => checkOrigin({ host, ...headers }, door)).toThrow(refused);
});

test.each([
  ['localhost:7717', '127.0.0.1', 'http://127.0.0.1:7717'],
  // A forwarded port.
  ['LOCALHOST:8080', '127.0.0.1', 'http://127.0.0.1:8080'],
  ['localhost', '::1', 'http://[::1]'],
  ['127.0.0.1:7717', '127.0.0.1', null],
  // Others reach it, so it has TLS or a proxy.
  ['localhost:7717', '192.168.1.7', null],
])('a browser at %s of a daemon on %s goes to %s', (sent, address, instead) => {
  expect(originInstead({ host: sent }, address, door)).toBe(instead);
  expect(originInstead({ host: sent }, address, { ...door, isSecure: true })).toBe(null);
});
