import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isListed, readPath } from './rules.ts';

it.each([
  'http://127.0.0.1/v3/ping',
  '*',
  '//v3/ping',
  '/v3//ping',
  '/v3/ping/',
  '/v3/jobs/a/../b/finish',
  '/v3/jobs/a/%2e%2e/b/finish',
  '/v3/jobs/a/%252e%252e/b/finish',
  '/v3/jobs/a%2Ffinish',
  '/v3/jobs/a%252Ffinish/data',
  '/v3/jobs/a/data/..%2F..%2Fb%2Ffinish',
  '/v3/jobs/a/data/..%5C..%5Cb',
  '/v3/jobs/a/data/%00',
  '/v3/jobs/a/data\\..\\b',
  '/v3/jobs/a/data/%zz',
  '/v3/jobs/a#b',
  '/v3/jobs/%C3%28/data',
  `/v3/ping?${'x'.repeat(13_000)}`,
])('refused for anyone: %s', (url) => {
  expect(readPath('GET', url)).toEqual(expect.any(String));
});

it('no path means something else to a reader that resolves its steps', () => {
  const part = fc.oneof(
    fc.constantFrom('..', '.', '%2e%2E', '%252e.', 'a', 'jobs', 'finish', 'data', '%2F', '\\', ''),
    fc.string(),
  );
  fc.assert(
    fc.property(fc.array(part, { maxLength: 6 }), (parts) => {
      const url = `/v3/jobs/own/${parts.join('/')}`;
      if (typeof readPath('PUT', url) === 'string') return;
      const { pathname } = new URL(decodeURIComponent(url.split('?')[0] ?? ''), 'http://service');
      expect(pathname.startsWith('/v3/jobs/own')).toBe(true);
    }),
  );
});

describe('a list', () => {
  const list = [
    ['GET', 'jobs/own'],
    ['DELETE', 'jobs/own/notes/*?scope'],
  ] as const;
  const isIn = (method: string, url: string) => {
    const asked = readPath(method, url);
    return typeof asked !== 'string' && isListed(asked, list, { jobs: 'a.b' });
  };

  it.each([
    ['GET', '/jobs/a%2Eb', true],
    ['GET', '/jobs/a.b', true],
    ['POST', '/jobs/a.b', false],
    ['GET', '/jobs/other', false],
    ['GET', '/jobs/a.b/', false],
    ['GET', '/jobs/a.b?x=1', false],
    ['DELETE', '/jobs/a.b/notes/x', true],
    ['DELETE', '/jobs/a.b/notes/x?scope=job', true],
    ['DELETE', '/jobs/a.b/notes/x?scope=job&y', false],
    ['DELETE', '/jobs/a.b/notes/x%2Fy', false],
    ['DELETE', '/jobs/a.b/notes/%C3%BC', false],
  ])('%s %s: %s', (method, url, is) => expect(isIn(method, url)).toBe(is));
});
