import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { formatVolume, parseVolume } from './volumes.ts';

describe('volumes', () => {
  it.each([
    ['/a:/b', '/a', '/b', null, true],
    ['/a:/b:ro', '/a', '/b', null, true],
    ['/a:/b:rw', '/a', '/b', null, false],
    ['/a:/b:DATA', '/a', '/b', 'DATA', true],
    ['/a:/b:DATA:rw', '/a', '/b', 'DATA', false],
    ['/a:/b:z:ro', '/a', '/b', 'z', true],
    ['/a:/b:read:ro', '/a', '/b', 'read', true],
    ['/a:/b:ro:ro', '/a', '/b', 'ro', true],
    ['/a:/b:wr:rw', '/a', '/b', 'wr', false],
    ['/a:/b:R', '/a', '/b', 'R', true],
    ['/a:/b:ROW', '/a', '/b', 'ROW', true],
    ['/a:/b:root', '/a', '/b', 'root', true],
    ['/a:/b:raw', '/a', '/b', 'raw', true],
    ['/my data/x y:/in the box', '/my data/x y', '/in the box', null, true],
    ['/a//b/./c/:/d/', '/a/b/c', '/d', null, true],
    ['/cache/{name}:/root:rw', '/cache/{name}', '/root', null, false],
    ['/:/host', '/', '/host', null, true],
    ['/a:/workspace/data', '/a', '/workspace/data', null, true],
  ])('%s', (text, host, container, variable, readOnly) => {
    expect(parseVolume(text)).toEqual({ ok: true, value: { host, container, variable, readOnly, cache: null } });
  });

  it.each([
    ['/a', 'has no container path'],
    ['', 'has no container path'],
    ['/a:', 'the container path is empty'],
    [':/b', 'the host path is empty'],
    ['a:/b', 'the host path must be absolute'],
    ['~/a:/b', '"~" is not expanded'],
    ['/a:b', 'the container path must be absolute'],
    ['/a:/b:read', '"read" looks like a mode; did you mean "ro"? For a variable of that name, write ":read:ro"'],
    ['/a:/b:wr', 'did you mean "rw"?'],
    ['/a:/b:RO', 'did you mean "ro"?'],
    ['/a:/b:RW', 'did you mean "rw"?'],
    ['/a:/b:Rw', 'did you mean "rw"?'],
    ['/a:/b:w', 'did you mean "rw"?'],
    ['/a:/b:r', 'did you mean "ro"?'],
    ['/a:/b:rww', 'did you mean "rw"?'],
    ['/a:/b:rx', 'did you mean "ro"?'],
    ['/a:/b:readonly', 'did you mean "ro"?'],
    ['/a:/b:write', 'did you mean "rw"?'],
    ['/a:/b:DATA:wr', '"wr" looks like a mode; did you mean "rw"?'],
    ['/a:/b:RO!', 'neither "ro", "rw" nor the name of a variable'],
    ['/a:/b:z', '"z" is an option of Docker'],
    ['/a:/b:Z', '"Z" is an option of Docker'],
    ['/a:/b:ro,z', '"z" is an option of Docker'],
    ['/a:/b:rw,cached', '"cached" is an option of Docker'],
    ['/a:/b:delegated', '"delegated" is an option of Docker'],
    ['/a:/b:nocopy', '"nocopy" is an option of Docker'],
    ['/a:/b:rslave', '"rslave" is an option of Docker'],
    ['/a:/b:ro:z', '"z" is an option of Docker'],
    ['/a:/b:DATA:z', '"z" is an option of Docker'],
    ['/a:/b:ro:DATA', 'too many parts'],
    ['/a:/b:A:B:rw', 'too many parts'],
    ['/a:/b:DATA:rx', 'did you mean "ro"?'],
    ['/a:/b:DATA:OTHER', 'too many parts'],
    ['/a/../etc:/b', 'must not contain ".."'],
    ['/a:/b/..', 'must not contain ".."'],
    ['/a\n:/b', 'control character'],
    ['/a:/', 'belongs to the sandbox itself'],
    ['/a:/proc/', 'belongs to the sandbox itself'],
    ['/a:/workspace', 'belongs to the sandbox itself'],
    ['/a:/dev/shm', 'shm_size'],
  ])('%s: %s', (text, why) => {
    expect(parseVolume(text)).toEqual({ ok: false, why: expect.stringContaining(why) });
  });

  it.each([
    ['/a:/b', '/a', null, false],
    ['/a:/b:ro', '/a', null, true],
    ['depot:/b', 'depot', 'depot', false],
    ['depot-2.0_x:/b/:ro', 'depot-2.0_x', 'depot-2.0_x', true],
  ])(
    'a cache %s is writable unless it says otherwise, and may have a name instead of a host path',
    (text, host, name, readOnly) => {
      const value = { host, container: '/b', variable: null, readOnly, cache: { name } };
      expect(parseVolume(text, 'cache')).toEqual({ ok: true, value });
    },
  );

  it.each([
    ['depot', 'has no container path; write NAME:CONTAINER or HOST'],
    ['../x:/b', 'the host path must be absolute'],
    ['.hidden:/b', 'the host path must be absolute'],
    ['de pot:/b', 'the host path must be absolute'],
    [`${'d'.repeat(65)}:/b`, 'the host path must be absolute'],
    ['depot:/proc', 'belongs to the sandbox itself'],
    ['depot:b', 'the container path must be absolute'],
  ])('no cache: %s', (text, why) => {
    expect(parseVolume(text, 'cache')).toEqual({ ok: false, why: expect.stringContaining(why) });
  });

  it('a name among the volumes is told where it belongs', () => {
    expect(parseVolume('depot:/b')).toMatchObject({ why: expect.stringMatching(/must be absolute.*in "caches"/) });
  });

  it('what is parsed and written again means the same', () => {
    fc.assert(
      fc.property(fc.string(), fc.string(), fc.constantFrom('', ':ro', ':rw', ':X', ':X:rw'), (a, b, end) => {
        for (const [text, as] of [
          [`/${a}:/${b}${end}`, 'volume'],
          [`/${a}:/${b}${end}`, 'cache'],
          [`${a}:/${b}${end}`, 'cache'],
        ] as const) {
          const parsed = parseVolume(text, as);
          if (parsed.ok) expect(parseVolume(formatVolume(parsed.value), as)).toEqual(parsed);
        }
      }),
    );
  });
});
