import { describe, expect, it } from 'vitest';
import { clearTextHost } from '../../http/address.ts';
import { shown } from '../../http/exchange.ts';
import { azureUrlToKeep, baseOf, isHostedAzure, parseAzureUrl } from './url.ts';

describe('an address that says where agents belong', () => {
  it.each([
    ['https://dev.azure.com/acme', 'https://dev.azure.com/acme'],
    ['https://dev.azure.com/acme/', 'https://dev.azure.com/acme'],
    [' https://DEV.azure.com/Acme// ', 'https://dev.azure.com/Acme'],
    ['https://acme.visualstudio.com/', 'https://acme.visualstudio.com'],
    ['https://tfs.lab.example/tfs/DefaultCollection/', 'https://tfs.lab.example/tfs/DefaultCollection'],
    ['https://tfs.lab.example:8443/Collection', 'https://tfs.lab.example:8443/Collection'],
    ['http://127.0.0.1:4711/acme', 'http://127.0.0.1:4711/acme'],
    ['http://[::1]:4711', 'http://[::1]:4711'],
  ])('%s is %s', (written, url) => expect(parseAzureUrl(written)).toEqual({ ok: true, value: url }));
});

describe('one that was pasted from somewhere else is told which part to keep', () => {
  it.each([
    [
      'https://dev.azure.com/acme/project/_settings/agentqueues?queueId=9&view=jobs',
      'organisation; keep "https://dev.azure.com/acme"',
    ],
    ['https://dev.azure.com/acme/_settings/agentpools?poolId=9', 'organisation; keep "https://dev.azure.com/acme"'],
    ['https://dev.azure.com/acme/project', 'organisation; keep "https://dev.azure.com/acme"'],
    ['https://acme@dev.azure.com/acme', 'must contain neither user nor password; keep "https://dev.azure.com/acme"'],
    ['https://dev.azure.com/acme#x', 'organisation; keep "https://dev.azure.com/acme"'],
    ['https://acme.visualstudio.com/project/_build', 'organisation; keep "https://acme.visualstudio.com"'],
    ['https://host/tfs/Coll/_settings/agentpools', 'collection; keep "https://host/tfs/Coll"'],
    ['https://host/tfs/Coll/project/_settings/agentqueues', 'collection; keep "https://host/tfs/Coll"'],
    ['https://host/tfs/Coll/project/_git/code', 'collection; keep "https://host/tfs/Coll"'],
    ['https://host/tfs/Coll/_apis/distributedtask/pools', 'collection; keep "https://host/tfs/Coll"'],
    ['https://dev.azure.com', 'does not name an organisation; write "https://dev.azure.com/ORGANISATION"'],
    ['https://dev.azure.com/_settings/agentpools', 'does not name an organisation'],
    ['dev.azure.com/acme', 'write "https://dev.azure.com/acme"'],
    ['acme', 'expected a web address such as "https://dev.azure.com/acme"'],
    ['ftp://dev.azure.com/acme', 'expected a web address'],
    ['https://', 'expected a web address'],
    ['https://host/with space', 'expected a web address'],
  ])('%s: %s', (written, why) => expect(parseAzureUrl(written)).toEqual({ ok: false, why: expect.stringContaining(why) }));

  it('and what it holds as a password stands in no message', () => {
    const parsed = parseAzureUrl('https://acme:hunter2@dev.azure.com/acme/project/_git/code');
    expect(parsed).toEqual({ ok: false, why: expect.stringContaining('keep "https://dev.azure.com/acme", and name the token') });
    expect(JSON.stringify(parsed)).not.toContain('hunter2');
    expect(azureUrlToKeep('https://acme:hunter2@dev.azure.com/acme/project')).toBe('https://dev.azure.com/acme');
  });
});

describe('an address that a client asks', () => {
  it.each([
    ['https://dev.azure.com/acme', 'https://dev.azure.com/acme'],
    ['https://dev.azure.com/acme///', 'https://dev.azure.com/acme'],
    [' https://ACME.visualstudio.com/ ', 'https://acme.visualstudio.com'],
    ['https://devops.example.org/tfs/My Collection/', 'https://devops.example.org/tfs/My%20Collection'],
    ['http://host:8080/tfs/Größe?x=1#y', 'http://host:8080/tfs/Gr%C3%B6%C3%9Fe'],
  ])('%s', (written, base) => expect(baseOf(written)).toBe(base));

  it.each(['https://user:hunter2@dev.azure.com/acme', 'hunter2', 'ftp://hunter2/'])('%s is refused without showing it', (url) => {
    const shows = expect.not.stringContaining('hunter2');
    expect(() => baseOf(url)).toThrow(expect.objectContaining({ code: 'E_CONFIG', message: shows }));
  });

  it('is shown without what may be secret', () => {
    expect(shown('https://u:p@login.example/x?code=hunter2#t')).toBe('https://login.example/x');
  });
});

it('the hosted service is told from a Server, and clear text from what stays on this host', () => {
  expect(['https://dev.azure.com/a', 'https://a.visualstudio.com', 'https://host/tfs'].map(isHostedAzure)).toEqual([
    true,
    true,
    false,
  ]);
  expect(['http://tfs:8080/c', 'http://localhost.evil.example/x'].map(clearTextHost)).toEqual(['tfs', 'localhost.evil.example']);
  for (const url of ['https://tfs.lab/c', 'http://localhost:1', 'http://127.0.0.2:1', 'http://[::1]:1'])
    expect(clearTextHost(url)).toBeNull();
});
