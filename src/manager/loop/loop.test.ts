import { Readable } from 'node:stream';
import { expect, test, vi } from 'vitest';
import { emptyEnvironment, Folder } from '../../../test/kit/config.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import { createLogFolder } from '../../logs/log-file.ts';
import type { CiService } from '../../ports/ci-service.ts';
import { subdirectory } from '../../store/directory.ts';
import { openStore } from '../../store/store.ts';
import { systemClock as clock } from '../../system/system-clock.ts';
import { openLoop } from './loop.ts';

const own = {
  name: 'own',
  capabilities: { binds: 'late', standsForSlots: false, terms: 1, poolTimeout: true, jobOnStdout: false },
  deregister: async () => ({ ran: null }),
  jobs: { next: () => null, record() {}, committed() {}, syncing: () => () => {}, rolledBack() {} },
} as Partial<CiService> as CiService;

/** A loop over a runtime that only writes down what it was asked, and makes nothing. */
async function openOver(
  stored: readonly Slot[],
  services: readonly CiService[] = [own],
  { temporary = false, proved = [] as string[] } = {},
) {
  // A loop that fails to open leaves nothing behind.
  await using opening = new AsyncDisposableStack();
  const dir = opening.use(scratch());
  const folder = opening.use(new Folder());
  const { config } = await folder.load('pools: { gpu: { agents: 2, standby: true, devices: 0, runtime: process } }');
  const store = opening.adopt(openStore(dir.path, { temporary }), (one) => one.close());
  store.transaction({ durable: false }, () => {
    stored.forEach(store.slots.save);
    for (const pool of proved) store.provedImages.save(pool, { image: pool, id: 'sha256:1', equipment: [], driver: null });
  });
  const asked: string[] = [];
  const runtime = {
    name: 'process',
    capabilities: { weaker: null, images: false, holdsSecrets: true, workspace: () => '/workspace' },
    prepare: async ({ slot }: { slot: string }, _: unknown, signal: AbortSignal) => {
      asked.push(`prepare ${slot}`);
      await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason), { once: true }));
    },
    remove: async (agent: string) => void asked.push(`remove ${agent}`),
    logs: () => {
      asked.push('logs');
      return Readable.from([]);
    },
  } as never;
  const emptied = vi.fn();
  const warn = vi.fn();
  const loop = await openLoop({
    config: { ...config, stateDir: dir.path },
    env: emptyEnvironment(),
    store,
    runtimes: {
      all: [runtime],
      best: runtime,
      reason: null,
      findings: () => [],
      get: () => runtime,
      make: async () => runtime,
      chooseAgain: async () => false,
    },
    services: new Map(services.map((one) => [one.name, one])),
    clock,
    log: { info() {}, warn, error() {} },
    logs: createLogFolder(subdirectory(dir.path, 'logs')),
    end: { emptied, hurry: new AbortController().signal },
  });
  opening.use(loop);
  const opened = opening.move();
  return { loop, store, asked, emptied, warn, [Symbol.asyncDispose]: () => opened.disposeAsync() };
}

const leaving: Slot = {
  ...emptySlot({ key: 'gpu/1', runtime: 'process', service: 'own', grace: 10_000 }),
  leaving: [{ agent: 'before', job: null, exit: null }],
};

test('the loop contains what the last manager left, and does nothing about it before it is started', async () => {
  await using world = await openOver([leaving]);
  const { reconciler } = world.loop;
  expect(reconciler.slots.map(({ key }) => key)).toEqual(['gpu/1', 'gpu/2']);
  expect(reconciler.placeOf('before')).toBe('gpu/1');
  expect(reconciler.pause.details).toEqual(['onejob is starting']);
  expect(world.asked).toEqual([]);
});

test('a started loop does what states ask for, records the results, and reports every empty slot', async () => {
  await using world = await openOver([leaving]);
  const { reconciler } = world.loop;
  reconciler.pause.release('starting');
  reconciler.start();
  await expect.poll(() => world.asked).toEqual(expect.arrayContaining(['remove before', 'prepare gpu/1', 'prepare gpu/2']));
  expect(world.store.slots.all().map(({ slot }) => slot.standby.kind)).toEqual(['preparing', 'preparing']);
  expect(world.emptied).not.toHaveBeenCalled();
  reconciler.beginStop();
  await expect.poll(() => reconciler.isEmpty).toBe(true);
  expect(world.emptied).toHaveBeenCalledTimes(2);
});

test('nothing is opened without the service that a pool names', async () => {
  await expect(openOver([], [])).rejects.toMatchObject({ code: 'E_BUG' });
});

test.each([
  ['a daemon forgets the images of pools that have left the config', false, 'gpu'],
  ['a temporary manager, whose config is another one, keeps all', true, 'gpu old'],
])('%s', async (_, temporary, kept) => {
  await using world = await openOver([], [own], { temporary, proved: ['gpu', 'old'] });
  const { provedImages } = world.store;
  expect(['gpu', 'old'].filter((pool) => provedImages.of(pool) !== null).join(' ')).toBe(kept);
});

test('leftovers of the last sweep are logged, and do not keep a daemon from ending', async () => {
  await using here = await openOver([]);
  const sweep = async () => {
    throw new OnejobError('E_ENGINE_FAILED', 'Cannot remove network "n".', { hint: 'Restart the Engine.' });
  };
  await here.loop.observer.sweep({ name: 'docker', list: async () => [], sweep } as never);
  expect(here.warn.mock.calls).toEqual([
    ['failed to remove everything', { runtime: 'docker', reason: 'Cannot remove network "n". Restart the Engine.' }],
  ]);
});
