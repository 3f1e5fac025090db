/** What needs a person, from what a manager knows. */
import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { poolLike } from '../../test/kit/pool.ts';
import { clean, DeviceHost, devicePool, dirty } from '../../test/support/device-host.ts';
import { gpu } from '../../test/support/devices.ts';
import type { Failure } from '../base/errors.ts';
import { warning } from '../base/finding.ts';
import { Timers } from '../core/clock.ts';
import { emptySlot } from '../core/slot.ts';
import { type CausesParts, causesOf } from './causes.ts';
import type { SecretTrouble } from './housekeeping.ts';
import type { Origin } from './loop/image-rollout.ts';
import { Pause } from './loop/pause.ts';

const pool = (name: string, service: string) =>
  poolLike({ name, recipe: { image: null } }, { service: { name: service, capabilities: { binds: 'late' } } });

const failure = (code: string, message: string): Failure => ({ code: code as Failure['code'], message, retry: true });

function world(more: Partial<CausesParts> = {}) {
  const pools = [pool('lab', 'own'), pool('cuda', 'julia'), pool('rocm', 'julia')] as const;
  const reconciler = { pools, pause: new Pause(), slots: [] };
  const parts = {
    reconciler,
    observer: { away: new Map() },
    deviceManager: null,
    secrets: [],
    stateDisk: null,
    conditions: [],
    ...more,
  };
  const seen = () => causesOf(parts);
  const lines = () => seen().causes.map(({ key, message, stage, patience }) => `${key} ${stage} ${patience / 60_000}m: ${message}`);
  return { pools, reconciler, lines, seen };
}

test('nothing is wrong', () => {
  const { lines, reconciler, pools } = world();
  reconciler.pause.hold('starting', 'onejob is starting');
  pools[0].pause.hold('person:tea', 'by tea');
  expect(lines()).toEqual([]);
});

test('a pool that fails: without the output that its failure quotes', () => {
  const { lines, pools } = world();
  pools[0].failed(failure('E_GATE_ENDED', 'It ended. Its last output was:\nhunter2'), 'prepare', 0, 0);
  expect(lines()).toEqual(['pool lab 0 60m: Pool lab has kept failing for an hour: It ended. Its last output was:.']);
});

test('a new image that keeps failing, not one that failed once, and not after it has proved itself', () => {
  const { lines, pools } = world();
  const [{ rollout }] = pools;
  const origin = (id: string): Origin => ({ image: 'lab:1', id, equipment: [], driver: null });
  rollout.restore(origin('sha256:one'));
  const slots = ['lab/1', 'lab/2'].map((key) => emptySlot({ key, runtime: 'docker', grace: 0 }));
  const clock = handClock();
  rollout.attach({
    clock,
    log: { info() {}, warn() {}, error() {} },
    timers: new Timers(clock),
    random: () => 0,
    slots: () => slots,
    replan() {},
    isStopping: () => false,
  });
  const look = (id: string, old: string | null) => rollout.looked(origin(id), [{ key: 'lab/1', fingerprint: id, old }]);
  const fails = () => {
    const why = failure('E_GATE_ENDED', 'It ended. Its last output was:\nhunter2');
    const trying = emptySlot({ key: 'lab/1', runtime: 'docker', grace: 0 });
    const standby = { kind: 'preparing', agent: 'a', reserved: null, since: 0 } as const;
    rollout.failed({ ...trying, standby }, 'a', { change: 'failed', stage: 'prepare', failure: why });
  };
  look('sha256:two', 'old');
  fails();
  expect(lines()).toEqual([]);
  clock.advance(1_000);
  fails();
  const line = (stage: number, others: string) => [
    `image of pool lab ${stage} 60m: The new image lab:1 (two) of pool lab has kept failing on lab/1 for an hour, and the other slots ${others}: It ended. Its last output was:.`,
  ];
  expect(lines()).toEqual(line(0, 'keep image lab:1 (one)'));
  look('sha256:two', null);
  expect(lines()).toEqual(line(1, 'wait, because image lab:1 (one) is no longer there'));
  look('sha256:one', null);
  expect(lines()).toEqual([]);
});

