import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { anyCharacter } from '../../../test/support/any-character.ts';
import { isSameRepository, matchesRepository, normalRepository } from './repository.ts';

it.each([
  ['https://github.com/acme/app', 'github.com/acme/app'],
  ['https://github.com/acme/app.git', 'github.com/acme/app'],
  ['https://github.com/acme/app.git/', 'github.com/acme/app'],
  ['http://github.com:80/acme/app', 'github.com/acme/app'],
  ['https://me:secret@GitHub.com:443/Acme/App.git', 'github.com/acme/app'],
  ['git@github.com:acme/app.git', 'github.com/acme/app'],
  ['org-12@github.com:acme/app.git', 'github.com/acme/app'],
  ['github.com:acme/app', 'github.com/acme/app'],
  ['git@github.com:/acme/app', 'github.com/acme/app'],
  ['ssh://git@github.com/acme/app.git', 'github.com/acme/app'],
  ['ssh://git@github.com:22/acme/app.git', 'github.com/acme/app'],
  ['git+ssh://git@github.com/acme/app', 'github.com/acme/app'],
  ['ssh+git://git@github.com/acme/app', 'github.com/acme/app'],
  ['git://github.com/acme/app.git', 'github.com/acme/app'],
  ['git://github.com:9418/acme/app.git', 'github.com/acme/app'],
  ['HTTPS://github.com/acme/app', 'github.com/acme/app'],
  ['ssh://git@git.lab:2222/acme/app', 'git.lab:2222/acme/app'],
  ['ssh://git@git.lab:0022/acme/app', 'git.lab:22/acme/app'],
  ['alice@git.lab:acme/app', 'alice@git.lab/acme/app'],
  ['https://alice@git.lab/acme/app', 'git.lab/acme/app'],
  ['https://git.lab/Acme/App', 'git.lab/Acme/App'],
  ['https://[2001:db8::1]:443/a/b', '[2001:db8::1]/a/b'],
  ['https://dev.azure.com/acme/My%20App/_git/x', 'dev.azure.com/acme/My%20App/_git/x'],
  ['/srv/git/app.git', '/srv/git/app'],
  ['file:///srv/git/app.git', '/srv/git/app'],
])('%s', (written, normal) => expect(normalRepository(written)).toBe(normal));

it.each([
  '',
  ' ',
  '/',
  'app',
  'https://github.com',
  'https://github.com/',
  'https://github.com/acme/../other/app',
  'https://github.com/acme//app',
  'https://github.com/acme/./app',
  'https://github.com/acme/app?x=1',
  'https://github.com/acme/app#x',
  'https://github.com\\acme/app',
  'https://github.com@evil.example:x/acme/app',
  'https://a@b@github.com/acme/app',
  'https://git hub.com/acme/app',
  'https://gıthub.com/acme/app',
  'ftp://github.com/acme/app',
  'ext::sh -c x',
  'C:\\repo',
  'file://elsewhere/srv/app',
  'git@github.com:acme/ap\u200bp',
  `https://github.com/${'a'.repeat(2048)}`,
])('%j cannot be understood', (written) => {
  expect(normalRepository(written)).toBeNull();
  expect(isSameRepository(written, written)).toBe(false);
});

describe('not the same', () => {
  it.each([
    ['https://github.com/acme/app', 'https://github.com/acme/app2'],
    ['https://github.com/acme/app', 'https://github.com/evil/app'],
    ['https://github.com/acme/app', 'https://github.com.evil.example/acme/app'],
    ['https://github.com/acme/app', 'https://gitlab.com/acme/app'],
    ['https://github.com/acme/app', 'https://github.com:8443/acme/app'],
    ['https://git.lab/Acme/app', 'https://git.lab/acme/app'],
    ['alice@git.lab:app', 'bob@git.lab:app'],
    // The Kelvin sign's small form is a plain k.
    ['https://github.com/acme/kit', 'https://github.com/acme/\u212ait'],
    ['https://github.com/acme/app', ''],
    ['', ''],
  ])('%s and %s', (one, other) => expect(isSameRepository(one, other)).toBe(false));

  it('what is not known and itself', () => {
    expect(isSameRepository(null, null)).toBe(false);
    expect(isSameRepository(null, 'https://github.com/acme/app')).toBe(false);
  });
});

