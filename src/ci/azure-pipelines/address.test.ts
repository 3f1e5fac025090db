import { expect, it } from 'vitest';
import { baseOf, isHostedUrl, isOpenToAll, shown } from './address.ts';

it.each([
  ['https://dev.azure.com/acme', 'https://dev.azure.com/acme'],
  ['https://dev.azure.com/acme///', 'https://dev.azure.com/acme'],
  [' https://ACME.visualstudio.com/ ', 'https://acme.visualstudio.com'],
  ['https://devops.example.org/tfs/My Collection/', 'https://devops.example.org/tfs/My%20Collection'],
  ['http://host:8080/tfs/Größe?x=1#y', 'http://host:8080/tfs/Gr%C3%B6%C3%9Fe'],
])('%s', (written, base) => expect(baseOf(written)).toBe(base));

it('an address that holds a password is refused without showing it', () => {
  const refused = (url: string) => {
    try {
      return baseOf(url);
    } catch (error) {
      return error;
    }
  };
  for (const url of ['https://user:hunter2@dev.azure.com/acme', 'hunter2', 'ftp://hunter2/']) {
    expect(refused(url)).toMatchObject({ code: 'E_CONFIG', message: expect.not.stringContaining('hunter2') });
  }
});

it('tells the cloud from a Server of one’s own', () => {
  expect(['https://dev.azure.com/a', 'https://a.visualstudio.com'].map(isHostedUrl)).toEqual([true, true]);
  expect(['https://dev.azure.com.evil.example/a', 'http://tfs/x', 'nonsense'].map(isHostedUrl)).toEqual([false, false, false]);
});

it('says where a credential could be read on its way', () => {
  expect(['http://tfs:8080/x', 'http://localhost.evil.example/x'].map(isOpenToAll)).toEqual([true, true]);
  expect(['https://tfs/x', 'http://127.0.0.1:1/x', 'http://[::1]/x', 'http://localhost/'].map(isOpenToAll)).toEqual([
    false,
    false,
    false,
    false,
  ]);
});

it('is shown without what may be secret', () => {
  expect(shown('https://u:p@login.example/x?code=hunter2#t')).toBe('https://login.example/x');
});
