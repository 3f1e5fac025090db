import { describe, expect, it } from 'vitest';
import { isOwnKey, jobAnswerFor, registerAnswerFor, secretKey, withoutTokens } from './rewrite.ts';

const door = '172.18.0.1';
const secrets = [{ name: 'KEY', value: 'hunter2!' }];
const ours = { key: 'onejob:KEY', environment_variable: 'KEY' };

it.each([
  ['no step', {}, { step: { secrets: [ours] } }],
  ['null', { step: { secrets: null, command: 'x' } }, { step: { command: 'x', secrets: [ours] } }],
  ['a list', { step: { secrets: ['A', { key: 'B' }] } }, { step: { secrets: ['A', { key: 'B' }, ours] } }],
  ['a map', { step: { secrets: { VAR: 'A' } } }, { step: { secrets: { VAR: 'A', KEY: 'onejob:KEY' } } }],
])('secrets join those of the step: %s', (_, stored, expected) => {
  expect(jobAnswerFor({ id: 'j', ...stored }, null, secrets, door)).toEqual({ id: 'j', ...expected });
});

it('a job without secrets keeps its step as it is', () => {
  const stored = { id: 'j', token: 'bkaj_x', endpoint: 'https://elsewhere', step: { secrets: null }, later: [1] };
  expect(jobAnswerFor(stored, 'alias', [], door)).toEqual({ id: 'j', token: 'alias', step: { secrets: null }, later: [1] });
  expect(jobAnswerFor(stored, null, [], door)).not.toHaveProperty('token');
});

it('no interval is below a second', () => {
  const stored = { access_token: 'bkaa_x', endpoint: 'x', ping_interval: 0, heartbeat_interval: 61.5, tracing: {} };
  expect(registerAnswerFor(stored, 'alias', null)).toEqual({
    access_token: 'alias',
    ping_interval: 1,
    job_status_interval: 1,
    heartbeat_interval: 61,
    tracing: {},
  });
});

it('keys of ours are never those of the service', () => {
  expect(secretKey('A')).not.toMatch(/^[A-Za-z0-9_]+$/);
  expect([secretKey('A'), ' ONEJOB:x', 'ONEJOB', 'DB'].map(isOwnKey)).toEqual([true, true, false, false]);
});

describe('an answer that repeats a token of the service', () => {
  const clean = (text: string): string => text.replaceAll('bkaa_x', '[token]');

  it('is told without it, wherever it stands', () => {
    const stored = { a: 'bkaa_x', b: [{ c: 'Token bkaa_x' }], bkaa_x: null, n: 1, no: false };
    expect(withoutTokens(stored, clean)).toEqual({ a: '[token]', b: [{ c: 'Token [token]' }], '[token]': null, n: 1, no: false });
  });

  it('keeps a field of any name', () => {
    expect(JSON.stringify(withoutTokens(JSON.parse('{"__proto__":{"a":1}}'), clean))).toBe('{"__proto__":{"a":1}}');
  });

  it('loses what its agent sets by itself for a job', () => {
    const env = { BUILDKITE_AGENT_ACCESS_TOKEN: 'bkaa_y', A: 'b' };
    expect(jobAnswerFor({ id: 'j', env }, null, [], door)).toEqual({ id: 'j', env: { A: 'b' } });
    expect(jobAnswerFor({ id: 'j', env: null }, null, [], door)).toEqual({ id: 'j', env: null });
  });
});

it.each([
  [{ A: 'b' }, { A: 'b' }],
  [{ HTTP_PROXY: 'http://p' }, { HTTP_PROXY: 'http://p' }],
  [{ NO_PROXY: '' }, { NO_PROXY: '' }],
  [
    { NO_PROXY: 'x', no_proxy: '*' },
    { NO_PROXY: 'x,172.18.0.1', no_proxy: '*,172.18.0.1' },
  ],
])('no proxy of a pipeline’s is asked for the broker: %j', (env, expected) => {
  expect(jobAnswerFor({ id: 'j', env }, null, [], door)).toEqual({ id: 'j', env: expected });
});

it('variables of a signed step stay as they were signed', () => {
  const signed = { id: 'j', env: { NO_PROXY: 'x' }, step: { signature: { value: 's' } } };
  expect(jobAnswerFor(signed, null, [], door)).toEqual(signed);
  expect(jobAnswerFor({ ...signed, step: { signature: null } }, null, [], door)).toMatchObject({
    env: { NO_PROXY: 'x,172.18.0.1' },
  });
});
