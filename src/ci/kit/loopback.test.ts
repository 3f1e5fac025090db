import { expect, test } from 'vitest';
import { OnejobError } from '../../base/errors.ts';
import { openLoopback } from './loopback.ts';

const { signal } = new AbortController();

test.each([
  ['http://127.0.0.1:3000', [3000]],
  ['http://localhost/gitea', [80]],
  ['https://[::1]', [443]],
  ['https://gitea.example.org', []],
  ['http://192.168.7.9:3000', []],
])('of %s, the agent gets the ports %j', async (url, ports) => {
  const opened: number[] = [];
  const hostAddress = async (port: number) => {
    opened.push(port);
    return '127.0.0.1';
  };
  await openLoopback(url, { hostAddress }, signal);
  expect(opened).toEqual(ports);
});

test('where there is no way, the agent finds out itself; another failure is one', async () => {
  const fails = (code: 'E_NO_DOOR' | 'E_SANDBOX_LOST') =>
    openLoopback('http://localhost:3000', { hostAddress: () => Promise.reject(new OnejobError(code, 'No.')) }, signal);
  await fails('E_NO_DOOR');
  await expect(fails('E_SANDBOX_LOST')).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
});
