/** Standbys are current or stale, whatever changes under them: driver, image, the host's own silence. Over the real loop. */
import { describe, expect, test } from 'vitest';
import { recipe as plainRecipe } from '../../../test/kit/docker-runtime.ts';
import { card, hostWith } from '../../../test/kit/images.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import type { Built, ImageBuilder } from '../../images/builder.ts';
import type { CiService } from '../../ports/ci-service.ts';
import type { Recipe, Runtime } from '../../ports/runtime.ts';
import { Pool } from '../loop/pool.ts';
import { Reconciler } from '../loop/reconciler.ts';
import { createAutoImages } from './auto-image.ts';
import { Fingerprints } from './fingerprints.ts';
import { PoolImages } from './pool-images.ts';

const h100 = card('NVIDIA H100 80GB HBM3', '9.0');
const old = hostWith('550.54.14', '12.4', h100);
const recent = hostWith('580.95.05', '13.0', h100);
const cuda124 = 'nvidia/cuda:12.4.1-devel-ubuntu22.04';
const chosen = { base: 'auto', packages: [], dockerfile: null, flavour: 'devel', distribution: null } as const;

interface Options {
  readonly count?: number;
  readonly auto?: boolean;
  /** What is built. */
  readonly recipe?: { readonly base: string; readonly packages: readonly string[] };
  /** Whether sandboxes are made from images; default true. */
  readonly images?: boolean;
  /** Whether its service mounts a program into every sandbox; default false. */
  readonly equips?: boolean;
  /** An adopted standby, made from this. */
  readonly standby?: string;
}

function loop({ count = 1, auto = false, recipe, standby, images: hasImages = true, equips = false }: Options) {
  const devices = { ...oneDevice, count };
  const config = {
    name: 'gpu',
    service: 'own',
    devices,
    standby: true,
    standbyMaxAge: 1e9,
    stopGrace: 0,
    imageRecipe: auto ? chosen : recipe === undefined ? null : { ...chosen, ...recipe },
    recipe: { ...plainRecipe, image: auto || recipe !== undefined ? null : 'mine:1' },
  } as unknown as PoolConfig;
  const asked: (string | null)[] = [];
  let answer = async ({ image }: Recipe): Promise<string | null> => `of ${image}`;
  const runtime = {
    name: 'docker',
    capabilities: { images: hasImages },
    fingerprint: (one: Recipe) => {
      asked.push(one.image);
      return answer(one);
    },
  } as unknown as Runtime;
  const service = {
    capabilities: { binds: 'late' },
    jobs: { next: () => null, committed() {}, record() {} },
    ...(equips && { equip: (one: Recipe) => one }),
  } as unknown as CiService;
  const clock: Clock = { now: () => 0, wall: () => 0, after: () => () => {} };
  const log = { info() {}, warn() {}, error() {} };
  const store = { transaction: (write: () => void) => write(), sync: async () => {}, syncNow() {}, save() {} };
  const reconciler = new Reconciler({
    clock,
    log,
    store,
    random: () => 0,
    act() {},
    changed() {},
    newAgent: () => 'new',
  });
  const uuids = count === 0 ? [] : [h100.uuid];
  const pool = new Pool(config, {
    service,
    runtime,
    keepStandby: true,
    devices: { of: () => uuids, heldBack: () => null, lost: () => false, contested: () => false },
  });
  const empty: Slot = { ...emptySlot({ key: 'gpu/1', runtime: 'docker', grace: 0 }), devices: uuids };
  const lane = { kind: 'standby', agent: 'adopted', reserved: null, fingerprint: standby ?? '', since: 0 } as const;
  reconciler.add(pool, [standby === undefined ? empty : { ...empty, standby: lane }]);
  const built: { found: Built | null; next: Built | null } = { found: null, next: null };
  const builder = {
    find: async () => built.found,
    isThere: async () => true,
    get: async () => built.next ?? Promise.reject(new Error('nothing is built here')),
  } as unknown as ImageBuilder;
  const namesNone = auto || recipe !== undefined;
  const images = new PoolImages({
    log,
    pools: namesNone ? [config] : [],
    typeOf: () => 'own-queue',
    agentPackage: async () => null,
    builder: async () => builder,
    auto: createAutoImages({
      arch: 'amd64',
      platform: null,
      pools: namesNone ? [{ name: 'gpu', devices: config.devices, imageRecipe: chosen }] : [],
    }),
  });
  const fingerprints = new Fingerprints({ log, reconciler, nameOf: (key) => key, images });
  fingerprints.start();
  return {
    pool,
    fingerprints,
    asked,
    /** Until everything that is under way has come to its end. */
    settle: () => new Promise((done) => setImmediate(done)),
    plan: () => reconciler.replanAll(),
    standby: () => reconciler.slot('gpu/1')?.standby,
    answers(with_: typeof answer) {
      answer = with_;
    },
    imageOf: () => fingerprints.imageOf(pool, () => {}, new AbortController().signal),
    built,
    renew: () => images.refresh(['gpu'], () => {}, new AbortController().signal),
    refresh: () => fingerprints.refresh(runtime, new AbortController().signal),
  };
}

