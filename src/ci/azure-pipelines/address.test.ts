import { expect, it } from 'vitest';
import { clearTextHost } from '../../http/address.ts';
import { shown } from '../../http/exchange.ts';
import { baseOf } from './url.ts';

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

it('says where a credential could be read on its way', () => {
  expect(clearTextHost('http://tfs:8080/x')).toBe('tfs');
  expect(clearTextHost('http://localhost.evil.example/x')).toBe('localhost.evil.example');
  for (const url of ['https://tfs/x', 'http://127.0.0.1:1/x', 'http://[::1]/x', 'http://localhost/'])
    expect(clearTextHost(url)).toBeNull();
});

it('is shown without what may be secret', () => {
  expect(shown('https://u:p@login.example/x?code=hunter2#t')).toBe('https://login.example/x');
});
