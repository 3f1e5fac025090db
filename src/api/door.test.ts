import { expect, test } from 'vitest';
import { checkHost, checkOrigin } from './door.ts';

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
const ask = (headers: object, { changes = true, withCookie = true } = {}) =>
  checkOrigin({ headers: { host, ...headers }, changes, withCookie }, door);

test.each([
  [{ origin: own }, {}],
  [{ origin: own, 'sec-fetch-site': 'same-origin' }, {}],
  [{ 'sec-fetch-site': 'same-origin' }, { changes: false }],
  // Typed into the address bar.
  [{ 'sec-fetch-site': 'none' }, { changes: false }],
  // A program with a token.
  [{}, { withCookie: false }],
  [{}, { changes: false }],
  // Behind a proxy that passes its own name on.
  [{ origin: 'https://ci.example.org' }, {}],
])('%j %j is answered', (headers, how) => {
  expect(() => ask(headers, how)).not.toThrow();
});

test('where browsers use https, a page that came without is another origin', () => {
  const headers = { host: 'ci.example.org', origin: 'http://ci.example.org' };
  const request = { headers, changes: true, withCookie: true };
  expect(() => checkOrigin(request, { ...door, isSecure: true })).toThrow(refused);
  expect(() =>
    checkOrigin({ ...request, headers: { ...headers, origin: 'https://ci.example.org' } }, { ...door, isSecure: true }),
  ).not.toThrow();
});

test.each([
  [{ origin: 'https://evil.example' }, {}],
  [{ origin: 'https://evil.example' }, { changes: false }],
  [{ origin: 'null' }, {}],
  [{ origin: 'http://127.0.0.1:8080' }, {}],
  [{ origin: 'http://localhost:7717' }, {}],
  [{ origin: 'https://ci.example.org.evil.example' }, {}],
  [{ origin: `${own}/` }, {}],
  [{ 'sec-fetch-site': 'cross-site' }, { changes: false }],
  // Another port of this host, perhaps of another user.
  [{ 'sec-fetch-site': 'same-site' }, { changes: false }],
  [{ origin: own, 'sec-fetch-site': 'cross-site' }, {}],
  [{ origin: 'https://evil.example' }, { withCookie: false }],
  // A browser would say where it comes from.
  [{}, {}],
])('%j %j is refused', (headers, how) => {
  expect(() => ask(headers, how)).toThrow(refused);
});