describe('an adopted standby with devices', () => {
  test('is kept until the GPUs are checked, and released if the driver is the same', async () => {
    const it = loop({ standby: 'of mine:1 550.54.14' });
    await it.refresh();
    it.plan();
    expect([it.standby()?.kind, it.pool.pause.details]).toEqual(['standby', ['the GPUs of this host have not been checked yet']]);
    it.fingerprints.looked(old);
    await it.settle();
    expect([it.standby(), it.pool.pause.any]).toMatchObject([{ kind: 'standby', agent: 'adopted' }, false]);
  });

  test('is made anew when the driver is another', async () => {
    const it = loop({ standby: 'of mine:1 550.54.14' });
    it.fingerprints.looked(recent);
    await it.settle();
    expect(it.standby()).toMatchObject({ kind: 'preparing', agent: 'new' });
  });

  test('survives looks that fail, before and after a good one', async () => {
    const it = loop({ standby: 'of mine:1 550.54.14' });
    const failed: Inventory = { ...hostWith(null, null), complete: false };
    it.fingerprints.looked(failed);
    await it.settle();
    expect([it.standby()?.kind, it.pool.pause.any]).toEqual(['standby', true]);
    it.fingerprints.looked(old);
    it.fingerprints.looked(failed);
    await it.settle();
    expect([it.standby(), it.pool.pause.any]).toMatchObject([{ agent: 'adopted' }, false]);
  });

  test('waits for a runtime that is away', async () => {
    const it = loop({ standby: 'of mine:1 550.54.14' });
    it.answers(async () => Promise.reject(new Error('away')));
    it.fingerprints.looked(old);
    await it.settle();
    expect([it.standby()?.kind, it.pool.pause.any]).toEqual(['standby', true]);
    it.answers(async ({ image }) => `of ${image}`);
    await it.refresh();
    it.plan();
    expect([it.standby(), it.pool.pause.any]).toMatchObject([{ agent: 'adopted' }, false]);
  });
});

test('cards of others have no driver that must be known', async () => {
  const it = loop({ standby: 'of mine:1 ' });
  const amd = card('MI300X', null, { vendor: 'amd', uuid: h100.uuid });
  it.fingerprints.looked({ ...hostWith(null, null, amd), complete: false });
  await it.settle();
  expect([it.standby(), it.pool.pause.any]).toMatchObject([{ agent: 'adopted' }, false]);
});

test('a pool without devices does not wait, and no driver matters to it', async () => {
  const it = loop({ count: 0, standby: 'of mine:1' });
  await it.refresh();
  it.plan();
  it.fingerprints.looked(recent);
  await it.settle();
  expect([it.standby(), it.pool.pause.any]).toMatchObject([{ agent: 'adopted' }, false]);
});

test('a runtime without images is asked again only when the driver has changed', async () => {
  const it = loop({ images: false });
  it.fingerprints.looked(old);
  await it.settle();
  for (let times = 0; times < 3; times++) await it.refresh();
  expect(it.asked).toHaveLength(1);
  it.fingerprints.looked(recent);
  await it.settle();
  await it.refresh();
  expect(it.asked).toHaveLength(2);
});

test('a runtime without images is asked each time where the service mounts a program, which may not be there at first', async () => {
  const it = loop({ images: false, equips: true, count: 0 });
  for (let times = 0; times < 3; times++) await it.refresh();
  expect(it.asked).toHaveLength(3);
});

