import { describe, expect, it } from 'vitest';
import { agent, agentPackage, connection, jobRequest, listOf, pool, registeredAgent, requestState } from './wire.ts';

describe('lists', () => {
  it('an empty one may be null', () => {
    expect(listOf(pool).parse({ count: 0, value: null })).toEqual([]);
  });

  it('one entry without an id fails all of it: it must not look as if it were gone', () => {
    expect(listOf(agent).safeParse({ count: 2, value: [{ id: 1, name: 'a' }, { name: 'b' }] }).success).toBe(false);
    expect(listOf(agent).safeParse({ count: 0 }).success).toBe(false);
  });
});

describe('agents', () => {
  it('with everything', () => {
    const found = agent.parse({
      id: 4,
      name: 'gpu-0',
      enabled: false,
      status: 'online',
      systemCapabilities: { cuda: '12.4', odd: 3 },
      assignedRequest: { requestId: 12, receiveTime: '2026-08-21T10:11:12.1234567Z', demands: ['cuda'] },
    });
    expect(found).toMatchObject({
      enabled: false,
      status: 'online',
      systemCapabilities: { cuda: '12.4' },
      userCapabilities: null,
      assignedRequest: { requestId: 12, receiveTime: Date.UTC(2026, 7, 21, 10, 11, 12, 123), demands: ['cuda'], result: null },
    });
  });

  it('with nothing: enabled, and of no known status', () => {
    expect(agent.parse({ id: 4, name: 'x' })).toMatchObject({ enabled: true, status: null, assignedRequest: null });
    expect(agent.parse({ id: 4, name: 'x', status: 'Sleeping' })).toMatchObject({ status: null });
    expect(agent.parse({ id: 4, name: 'x', status: 2 })).toMatchObject({ status: 'online' });
  });

  it('a job that cannot be read is not taken for none', () => {
    expect(agent.safeParse({ id: 4, name: 'x', assignedRequest: { id: 'odd' } }).success).toBe(false);
  });
});

describe('jobs', () => {
  const job = (more: object) => requestState(jobRequest.parse({ requestId: 1, ...more }));
  const at = '2026-08-21T10:11:12Z';

  it('waiting, assigned, running, done', () => {
    expect(job({ queueTime: at })).toBe('waiting');
    expect(job({ assignTime: at })).toBe('assigned');
    expect(job({ reservedAgent: { id: 3, name: 'x' } })).toBe('assigned');
    expect(job({ assignTime: at, receiveTime: at })).toBe('running');
    expect(job({ receiveTime: at, finishTime: at, result: 'failed' })).toBe('done');
    expect(job({ receiveTime: '0001-01-01T00:00:00' })).toBe('waiting');
  });

  it('demands as texts, whichever way they come', () => {
    const { demands } = jobRequest.parse({ requestId: 1, demands: ['cuda', { name: 'gpu', value: 'a100' }, { name: 'x' }] });
    expect(demands).toEqual(['cuda', 'gpu -equals a100', 'x']);
  });

  it('a link only to the web', () => {
    const link = (href: string) => jobRequest.parse({ requestId: 1, owner: { id: 7, _links: { web: { href } } } }).owner?.link;
    expect(link('https://dev.azure.com/acme/p/_build/results?buildId=7')).toContain('buildId=7');
    expect(link('javascript:alert(1)')).toBeNull();
  });
});

it('what a registration answers', () => {
  const answer = { id: 9, name: 'x', authorization: { clientId: 'c', authorizationUrl: 'https://vssps.example/token' } };
  const serverUrl = { $type: 'System.String', $value: 'https://a.example/tfs/' };
  expect(registeredAgent.parse({ ...answer, properties: { ServerUrl: serverUrl } })).toEqual({
    ...answer,
    serverUrl: 'https://a.example/tfs/',
  });
  expect(registeredAgent.parse({ ...answer, properties: {} }).serverUrl).toBeNull();
  expect(registeredAgent.parse({ id: 9, name: 'x' }).authorization).toBeNull();
});

it('a package, its version written either way', () => {
  const one = { downloadUrl: 'https://download.example/a.tar.gz', hashValue: 'AB'.repeat(32) };
  const expected = { version: '5.278.0', url: one.downloadUrl, sha256: 'ab'.repeat(32) };
  expect(agentPackage.parse({ ...one, version: { major: 5, minor: 278, patch: 0 } })).toEqual(expected);
  expect(agentPackage.parse({ ...one, version: '5.278.0', hashValue: 'short' })).toEqual({ ...expected, sha256: null });
  expect(agentPackage.safeParse({ ...one, version: 'latest' }).success).toBe(false);
  expect(agentPackage.safeParse({ ...one, version: '5.278.0', downloadUrl: 'file:///etc/passwd' }).success).toBe(false);
});

it('who a credential is', () => {
  const authenticatedUser = { id: 'u', providerDisplayName: 'Ada', properties: { Account: { $type: 's', $value: 'ada@x' } } };
  expect(connection.parse({ authenticatedUser })).toEqual({ id: 'u', user: 'Ada' });
  expect(connection.parse({ authenticatedUser: { ...authenticatedUser, providerDisplayName: null } }).user).toBe('ada@x');
  expect(connection.parse({})).toEqual({ id: null, user: null });
});
