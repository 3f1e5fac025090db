/** What the API reports as it changes, in virtual time. */
import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { createChanges } from '../contract/changes.ts';
import type { DeviceView, JobView } from '../contract/schema.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import { EventSource, type EventsParts } from './events.ts';
import { ImageRollout } from './loop/image-rollout.ts';
import { Pause } from './loop/pause.ts';

function scene() {
  const clock = handClock();
  const due: (() => void)[] = [];
  const changes = createChanges({ later: (work) => void due.push(work) });
  const pool = {
    config: { name: 'lab', service: 'own', recipe: {} },
    runtime: { name: 'docker', capabilities: {} },
    service: { capabilities: {} },
    pause: new Pause(),
    draining: false,
    leaving: false,
    backoff: null as object | null,
    rollout: new ImageRollout({
      name: 'lab',
      service: { capabilities: {} as never },
      standby: true,
      isPerSlot: false,
      able: () => true,
    }),
    devices: { heldBack: () => held },
  };
  const slots: Slot[] = [emptySlot({ key: 'lab/1', runtime: 'docker', grace: 0 })];
  let held: string | null = null;
  const world = {
    clock,
    pool,
    slots,
    problems: [] as string[],
    devices: [] as DeviceView[],
    jobs: [] as JobView[],
    config: null as string | null,
    hold: (why: string | null) => {
      held = why;
    },
  };
  const reconciler = {
    pools: [pool],
    slots,
    pause: new Pause(),
    poolOf: () => pool,
    slot: (key: string) => slots.find((slot) => slot.key === key),
    placeOf: (agent: string) => (agent === 'a1' ? 'lab/1' : undefined),
  };
  const waiting = new Set<string>();
  const status = {
    clock,
    reconciler,
    nameOf: (key: string) => key,
    noteOf: () => null,
    about: () => null,
    deviceManager: { registry: { partition: { waiting } }, views: { ofPool: () => null } },
    held: { count: () => 0 },
    conditions: () => [],
    notesOf: () => [],
  };
  const failures: string[] = [];
  const events = new EventSource({
    clock,
    changes,
    reconciler,
    status,
    devices: () => world.devices,
    serviceJobs: () => world.jobs,
    job: (id: string) => (id === 'own' ? ({ id, ahead: 3 } as JobView) : null),
    host: () => ({ problems: world.problems, stopping: false }),
    configChanged: async () => world.config,
    failed: (error: Error) => void failures.push(error.message),
  } as unknown as EventsParts);
  let cursor = 0;
  /** What has come since the last call. */
  const news = () => {
    for (const work of due.splice(0)) work();
    return [...(events.after(cursor) ?? [])].map(([at, subject]) => {
      cursor = at;
      return events.view(subject);
    });
  };
  return { ...world, world, waiting, failures, changes, events, news };
}

test('nothing is compared and no timer runs while nobody listens', () => {
  const { clock, events } = scene();
  expect(clock.next()).toBeNull();
  const stops = [events.listen(() => {}), events.listen(() => {})];
  expect(clock.next()).toBe(1_000);
  for (const stop of stops) stop();
  expect(clock.next()).toBeNull();
});

test('a pause, a device, a problem of the host and a job of a CI service are seen within a second', () => {
  const { world, events, news, pool, clock } = scene();
  events.listen(() => {});
  pool.pause.hold('person:eve', 'by eve');
  world.devices = [{ uuid: 'GPU-1', state: 'free' } as DeviceView];
  world.problems = ['the disk is full'];
  world.jobs = [{ id: 'p1', state: 'running', agent: 'a1' } as JobView];
  expect(news()).toEqual([]);
  clock.advance(1_000);
  expect(news()).toEqual([
    ['pool', expect.objectContaining({ name: 'lab', paused: ['by eve'] })],
    ['device', { uuid: 'GPU-1', state: 'free' }],
    ['job', { id: 'p1', state: 'running', agent: 'a1' }],
    // It shows its job's title.
    ['slot', expect.objectContaining({ key: 'lab/1' })],
    ['host', { problems: ['the disk is full'], configChanged: null, stopping: false }],
  ]);
  clock.advance(10_000);
  expect(news()).toEqual([]);
});

test('a request shows its effect at once', () => {
  const { events, news, pool } = scene();
  events.listen(() => {});
  pool.draining = true;
  events.look();
  expect(news()).toEqual([['pool', expect.objectContaining({ draining: true })]]);
});

test('what changed while nobody listened is told to those who come back', () => {
  const { world, events, news, slots, changes } = scene();
  events.listen(() => {})();
  world.devices = [{ uuid: 'GPU-1' } as DeviceView];
  world.hold('GPU-1 is in quarantine');
  slots.pop();
  changes.mark('job own');
  changes.mark('job forgotten');
  events.listen(() => {});
  expect(news()).toEqual([
    ['job', { id: 'own' }],
    ['gone', { what: 'job', name: 'forgotten' }],
    // It has no slots left.
    ['pool', expect.objectContaining({ name: 'lab', agents: 0 })],
    ['device', { uuid: 'GPU-1' }],
    ['slot', { pool: 'lab', key: 'lab/1', slot: null }],
  ]);
});

test('the time left of a back-off alone is not told; what has gone is', async () => {
  const { world, events, news, pool, clock } = scene();
  world.devices = [{ uuid: 'GPU-1' } as DeviceView];
  pool.backoff = { failures: 1, until: 60_000, last: { code: 'E_BUG', message: 'no' } };
  world.config = 'the file was changed';
  events.listen(() => {});
  await Promise.resolve();
  world.devices = [];
  clock.advance(1_000);
  expect(news()).toEqual([
    ['host', expect.objectContaining({ configChanged: 'the file was changed' })],
    ['gone', { what: 'device', name: 'GPU-1' }],
  ]);
});

test('a slot is told as held once a job waits for its devices', () => {
  const { world, waiting, events, news, clock } = scene();
  world.hold('GPU-1 is in quarantine');
  events.listen(() => {});
  waiting.add('lab');
  clock.advance(1_000);
  expect(news().map(([, data]) => data)).toContainEqual(
    expect.objectContaining({ key: 'lab/1', slot: expect.objectContaining({ held: 'GPU-1 is in quarantine' }) }),
  );
});

test('what was answered is what the next look is compared with', () => {
  const { world, events, news, clock } = scene();
  events.listen(() => {});
  world.devices = [{ uuid: 'GPU-1' } as DeviceView];
  // Somebody asks now, and shows the device and the changed config.
  events.look('the file was changed');
  news();
  world.devices = [];
  clock.advance(1_000);
  expect(news()).toEqual([['gone', { what: 'device', name: 'GPU-1' }]]);
  expect(events.view('host ')).toEqual(['host', expect.objectContaining({ configChanged: 'the file was changed' })]);
});

test('a look that fails is told once, and the next one comes all the same', () => {
  const { world, failures, events, news, clock } = scene();
  events.listen(() => {});
  const jobs = Object.getOwnPropertyDescriptor(world, 'jobs') ?? {};
  Object.defineProperty(world, 'jobs', {
    configurable: true,
    get() {
      throw new Error('a bad row');
    },
  });
  clock.advance(2_000);
  events.look();
  expect(failures).toEqual(['a bad row']);
  Object.defineProperty(world, 'jobs', jobs);
  world.problems = ['the disk is full'];
  clock.advance(1_000);
  expect(news()).toEqual([['host', expect.objectContaining({ problems: ['the disk is full'] })]]);
});