describe('patterns', () => {
  it.each([
    ['gitea@git.lab/acme/*', 'gitea@git.lab:acme/app.git', true],
    ['gitea@git.lab/acme/*', 'ssh://gitea@GIT.lab/acme/app', true],
    ['gitea@GIT.lab/acme/*', 'gitea@git.lab:acme/app.git', true],
    ['gitea@git.lab:2222/acme/*', 'ssh://gitea@git.lab:2222/acme/app', true],
    ['{gitea@,}git.lab/acme/*', 'gitea@git.lab:acme/app.git', true],
    ['{gitea@,}git.lab/acme/*', 'https://git.lab/acme/app.git', true],
    ['org-12@GitHub.com/Acme/*', 'git@github.com:acme/app', true],
    ['**', 'gitea@git.lab:acme/app.git', true],
    // Whose home it is in is somebody else's to say.
    ['gitea@git.lab/acme/*', 'mallory@git.lab:acme/app.git', false],
    ['gitea@git.lab/acme/*', 'Gitea@git.lab:acme/app.git', false],
    ['gitea@git.lab/acme/*', 'https://git.lab/acme/app', false],
    ['git.lab/acme/*', 'gitea@git.lab:acme/app.git', false],
    ['*.lab/acme/*', 'mallory@git.lab:acme/app.git', false],
    ['*/acme/*', 'mallory@git.lab:acme/app.git', false],
    ['*.lab/acme/*', 'git@git.lab:acme/app.git', true],
  ])('%s and %s', (pattern, written, fits) => expect(matchesRepository([pattern], written)).toBe(fits));
});

const slug = fc.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_-]{0,12}$/);
const ways: readonly ((host: string, path: string) => string)[] = [
  (host, path) => `https://${host}/${path}`,
  (host, path) => `https://${host}/${path}.git`,
  (host, path) => `https://user:pass@${host}:443/${path}/`,
  (host, path) => `http://${host}/${path}.git`,
  (host, path) => `ssh://git@${host}:22/${path}.git`,
  (host, path) => `git@${host}:${path}.git`,
  (host, path) => `git@${host}:/${path}`,
  (host, path) => `git://${host}/${path}.git/`,
  (host, path) => `https://${host.toUpperCase()}/${path}`,
];
const hosts = fc.constantFrom('github.com', 'gitlab.com', 'bitbucket.org', 'git.example.org');
const way = fc.constantFrom(...ways);

it('all ways to write an address mean the same repository, and only that one', () => {
  fc.assert(
    fc.property(hosts, slug, slug, slug, way, way, (host, owner, name, other, one, two) => {
      const written = one(host, `${owner}/${name}`);
      expect(isSameRepository(written, two(host, `${owner}/${name}`))).toBe(true);
      if (other.toLowerCase() === owner.toLowerCase()) return;
      expect(isSameRepository(written, two(host, `${other}/${name}`))).toBe(false);
      expect(isSameRepository(written, two(host, `${owner}/${name}/${other}`))).toBe(false);
    }),
  );
});

it('any text is understood or not, the same way twice, and what it means is written in one way', () => {
  const text = fc.oneof(
    fc.string({ unit: anyCharacter }),
    fc.string(),
    fc.stringMatching(/^(https|ssh|git|file):\/\/[a-z@:./-]{0,30}$/),
  );
  fc.assert(
    fc.property(text, (written) => {
      const normal = normalRepository(written);
      expect(normalRepository(written)).toBe(normal);
      if (normal === null) return;
      expect(normal).not.toMatch(/\/$|\s|\/\.{1,2}(\/|$)/);
      // What stands around it is not a part of it.
      expect(isSameRepository(written, `${written.trim()}/`)).toBe(true);
    }),
    { examples: [['/a '], ['ab:cd ']] },
  );
});