test('a service is one cause, which grows when its last pool has no jobs, by a hold or by refused registrations', () => {
  const { lines, pools } = world();
  pools[1].pause.hold('service', 'The token was refused. Put another.');
  expect(lines()).toEqual([
    'service julia 0 10m: CI service julia gives no jobs to pool cuda: The token was refused. Put another.',
  ]);
  pools[2].failed(failure('E_CI_CREDENTIAL', 'Refused'), 'release', 0, 0);
  expect(lines()).toEqual([
    'service julia 1 10m: CI service julia gives no jobs to pools cuda, rocm: The token was refused. Put another.',
  ]);
});

test('secrets: the worst of each, and none that has only a wrong mode', () => {
  const one = (state: SecretTrouble['state'], subject: string, message: string) => ({ state, finding: warning(subject, message) });
  const { lines } = world({
    secrets: [
      one('expires', 'services.julia.token', 'It expires on 2030-01-31, in 10 days.'),
      one('open', 'services.julia.token', '/token can be used by every user of this host.'),
      one('gone', 'secrets.key', '/key does not exist.'),
      one('expired', 'secrets.key', 'It expired on 2030-01-01.'),
    ],
  });
  expect(lines()).toEqual([
    'secret services.julia.token 0 0m: services.julia.token: It expires on 2030-01-31, in 10 days.',
    'secret secrets.key 2 0m: secrets.key: /key does not exist.',
  ]);
});

test('a runtime that is away, and disks without room', () => {
  const { lines, reconciler } = world({
    observer: { away: new Map([['docker', 'Cannot reach the Engine']]) },
    stateDisk: 'The disk that holds /var/lib/onejob has 3 MiB left.',
  });
  reconciler.pause.hold('disk:docker', '/var/lib/docker is 3 % free, below disk.min_free of 10 %');
  expect(lines()).toEqual([
    'runtime docker 0 10m: Cannot reach the Engine.',
    'disk:docker 0 10m: No job starts: /var/lib/docker is 3 % free, below disk.min_free of 10 %.',
    'state disk 0 10m: The disk that holds /var/lib/onejob has 3 MiB left.',
  ]);
});

test('cards: one that is broken at once, one that may be well again later, none that a person or a stop put away', async () => {
  using host = new DeviceHost({ pools: [devicePool('lab', { agents: 3 })] });
  const { registry, devices } = host;
  const cards = [gpu(0), gpu(1), gpu(2), gpu(3)];
  host.sees(cards);
  const mark = { seq: null, at: null };
  host.quarantine.put('GPU-0000', dirty as never, mark);
  host.quarantine.put('GPU-0001', { ...dirty, remedy: 'look', message: 'GPU-0001 is still in use' } as never, mark);
  host.quarantine.putByHand(host.registry.find('GPU-0002'), 'the fan is loud');
  host.quarantine.putOff('GPU-0003');
  const { seen } = world({ deviceManager: { registry, views: devices.views, watch: devices.watch as never } });
  expect(seen().causes.map(({ message, patience }) => [message, patience])).toEqual([
    [expect.stringMatching(/^Device GPU-0000 \(.+\) is in quarantine: 2 errors\.$/), 0],
    [expect.stringMatching(/^Device GPU-0001 \(.+\) is in quarantine: is still in use\.$/), 600_000],
  ]);
  expect(seen().blind.size).toBe(0);
  host.sees([gpu(1)], false);
  expect(seen().blind).toEqual(new Set(['device']));
  host.verdict = () => clean;
});

test('a card that is gone, and a fault of all', () => {
  using host = new DeviceHost();
  host.sees([gpu(0), gpu(1)]);
  host.runs('lab/1', 'a1');
  host.sees([gpu(1)]);
  host.fault = 'The driver does not answer.';
  const { lines } = world({
    deviceManager: { registry: host.registry, views: host.devices.views, watch: host.devices.watch as never },
  });
  expect(lines()).toEqual([
    'gpus 0 10m: The driver does not answer.',
    expect.stringMatching(
      /^missing GPU-0000 0 10m: Device GPU-0000 \(.+\) is missing, and slot lab\/1 waits for it: absent since .+\.$/,
    ),
  ]);
});

test('jobs of a pool that is gone are told about once they have waited, what one sees in status is not', () => {
  const about = { service: null, text: '1 job waits in pool old.', hint: 'Move it.' };
  const conditions = [
    { kind: 'stranded jobs', pool: 'old', ...about, patience: 600_000 },
    { kind: 'no agents', pool: 'lab', ...about, patience: null },
  ] as const;
  expect(world({ conditions }).lines()).toEqual(['stranded jobs pool old 0 10m: 1 job waits in pool old.']);
});
