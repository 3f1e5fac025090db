import { setImmediate as turn } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { noProxies, type Proxies } from '../../config/proxies.ts';
import { handClock } from '../../core/testing.ts';
import { OnejobError } from '../../errors.ts';
import type { BrokerLook } from './broker-calls.ts';
import { brokerAbsent, brokerFindings, brokerOnceThere } from './doctor-broker.ts';

const patient = new AbortController().signal;
const there: BrokerLook = { protocol: 1, version: '1', pid: 1, port: 7070, agents: [], services: [] };

/** A broker that is there only for the `nth` who looks. */
function coming(nth: number): () => Promise<BrokerLook> {
  let looks = 0;
  return async () => {
    looks += 1;
    if (looks < nth) throw new OnejobError('E_BROKER', 'away', { retry: true });
    return there;
  };
}

it('a broker that is being started is waited for, and one that stays away is told after a few seconds', async () => {
  const clock = handClock();
  const pass = async (times: number): Promise<void> => {
    for (let left = times; left > 0; left--) {
      await turn();
      clock.advance(200);
    }
  };
  const started = brokerOnceThere(coming(4), clock, patient);
  await pass(4);
  expect(await started).toEqual(there);
  const never = brokerOnceThere(coming(Number.POSITIVE_INFINITY), clock, patient).catch((error: unknown) => error);
  await pass(30);
  expect(await never).toMatchObject({ code: 'E_BROKER' });
  expect(clock.next()).toBeNull();
});

it('who asks no longer is not kept', async () => {
  const gone = new AbortController();
  gone.abort();
  await expect(brokerOnceThere(coming(9), handClock(), gone.signal)).rejects.toMatchObject({ code: 'E_BROKER' });
});

it('one that goes by another proxy than we do is told, without a password', () => {
  const ours: Proxies = { http: null, https: 'http://alice:proxy-canary@proxy.example:3128', none: '' };
  const warnings = (proxy: string | null | undefined, proxies = ours) =>
    brokerFindings('bk', { ...there, proxy }, { version: '1', proxies }).filter(({ level }) => level === 'warning');
  const said = 'Its broker reaches services directly, and this onejob through the proxy proxy.example:3128.';
  expect(warnings(undefined)).toMatchObject([{ message: said, hint: expect.stringContaining('kill 1') }]);
  expect(warnings('proxy.example:3128')).toEqual([]);
  expect(warnings(null, noProxies)).toEqual([]);
  expect(warnings('old:1', noProxies)).toMatchObject([{ message: expect.stringContaining('old:1, and this onejob directly') }]);
});

it('a broker that is away is an error where a daemon should have one, and nothing wrong without a daemon', () => {
  const error = new OnejobError('E_BROKER', 'The broker cannot be reached.');
  expect(brokerAbsent('bk', error, false)).toMatchObject({ level: 'error', message: 'The broker cannot be reached.' });
  const message = 'Its broker is not there: no daemon runs, and "onejob up" starts both.';
  expect(brokerAbsent('bk', error, true)).toEqual({ level: 'ok', subject: 'service bk', message, hint: null });
});
