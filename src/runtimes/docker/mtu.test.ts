import { expect, test } from 'vitest';
import { uplinkMtu } from '../../system/default-route.ts';
import { exceeds, mtuFindings, mtuOption, mtuOptions } from './mtu.ts';

const head = 'Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n';
const look = (table: string, mtu: string) =>
  uplinkMtu((path) => (path === '/proc/net/route' ? head + table : path === '/sys/class/net/eth0/mtu' ? mtu : ''));
const route = 'eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n';
const uplink = { name: 'eth0', mtu: 1_400 };

test('the MTU of the interface that leads out', () => {
  expect(look(route, '1400\n')).toEqual(uplink);
  expect([look('', '1400\n'), look(route, '')]).toEqual([null, null]);
});

test.each([
  [1_400, { [mtuOption]: '1400' }],
  [1_500, {}],
  [9_000, {}],
])('a network behind an uplink with %d is made with %j', (mtu, options) => {
  expect(mtuOptions({ ...uplink, mtu })).toEqual(options);
});

test('one that is larger than wanted, said or not', () => {
  const wanted = mtuOptions(uplink);
  expect([exceeds({}, wanted), exceeds({ [mtuOption]: '1450' }, wanted), exceeds(null, wanted)]).toEqual([true, true, true]);
  expect([exceeds({ [mtuOption]: '1400' }, wanted), exceeds({ [mtuOption]: '1280' }, wanted)]).toEqual([false, false]);
  expect([exceeds({}, {}), exceeds({ [mtuOption]: '1400' }, {})]).toEqual([false, false]);
  // As Podman lists it.
  expect([exceeds({ mtu: '1400' }, wanted), exceeds({ mtu: '1450' }, wanted)]).toEqual([false, true]);
});

test('doctor: only behind a small uplink, and what is wrong with the default bridge', () => {
  expect([mtuFindings(null, {}), mtuFindings({ ...uplink, mtu: 1_500 }, {})]).toEqual([[], []]);
  expect(mtuFindings(uplink, { [mtuOption]: '1400' }).map(({ level }) => level)).toEqual(['ok']);
  expect(mtuFindings(uplink, null).map(({ level }) => level)).toEqual(['ok']);
  // Its words would be about Docker's daemon and its docker0.
  expect(mtuFindings(uplink, {}, { podman: true }).map(({ level }) => level)).toEqual(['ok']);
  expect(mtuFindings(uplink, {})).toMatchObject([
    { level: 'ok', message: "The uplink eth0 has an MTU of 1400; onejob's own networks have it, too." },
    {
      level: 'warning',
      message: expect.stringContaining('1500, but the uplink eth0 has 1400'),
      hint: expect.stringContaining('"mtu": 1400'),
    },
  ]);
});
