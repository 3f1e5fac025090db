/** A release that a previous manager had begun, with real followers and a manual clock. */
import { expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { recipe as plainRecipe } from '../../../test/kit/docker-runtime.ts';
import { poolLike } from '../../../test/kit/pool.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { engineAway, OnejobError } from '../../base/errors.ts';
import { decide } from '../../core/decide.ts';
import { emptySlot, type Slot, type SlotEvent } from '../../core/slot.ts';
import { LogFollowers } from '../../logs/followers.ts';
import { createLogFolder, type LogFile, type LogFolder } from '../../logs/log-file.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Made, Runtime, SandboxSpec } from '../../ports/runtime.ts';
import { readyMarker, releasedMarker } from '../../runtimes/gate.ts';
import { type ActParts, SlotActions } from './actions.ts';

/** Whose log cannot be read: the gate may have said anything. */
function workbench() {
  const clock = handClock(undefined, 1);
  const settled = () => new Promise<void>((resolve) => setImmediate(resolve));
  const advance = async (ms: number): Promise<void> => {
    for (const end = clock.now() + ms; clock.now() < end; await settled()) clock.advance(1_000);
  };
  const logs = () => {
    throw new Error('the Engine is away');
  };
  const runtime = { name: 'docker', logs, capabilities: { workspace: () => '/w' } } as unknown as Runtime;
  const file = { hasOutput: false, last: null, close: () => {} } as unknown as LogFile;
  const followers = new LogFollowers({
    logs: { open: () => file } as unknown as LogFolder,
    clock,
    state: () => {},
    failed: () => {},
  });
  const slot = { key: 'p/1', runtime: 'docker', devices: [], agent: { kind: 'releasing', since: 0, fingerprint: 'f' } };
  const pool = { config: { name: 'p' }, serviceOf: () => ({}) };
  const it = { isAway: true, posted: null as readonly SlotEvent[] | null };
  const parts = {
    clock,
    followers,
    observer: { unreachable: () => (it.isAway ? 'away' : null) },
    slots: { place: () => ({ slot, pool, name: 'n', runtime }), note: () => {} },
    deviceManager: null,
    registrations: { drop: async () => {} },
  } as unknown as ActParts;
  const stop = new AbortController();
  const released = new SlotActions(parts).release({ act: 'release', agent: 'a', job: 'j' }, 'p/1', stop.signal);
  const done = released.then((events) => {
    it.posted = events;
  });
  return { it, advance, done };
}

test('a begun release is not given up while its runtime is away, nor as soon as it is back', async () => {
  const { it, advance, done } = workbench();
  await advance(600_000);
  expect(it.posted).toBeNull();
  it.isAway = false;
  await advance(50_000);
  expect(it.posted).toBeNull();
  await advance(20_000);
  await done;
  expect(it.posted).toMatchObject([{ kind: 'releaseFailed', failure: { code: 'E_GATE_SILENT' } }]);
});

/** A release on a disk whose syncs end when told to. `done`: what was done, in order. */
function releasing(sync: () => Promise<void>) {
  const done: string[] = [];
  const clock = handClock(undefined, 1);
  const runtime = {
    name: 'docker',
    capabilities: { workspace: () => '/w' },
    release: async () => void done.push('script'),
    remove: async () => void done.push('removed'),
  } as unknown as Runtime;
  const service = {
    name: 'own',
    capabilities: { binds: 'late' },
    register: async () => ({ script: 'true', files: null }),
    deregister: async () => ({ ran: null }),
  } as unknown as CiService;
  const agent = { kind: 'releasing', agent: 'a', job: 'j', since: 5, fingerprint: 'f' };
  const slot = { key: 'p/1', runtime: 'docker', devices: [], agent, leaving: [] };
  const pool = { config: { name: 'p' }, service, serviceOf: () => service };
  const parts = {
    clock,
    slots: { place: () => ({ slot, pool, name: 'n', runtime }), note: () => {} },
    deviceManager: null,
    followers: { follow: () => ({ state: 'ready' }), until: async () => true, hasBegun: () => true, drop: async () => {} },
    registrations: { drop: async () => {} },
    observer: { unreachable: () => null },
    held: { keep: async () => false },
    synced: () => {
      done.push('sync');
      return sync();
    },
  } as unknown as ActParts;
  const executors = new SlotActions(parts);
  const { signal } = new AbortController();
  return {
    done,
    release: () => executors.release({ act: 'release', agent: 'a', job: 'j' }, 'p/1', signal),
    clear: () => executors.clear({ act: 'clear', agent: 'a' }, 'p/1', signal),
    settled: () => new Promise<void>((resolve) => setImmediate(resolve)),
  };
}

test('a script goes to its gate only once its release is on disk', async () => {
  const disk = Promise.withResolvers<void>();
  const { done, release, settled } = releasing(() => disk.promise);
  const events = release();
  await settled();
  expect(done).toEqual(['sync']);
  disk.resolve();
  expect([await events, done]).toEqual([[{ kind: 'released', agent: 'a' }], ['sync', 'script']]);
});

/** A gate is the `sh` of an image, which a job may name: what it prints is nothing to rely on. */
test.each([
  ['both lines at once', `${readyMarker('a')}\n${releasedMarker('a')}\n`, 5],
  ['more than any gate prints', 'x'.repeat(17 << 20), 5],
  ['both lines at once, and the daemon was killed', `${readyMarker('a')}\n${releasedMarker('a')}\n`, -1],
])('a job has its time limit although its gate printed %s before it had a script', async (_, output, since) => {
  using dir = scratch();
  const clock = handClock(undefined, 1);
  async function* logs(__: string, ___: unknown, signal: AbortSignal) {
    yield [{ stream: 'stdout', time: 1n, bytes: Buffer.from(output) }];
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
  }
  const runtime = { name: 'docker', logs, release: async () => {}, capabilities: { workspace: () => '/w' } } as unknown as Runtime;
  const service = {
    capabilities: { binds: 'late' },
    register: async () => ({ script: 'true', files: null }),
  } as unknown as CiService;
  const empty = emptySlot({ key: 'p/1', runtime: 'docker', service: 'own', grace: 5 });
  const slot: Slot = { ...empty, agent: { kind: 'releasing', agent: 'a', job: 'j', limit: 7_000, fingerprint: 'f', since } };
  const pool = { config: { name: 'p' }, service, serviceOf: () => service };
  // What the follower reports while the sandbox is prepared changes nothing.
  const followers = new LogFollowers({ logs: createLogFolder(dir.path), clock, state: () => {}, failed: () => {} });
  const seen = followers.follow('a', runtime);
  await expect.poll(() => seen.state).toBe('released');
  const parts = {
    clock,
    followers,
    slots: { place: () => ({ slot, pool, name: 'n', runtime }), note: () => {} },
    deviceManager: null,
    registrations: { drop: async () => {} },
    observer: { unreachable: () => null },
    synced: async () => {},
  } as unknown as ActParts;
  const events = await new SlotActions(parts).release(
    { act: 'release', agent: 'a', job: 'j' },
    'p/1',
    new AbortController().signal,
  );
  const after = events.reduce((before, event) => decide(before, event, 100).slot, slot);
  expect(after.agent).toMatchObject({ kind: 'busy', job: 'j', due: 7_100 });
  // The follower reports it as well.
  expect(decide(after, { kind: 'released', agent: 'a' }, 200).slot).toBe(after);
  await followers.close();
});

test('no script goes while the disk refuses to sync, and the pool is told why', async () => {
  const { done, release } = releasing(async () => {
    throw new OnejobError('E_STATE_FULL', 'Cannot sync it: input/output error.', { retry: true });
  });
  const failure = { code: 'E_STATE_FULL', message: 'Cannot sync it: input/output error.' };
  expect(await release()).toMatchObject([{ kind: 'releaseFailed', agent: 'a', failure, countsAgainst: 'pool' }]);
  expect(done).toEqual(['sync']);
});

test('the sandbox of a job is removed only once its end is on disk', async () => {
  const disk = Promise.withResolvers<void>();
  const { done, clear, settled } = releasing(() => disk.promise);
  const events = clear();
  await settled();
  expect(done).toEqual(['sync']);
  disk.resolve();
  expect([await events, done]).toMatchObject([[{ kind: 'cleared' }], ['sync', 'removed']]);
});

/** What comes of preparing a sandbox for this job, over these. */
async function preparing(
  job: string | null,
  { runtime, service }: { runtime: object; service: object },
  fingerprints: object,
  more: object = {},
) {
  const pool = poolLike({ recipe: plainRecipe, imageRecipe: null, caches: [] }, { service, runtime });
  const slot = emptySlot({ key: 'p/1', runtime: pool.runtime.name, grace: 0 });
  const parts = {
    clock: handClock(),
    slots: { place: () => ({ slot, pool, name: 'n', runtime }), note: () => {} },
    deviceManager: null,
    caches: { ensure: async () => {} },
    fingerprints: { withEngine: async (recipe: object) => recipe, ...fingerprints },
    ...more,
  } as unknown as ActParts;
  return new SlotActions(parts).prepare({ act: 'prepare', agent: 'a', job }, 'p/1', new AbortController().signal);
}

test('the image of a sandbox is learned even if the sandbox cannot be made', async () => {
  const runtime = {
    name: 'docker',
    capabilities: { images: true },
    async prepare(_spec: SandboxSpec, _progress: unknown, _signal: AbortSignal, chosen?: (made: Made) => void) {
      chosen?.({ fingerprint: 'f', imageId: 'sha256:two' });
      throw new OnejobError('E_USER_UNKNOWN', 'The image has no such user.');
    },
  };
  const learned: (string | undefined)[] = [];
  const made = (_key: string, _about: unknown, { imageId }: Made) => void learned.push(imageId);
  const events = await preparing(null, { runtime, service: { name: 'own', capabilities: { binds: 'late' } } }, { made });
  expect([learned, events]).toMatchObject([['sha256:two'], [{ kind: 'prepareFailed', failure: { code: 'E_USER_UNKNOWN' } }]]);
});

test.each([
  [true, 'E_JOB_REQUEST'],
  [false, 'E_GATE_ENDED'],
])('a job of the pool’s image is refused by a runtime without images if it names it (%s): %s', async (names, code) => {
  const runtime = {
    name: 'process',
    capabilities: { images: false },
    async prepare() {
      throw new OnejobError('E_GATE_ENDED', 'It was asked for a sandbox.');
    },
  };
  const jobs = { namesImage: () => names, recipeFor: () => null };
  const service = { name: 'own', capabilities: { binds: 'late' }, jobs };
  const events = await preparing('j', { runtime, service }, { imageOf: async () => null });
  expect(events).toMatchObject([{ kind: 'prepareFailed', failure: { code } }]);
});

test.each([...engineAway])('an Engine that is away counts against neither the pool nor the job: %s', async (code) => {
  const away: string[] = [];
  const runtime = {
    name: 'docker',
    capabilities: { images: true },
    async prepare() {
      throw new OnejobError(code, 'It is away.');
    },
  };
  const service = { name: 'own', capabilities: { binds: 'late' } };
  const observer = { cannotReach: (_: unknown, why: string) => void away.push(why) };
  const events = await preparing(null, { runtime, service }, {}, { observer });
  expect([away, events]).toMatchObject([['It is away.'], [{ kind: 'exited', exit: { kind: 'lost' }, released: false }]]);
});

/** An agent of a service that binds early and takes the first TERM as a wish; `retire` is what the service does about it. */
function retiring(retire: () => Promise<string | null>, startedAt: number) {
  const sent: string[] = [];
  const clock = handClock(undefined, startedAt);
  const runtime = { name: 'docker', signal: async (_: string, name: string) => void sent.push(name) } as unknown as Runtime;
  const slot = { key: 'p/1', runtime: 'docker', agent: { kind: 'retiring', agent: 'a', since: 5 } };
  const service = { capabilities: { binds: 'early', terms: 2 }, retire };
  const pool = { config: { name: 'p' }, serviceOf: () => service, limitOf: () => null };
  const parts = {
    clock,
    slots: { place: () => ({ slot, pool, name: 'n', runtime }), note: () => {} },
    registrations: {},
  } as unknown as ActParts;
  const executors = new SlotActions(parts);
  const signal = new AbortController().signal;
  const terminate = async () => {
    Object.assign(slot, { agent: { kind: 'ending', signal: 'TERM', agent: 'a', job: 'j', why: 'cancelled' } });
    const done = executors.terminate({ act: 'terminate', agent: 'a' }, 'p/1', signal);
    for (let n = 0; n < 10; n += 1) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      clock.advance(250);
    }
    await done;
  };
  return { sent, terminate, retire: () => executors.retire({ act: 'retire', agent: 'a' }, 'p/1', signal) };
}

test('an agent that takes the first TERM as a request gets it once, before its service is asked', async () => {
  const it = retiring(async () => `after ${it.sent.length}`, 1);
  expect(await it.retire()).toEqual([{ kind: 'jobSeen', agent: 'a', job: 'after 1', limit: null }]);
  await it.retire();
  expect(it.sent).toEqual(['TERM']);
  // Its job is ended by the second; a third would end it without a word.
  await it.terminate();
  expect(it.sent).toEqual(['TERM', 'TERM']);
});

test('the service is asked first if an earlier manager may have sent the TERM', async () => {
  let job: string | null = 'j';
  const had = retiring(async () => job, 9);
  await had.retire();
  expect(had.sent).toEqual([]);
  await had.terminate();
  expect(had.sent).toEqual(['TERM', 'TERM']);
  job = null;
  const silent = retiring(() => Promise.reject(new Error('nobody can say')), 9);
  await expect(silent.retire()).rejects.toThrow('nobody can say');
  await expect(silent.retire()).rejects.toThrow('nobody can say');
  expect(silent.sent).toEqual(['TERM']);
});