describe('an image that could not be had', () => {
  const missing = { code: 'E_IMAGE_NOT_FOUND', message: 'x', retry: false };

  test('ends the wait for it once someone has brought it', async () => {
    const it = loop({ count: 0 });
    it.answers(async () => null);
    it.pool.failed(missing, 'prepare', 0, 0);
    await it.refresh();
    expect(it.pool.awaitsImage).toBe('image "mine:1" on docker');
    it.answers(async ({ image }) => `of ${image}`);
    await it.refresh();
    expect([it.pool.backoff, it.pool.awaitsImage]).toEqual([null, null]);
  });

  test('what else a pool fails with waits its time', async () => {
    const it = loop({ count: 0 });
    it.pool.failed({ ...missing, code: 'E_RECIPE' }, 'prepare', 0, 0);
    await it.refresh();
    expect([it.pool.backoff?.failures, it.pool.awaitsImage]).toEqual([1, null]);
  });
});

describe('image: auto', () => {
  test('a standby of the image that is chosen is kept, one of an older choice is not', async () => {
    const it = loop({ auto: true, standby: `of ${cuda124} 550.54.14` });
    await it.refresh();
    expect(it.asked).toEqual([]);
    it.fingerprints.looked(old);
    await it.settle();
    expect(it.standby()).toMatchObject({ agent: 'adopted' });
    const { image } = (await it.imageOf()) ?? {};
    expect([image, it.fingerprints.shownImage('gpu')]).toEqual([cuda124, cuda124]);
    const v100 = card('Tesla V100-SXM2-32GB', '7.0');
    it.fingerprints.looked({ ...old, devices: [h100, { ...v100, computeCapability: '5.2' }] });
    await it.settle();
    expect(it.standby()).toMatchObject({ agent: 'adopted' });
    it.fingerprints.looked({ ...recent, driver: '550.54.14', cuda: '12.4', devices: [card('Tesla K80', '3.7')] });
    await it.settle();
    expect(it.standby()).toMatchObject({ kind: 'preparing', agent: 'new' });
  });

  test('an answer about an older choice counts for nothing', async () => {
    const it = loop({ auto: true, standby: `of ${cuda124} 550.54.14` });
    const late = Promise.withResolvers<string>();
    it.answers(async ({ image }) => (image === cuda124 ? late.promise : `of ${image}`));
    it.fingerprints.looked(old);
    it.fingerprints.looked(recent);
    late.resolve(`of ${cuda124}`);
    await it.settle();
    expect(it.standby()).toMatchObject({ kind: 'preparing', agent: 'new' });
    expect(it.fingerprints.shownImage('gpu')).toMatch(/^nvidia\/cuda:13\.0\./);
  });

  test('without an image the reason is said, and a new look ends the back-off for it', async () => {
    const it = loop({ auto: true });
    it.fingerprints.looked(hostWith('390.157', '9.1', h100));
    await expect(it.imageOf()).rejects.toThrow(expect.objectContaining({ code: 'E_IMAGE_CHOICE' }));
    expect(it.fingerprints.findings()).toMatchObject([{ level: 'error', subject: 'pool gpu' }]);
    it.pool.failed({ code: 'E_IMAGE_CHOICE', message: 'x', retry: false }, 'prepare', 0, 0);
    it.fingerprints.looked(recent);
    expect([it.pool.backoff, it.fingerprints.findings()]).toMatchObject([null, [{ level: 'ok' }]]);
  });
});

describe('an image that is built', () => {
  const image = (id: string): Built => ({ reference: `onejob/x:${id}`, id, agentVersion: null, pull: 'never' });

  test('is looked for before a standby is judged; a newer one makes it stale', async () => {
    const it = loop({ count: 0, recipe: { base: 'debian:12', packages: ['git'] }, standby: 'of onejob/x:1' });
    it.built.found = image('1');
    await it.refresh();
    it.plan();
    expect(it.standby()).toMatchObject({ agent: 'adopted' });
    it.built.next = image('2');
    await it.renew();
    await it.settle();
    expect(it.standby()).toMatchObject({ kind: 'preparing', agent: 'new' });
    expect(await it.imageOf()).toEqual({ image: 'onejob/x:2', pull: 'never' });
  });

  test('ends the back-off of a pool that had none', async () => {
    const it = loop({ count: 0, recipe: { base: 'debian:12', packages: ['git'] } });
    it.pool.failed({ code: 'E_IMAGE_BUILD', message: 'x', retry: false }, 'prepare', 0, 0);
    it.built.next = image('1');
    await it.renew();
    expect([it.pool.backoff, it.standby()]).toMatchObject([null, { kind: 'preparing' }]);
  });
});
