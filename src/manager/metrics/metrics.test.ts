import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { MetricsWorld, standing } from '../../../test/support/metrics-world.ts';
import { serviceJob } from '../../../test/support/service-job.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import { person } from '../loop/pause.ts';
import { definitions } from './definitions.ts';

let world: MetricsWorld;
beforeEach(() => {
  world = new MetricsWorld();
});
afterEach(() => world[Symbol.dispose]());

function open(options: ConstructorParameters<typeof MetricsWorld>[0]): void {
  world[Symbol.dispose]();
  world = new MetricsWorld(options);
}

/** Value of a series, written as Prometheus shows it; undefined if there is no such series. */
async function value(series: string): Promise<number | undefined> {
  const line = (await world.text()).split('\n').find((one) => one.startsWith(`${series} `));
  return line === undefined ? undefined : Number(line.slice(series.length + 1));
}

/** All series of a metric. */
const seriesOf = async (name: string) => (await world.text()).split('\n').filter((line) => line.startsWith(`${name}{`));

test('every metric that is declared is served, and no other', async () => {
  await world.fill();
  const text = await world.text();
  const served = [...text.matchAll(/^# TYPE (\S+) (\S+)$/gm)].map(([, name, type]) => [name, type]);
  expect(served.sort()).toEqual(
    Object.entries(definitions)
      .map(([name, { type }]) => [name, type])
      .sort(),
  );
  for (const name of Object.keys(definitions)) expect(text).toMatch(new RegExp(`^${name}(?:_count)?(?:\\{| )`, 'm'));
});

describe('agents', () => {
  test('by state and pool, also states in which there is no agent', async () => {
    const [one, two] = world.host.slots;
    world.host.slots = [
      { ...(one as Slot), leaving: [{ agent: 'old', job: null, exit: null }] },
      { ...(two as Slot), standby: standing, agent: { kind: 'proving', agent: 'a', since: 0 } },
    ];
    expect(await value('onejob_slots{pool="lab"}')).toBe(2);
    const of = (state: string) => value(`onejob_agents{pool="lab",state="${state}"}`);
    const counts = { busy: 1, proving: 1, standby: 1, leaving: 1, preparing: 0, idle: 0 };
    for (const [state, count] of Object.entries(counts)) expect(await of(state), state).toBe(count);
  });

  test('a pool that is paused, and one that backs off', async () => {
    expect(await value('onejob_pool_paused{pool="lab"}')).toBe(0);
    expect(await value('onejob_pool_backing_off{pool="lab"}')).toBe(0);
    world.pools[0]?.failed({ code: 'E', message: 'no image', retry: true }, 'prepare', world.host.now, 0);
    world.pools[0]?.pause.hold(`${person}maintenance`);
    expect(await value('onejob_pool_paused{pool="lab"}')).toBe(1);
    expect(await value('onejob_pool_backing_off{pool="lab"}')).toBe(1);
  });

  test('a pool that onejob itself holds, by what it waits for: nobody has paused that', async () => {
    expect(await seriesOf('onejob_pool_held')).toEqual([]);
    world.pause.hold('disk:docker', '/ is 3 % free');
    world.pools[0]?.pause.hold('devices');
    expect(await value('onejob_pool_paused{pool="lab"}')).toBe(0);
    expect(await value('onejob_pool_held{pool="lab",reason="disk"}')).toBe(1);
    expect(await value('onejob_pool_held{pool="lab",reason="devices"}')).toBe(1);
    world.pause.release('disk:docker');
    expect(await value('onejob_pool_held{pool="lab",reason="disk"}')).toBeUndefined();
  });
});

describe('the gap between two agents of a slot', () => {
  const slot: Slot = { ...emptySlot({ key: 'lab/1', runtime: 'sim', grace: 0 }), standby: standing };
  const busy: Slot = { ...slot, agent: { kind: 'busy', agent: 'a1', job: 'j', since: 0, due: null } };
  const leaving = [{ agent: 'a1', job: null, exit: null }];
  const gaps = async () => [
    await value('onejob_slot_gap_seconds_count{pool="lab"}'),
    await value('onejob_slot_gap_seconds_sum{pool="lab"}'),
  ];

  /** The slot becomes one after the other, a second apart. */
  async function becomes(...states: readonly Slot[]): Promise<void> {
    for (const [n, after] of states.slice(1).entries()) {
      world.metrics.slotChanged(states[n] as Slot, after);
      await world.host.advance(1_000);
    }
  }

  test('none if the next one takes over in the same step', async () => {
    await becomes(busy, { ...slot, standby: { kind: 'none' }, agent: { ...busy.agent, agent: 'a2' } as Slot['agent'], leaving });
    expect(await gaps()).toEqual([1, 0]);
  });

  test('until the devices are proved and a standby stands', async () => {
    const proving: Slot = { ...slot, standby: { kind: 'none' }, agent: { kind: 'proving', agent: 'a1', since: 0 }, leaving };
    const preparing: Slot['standby'] = { kind: 'preparing', agent: 'a2', reserved: null, since: 0 };
    await becomes(busy, proving, { ...proving, standby: standing }, { ...slot, standby: preparing }, slot);
    expect(await gaps()).toEqual([1, 3]);
  });

  test('not while nothing is to stand there', async () => {
    const empty: Slot = { ...slot, standby: { kind: 'none' } };
    await becomes(busy, { ...empty, leaving }, empty, slot);
    expect(await gaps()).toEqual([undefined, undefined]);
  });

  test('not for an agent that never began', async () => {
    const releasing: Slot = {
      ...slot,
      agent: { kind: 'releasing', agent: 'a1', job: 'j', limit: null, fingerprint: '', since: 0 },
    };
    await becomes(releasing, slot);
    expect(await gaps()).toEqual([undefined, undefined]);
  });
});

describe('jobs', () => {
  test('every verdict of every pool has a series before the first job ends', async () => {
    const found = await seriesOf('onejob_jobs_total');
    expect(found.map((line) => /verdict="(\w+)"\} 0$/.exec(line)?.[1])).toEqual([
      'passed',
      'cancelled',
      'code',
      'infrastructure',
      'configuration',
      'unknown',
    ]);
  });

  test('each is counted once, with its verdict, wait and time', async () => {
    world.ended('j1', 'passed');
    const passed = 'onejob_jobs_total{pool="lab",service="own",verdict="passed"}';
    expect(await value(passed)).toBe(1);
    world.ended('j1', 'passed');
    world.ended('j2', 'infrastructure');
    expect(await value(passed)).toBe(1);
    expect(await value('onejob_jobs_total{pool="lab",service="own",verdict="infrastructure"}')).toBe(1);
    expect(await value('onejob_job_wait_seconds_sum{pool="lab"}')).toBe(120);
    expect(await value('onejob_job_run_seconds_bucket{le="300",pool="lab"}')).toBe(2);
    expect(await value('onejob_job_run_seconds_bucket{le="60",pool="lab"}')).toBe(0);
  });

  test('one with devices is counted with the verdict that its proof leaves, or after two minutes', async () => {
    const counted = (verdict: string) => value(`onejob_jobs_total{pool="lab",service="own",verdict="${verdict}"}`);
    const [device = ''] = world.cards;
    world.ended('j1', 'code', 'lab', [device]);
    world.ended('j2', 'code', 'lab', [device]);
    world.ended('j3', 'passed');
    expect([await counted('code'), await counted('passed')]).toEqual([0, 1]);
    world.proved('dirty', 1_000, 'agent-j1');
    world.ended('j1', 'infrastructure', 'lab', [device]);
    expect([await counted('code'), await counted('infrastructure')]).toEqual([0, 1]);
    await world.host.advance(121_000);
    expect([await counted('code'), await counted('infrastructure'), await counted('passed')]).toEqual([1, 1, 1]);
    expect(await value('onejob_job_wait_seconds_sum{pool="lab"}')).toBe(180);
  });

  test('those that ended before the first scrape count, those of an earlier manager do not', async () => {
    world.ended('j1', 'passed');
    const { host } = world;
    const { createMetrics } = await import('./metrics.ts');
    const state = {
      reconciler: { pools: world.pools, slots: [], pause: world.pause },
      devices: null,
      services: [],
      waitingSince: () => new Map(),
      stranded: () => ({ pools: new Set<string>(), waiting: new Map<string, number>() }),
    };
    const parts = { clock: host.clock, store: host.store, version: '', serviceNames: [], problems: () => [], state: () => state };
    const later = createMetrics(parts);
    world.ended('j2', 'passed');
    expect(await later.read()).toContain('onejob_jobs_total{pool="lab",service="own",verdict="passed"} 1\n');
    later.close();
  });

  test('how many wait, and for how long the oldest one has', async () => {
    expect(await value('onejob_jobs_waiting{pool="lab"}')).toBe(3);
    expect(await value('onejob_oldest_waiting_job_seconds{pool="lab"}')).toBe(0);
    world.waitingSince.set('lab', world.host.wall - 90_000);
    expect(await value('onejob_oldest_waiting_job_seconds{pool="lab"}')).toBe(90);
    world.serviceJobs = [
      serviceJob('s', { pool: 'lab', state: 'waiting', queuedAt: world.host.wall - 100_000 }),
      serviceJob('s', { pool: 'lab', state: 'running', queuedAt: world.host.wall - 900_000 }),
    ];
    expect(await value('onejob_oldest_waiting_job_seconds{pool="lab"}')).toBe(100);
    // A clock that was set back makes no negative times.
    world.waitingSince.clear();
    world.serviceJobs = [serviceJob('s', { pool: 'lab', state: 'waiting', queuedAt: world.host.wall + 5_000 })];
    expect(await value('onejob_oldest_waiting_job_seconds{pool="lab"}')).toBe(0);
  });
});

describe('a pool that the config no longer has', () => {
  test('its jobs are counted, and how long they have waited, so that the alert can fire', async () => {
    world.stranded.set('old', 2);
    world.waitingSince.set('old', world.host.wall - 7_200_000);
    expect(await value('onejob_jobs_waiting{pool="old"}')).toBe(2);
    expect(await value('onejob_oldest_waiting_job_seconds{pool="old"}')).toBe(7200);
    expect(await value('onejob_pool_paused{pool="old"}')).toBe(0);
    world.stranded.clear();
    expect(await value('onejob_jobs_waiting{pool="old"}')).toBeUndefined();
  });

  test('its slots keep its name until they are empty', async () => {
    world.leaves('lab');
    expect(await value('onejob_slots{pool="lab"}')).toBe(2);
    expect((await seriesOf('onejob_')).filter((line) => line.includes('(leaving)'))).toEqual([]);
  });
});

describe('devices', () => {
  const [device] = ['GPU-5eed0000-0000-4000-8000-000000000000'];

  test('what they are, how they are used, and who has them', async () => {
    await world.fill();
    expect(await value(`onejob_device_info{device="${device}",kind="gpu",model="NVIDIA A100-SXM4-40GB",pci="0000:00:00.0"}`)).toBe(
      1,
    );
    expect(await value('onejob_devices{state="leased"}')).toBe(2);
    expect(await value(`onejob_device_memory_bytes{device="${device}"}`)).toBe(40_960 * 2 ** 20);
    expect(await value(`onejob_device_memory_used_bytes{device="${device}",pool="lab"}`)).toBe(512 * 2 ** 20);
    expect(await value(`onejob_device_utilization_ratio{device="${device}",pool="lab"}`)).toBe(0.8);
    expect(await value(`onejob_device_temperature_celsius{device="${device}",pool="lab"}`)).toBe(44);
    expect(await value(`onejob_device_power_watts{device="${device}",pool="lab"}`)).toBe(120.5);
  });

  test('a value that is not known has no series', async () => {
    world.host.sees(world.cards.map((uuid) => ({ ...world.host.registry.device(uuid), memoryMiB: null }) as never));
    expect(await seriesOf('onejob_device_memory_bytes')).toEqual([]);
    expect(await seriesOf('onejob_device_utilization_ratio')).toEqual([]);
  });

  test('one in quarantine', async () => {
    world.host.quarantine.putByHand(world.host.registry.find('0'), 'fan');
    expect(await value('onejob_devices{state="quarantined"}')).toBe(1);
    expect(await value(`onejob_device_quarantined{device="${device}"}`)).toBe(1);
    expect(await value(`onejob_device_quarantined{device="${world.cards[1]}"}`)).toBe(0);
  });

  test('a running job has its devices and what it has used, and no series once it is over', async () => {
    await world.fill();
    expect(await value(`onejob_job_device{pool="lab",job_id="job-lab/1",device="${device}"}`)).toBe(1);
    expect(await value('onejob_job_memory_peak_bytes{pool="lab",job_id="job-lab/1"}')).toBe(512 * 2 ** 20);
    expect(await value('onejob_job_utilization_ratio{pool="lab",job_id="job-lab/1"}')).toBe(0.8);
    world.host.slots = world.host.slots.filter(({ key }) => key !== 'lab/1');
    expect(await world.text()).not.toContain('job-lab/1');
  });

  test('a scrape is somebody who asks how they are used', async () => {
    world.host.usePrinted = `${device}, 7, 8, 9, 10, 11, 12, 0x0\n`;
    world.host.slots = [];
    await world.text();
    await world.host.advance(1_000);
    expect(world.host.use.of(device ?? '')?.utilization).toBe(8);
  });

  test('proofs also after all earlier ones were deleted', async () => {
    world.proved('clean', 500);
    expect(await value('onejob_proof_seconds_count{verdict="clean"}')).toBe(1);
    world.proved('clean', 500);
    expect(await value('onejob_proof_seconds_count{verdict="clean"}')).toBe(2);
    const { store, wall } = world.host;
    store.transaction({ durable: false }, () => store.proofs.prune(wall + 1));
    world.proved('clean', 500);
    expect(await value('onejob_proof_seconds_count{verdict="clean"}')).toBe(3);
  });

  test('proofs by verdict, and how long they took', async () => {
    world.proved('clean', 1_500);
    world.proved('clean', 500);
    world.proved('dirty', 60_000);
    expect(await value('onejob_proof_seconds_count{verdict="clean"}')).toBe(2);
    expect(await value('onejob_proof_seconds_sum{verdict="clean"}')).toBe(2);
    expect(await value('onejob_proof_seconds_count{verdict="dirty"}')).toBe(1);
  });
});

test('calls of CI services by their answers, from the start', async () => {
  world.metrics.called('ci', 'denied');
  expect(await value('onejob_ci_calls_total{service="ci",result="denied"}')).toBe(1);
  world.metrics.called('ci', 'denied');
  world.metrics.called('ci', 'ok');
  expect(await value('onejob_ci_calls_total{service="ci",result="denied"}')).toBe(2);
  expect(await value('onejob_ci_calls_total{service="ci",result="unreachable"}')).toBe(0);
});

test('the daemon itself', async () => {
  world.problems = ['the disk is full'];
  expect(await value(`onejob_build_info{version="1.2.3",node="${process.versions.node}"}`)).toBe(1);
  expect(await value('onejob_problems')).toBe(1);
  expect(await value('onejob_store_bytes')).toBeGreaterThan(4_096);
  expect(await value('onejob_state_disk_free_bytes')).toBeLessThanOrEqual((await value('onejob_state_disk_bytes')) ?? 0);
  for (const name of ['onejob_event_loop_lag_p99_seconds', 'onejob_event_loop_lag_max_seconds'])
    expect(await value(name)).toBeGreaterThanOrEqual(0);
  expect(await value('process_resident_memory_bytes')).toBeGreaterThan(1e7);
  expect(await value('process_cpu_seconds_total')).toBeGreaterThan(0);
});

test('two scrapes at the same time get the same', async () => {
  await world.fill();
  const [one, other] = await Promise.all([world.text(), world.text()]);
  expect(one).toBe(other);
});

describe('names that somebody else chose', () => {
  const hostile = [
    'x"} 1\nonejob_slots{pool="y"} 666',
    'back\\slash',
    'tab\tand\u0000null\u001b[31m',
    '__proto__',
    'constructor',
    '{},=~"',
    '\ud800 alone',
    'x'.repeat(10_000),
    '# TYPE onejob_slots counter',
    'ünï 🙂',
  ];

  test('can break neither the format nor another series', async () => {
    open({ pools: hostile, jobOf: () => hostile[0] ?? '' });
    await world.fill();
    const text = await world.text();
    // The grammar of a line: name, labels with escaped values, value. https://prometheus.io/docs/instrumenting/exposition_formats/
    const sample = /^[a-z_][a-z0-9_]*(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*\})? (?:[0-9.e+-]+|\+Inf|NaN)$/;
    const wrong = text.split('\n').filter((line) => line !== '' && !/^# (?:HELP|TYPE) /.test(line) && !sample.test(line));
    expect(wrong).toEqual([]);
    expect(await seriesOf('onejob_slots')).toHaveLength(hostile.length);
    expect(text).not.toMatch(/666$/m);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what must not be there
    expect(text).not.toMatch(/[\u0000-\u0009\u000b-\u001f\u007f]/);
    expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThan(1_000);
  });
});
