/** Which image a pool has, when it is built, and what happens to it when a newer one is made or cannot be. */
import { describe, expect, test } from 'vitest';
import { card, hostWith } from '../../../test/kit/images.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Built, ImageBuilder, ImageWish } from '../../images/builder.ts';
import type { ImageThere } from '../../images/engine.ts';
import { createAutoImages } from './auto-image.ts';
import { createImageDesk, PoolImages, renewImages } from './pool-images.ts';

const cuda124 = 'nvidia/cuda:12.4.1-devel-ubuntu22.04';
const plain = { base: 'debian:12', packages: [], dockerfile: null, flavour: 'devel', distribution: null } as const;

interface PoolLike {
  readonly service?: string;
  readonly devices?: number;
  readonly image?: Partial<NonNullable<PoolConfig['imageRecipe']>> | null;
  readonly pull?: 'missing' | 'always' | 'never';
  readonly containers?: true;
}

function pool(name: string, { service = 'own', devices = 0, image = {}, pull = 'missing', containers }: PoolLike = {}): PoolConfig {
  const imageRecipe = image === null ? null : { ...plain, ...image };
  return {
    name,
    service,
    devices: { ...oneDevice, count: devices },
    imageRecipe,
    recipe: { image: null, pull, ...(containers && { containers: { image: null } }) },
  } as unknown as PoolConfig;
}

const made = (id: string, agentVersion: string | null = null): Built => ({
  reference: `onejob/x:${id}`,
  id,
  agentVersion,
  pull: 'never',
});

/** A builder whose Engine and CI service are a few variables. */
function bench(...pools: PoolConfig[]) {
  const world = {
    /** What was built before, by base. */
    found: new Map<string | null, Built>(),
    /** What building gives now. */
    next: async (_wish: ImageWish, _say: Progress, _signal: AbortSignal): Promise<Built> => made('1'),
    gone: false,
    engine: [] as ImageThere[],
    pruned: 0,
    gets: 0,
    finds: 0,
  };
  const builder = {
    find: async ({ base }: ImageWish) => {
      world.finds++;
      return world.found.get(base) ?? null;
    },
    isThere: async () => !world.gone,
    list: async () => [...world.engine],
    recipeOf: ({ labels }: ImageThere) => labels.recipe ?? null,
    prune: async (keep: (image: ImageThere) => boolean) => {
      world.engine = world.engine.filter(keep);
      return [];
    },
    prunePackages: async () => void world.pruned++,
    close() {},
    get: async (...asked: Parameters<typeof world.next>) => {
      world.gets++;
      return world.next(...asked);
    },
  } as unknown as ImageBuilder;
  const asAuto = pools.flatMap((one) => (one.imageRecipe?.base === 'auto' ? [{ ...one, imageRecipe: one.imageRecipe }] : []));
  const lines: string[] = [];
  const timers: { ms: number; fn: () => void }[] = [];
  const after = (ms: number, fn: () => void) => {
    const timer = { ms, fn };
    timers.push(timer);
    return () => void timers.splice(timers.indexOf(timer), 1);
  };
  const log = { info: (event: string) => lines.push(event), warn: (event: string) => lines.push(event), error() {} };
  const images = new PoolImages({
    pools,
    log,
    auto: createAutoImages({ pools: asAuto, arch: 'amd64', platform: null }),
    typeOf: (service) => (service === 'azure' ? 'azure-pipelines' : 'own-queue'),
    builder: async () => builder,
    agentPackage: async () => null,
  });
  const changed: string[] = [];
  images.changed = (name, before) => changed.push(`${name} ${before?.id ?? 'none'}`);
  const never = new AbortController().signal;
  const renewal = () => renewImages(images, { clock: { now: () => 0, wall: () => 0, after }, log });
  /** What the clock comes to next; its ms. */
  const tick = async () => {
    const timer = timers.shift();
    timer?.fn();
    await new Promise((resolve) => setImmediate(resolve));
    return timer?.ms ?? null;
  };
  return {
    world,
    images,
    changed,
    lines,
    tick,
    timers,
    renewal,
    need: (name: string, say: Progress = () => {}) => images.need(name, say, never),
    never,
  };
}

describe('nothing is built', () => {
  test('for a pool that names its image, or one that is only chosen or only a base', async () => {
    const { images, need, world } = bench(
      pool('named', { image: null }),
      pool('auto', { image: { base: 'auto' } }),
      pool('base', { pull: 'always' }),
    );
    expect([images.has('named'), images.names]).toEqual([false, []]);
    expect(await need('auto')).toEqual({ image: 'ubuntu:24.04', pull: 'missing' });
    expect(await need('base')).toEqual({ image: 'debian:12', pull: 'always' });
    expect([images.of('auto'), images.of('base'), images.of('named')]).toEqual([
      { image: 'ubuntu:24.04' },
      { image: 'debian:12' },
      null,
    ]);
    expect(world).toMatchObject({ gets: 0, finds: 0 });
  });
});

describe('a recipe', () => {
  test('is built at first need, once for all who ask, and pulled from nowhere', async () => {
    const { images, need, world } = bench(pool('lab', { image: { packages: ['git'] } }));
    expect([images.names, images.of('lab')]).toEqual([['lab'], null]);
    const heard: string[] = [];
    world.next = async (wish, say) => {
      expect(wish).toMatchObject({ type: 'own-queue', base: 'debian:12', packages: ['git'] });
      say('step 1');
      return made('1');
    };
    const both = await Promise.all([
      need('lab', (line) => heard.push(`a ${line}`)),
      need('lab', (line) => heard.push(`b ${line}`)),
    ]);
    expect(both).toEqual([1, 2].map(() => ({ image: 'onejob/x:1', pull: 'never' })));
    expect([heard.toSorted(), world.gets]).toEqual([['a step 1', 'b step 1'], 1]);
    expect([images.of('lab'), await need('lab'), world.gets]).toMatchObject([{ image: 'onejob/x:1' }, { image: 'onejob/x:1' }, 1]);
  });

  test('that was built before is used as it is: neither an outage nor a newer agent holds a start up', async () => {
    const { images, need, world, never } = bench(pool('ci', { service: 'azure' }));
    world.found.set('debian:12', made('old', '5.1.0'));
    world.next = () => Promise.reject(new Error('the service is away'));
    await images.look('ci', never);
    await images.look('ci', never);
    expect([images.of('ci'), world.finds]).toEqual([{ image: 'onejob/x:old' }, 1]);
    expect(await need('ci')).toMatchObject({ image: 'onejob/x:old' });
    expect(images.findings('ci')).toMatchObject([{ level: 'ok', message: expect.stringContaining('with agent 5.1.0') }]);
  });

  test('is built anew when its image was removed', async () => {
    const { need, world, changed } = bench(pool('lab', { image: { packages: ['git'] } }));
    await need('lab');
    Object.assign(world, { gone: true, next: async () => made('2') });
    expect(await need('lab')).toMatchObject({ image: 'onejob/x:2' });
    expect(changed).toEqual(['lab none', 'lab 1']);
  });

  test('that fails says why, and is tried again when it is asked for again', async () => {
    const { images, need, world } = bench(pool('lab', { image: { packages: ['git'] } }));
    world.next = () => Promise.reject(new OnejobError('E_IMAGE_BUILD', 'no'));
    await expect(need('lab')).rejects.toMatchObject({ code: 'E_IMAGE_BUILD' });
    expect(images.of('lab')).toBeNull();
    world.next = async () => made('1');
    expect(await need('lab')).toMatchObject({ image: 'onejob/x:1' });
  });
});

describe('a newer image', () => {
  test('is used as soon as it exists, and is announced once', async () => {
    const { images, need, world, changed, never, lines } = bench(pool('ci', { service: 'azure' }));
    world.next = async () => made('1', '5.1.0');
    await need('ci');
    expect(await images.refresh(['ci'], () => {}, never)).toEqual([{ pool: 'ci', problem: null }]);
    expect([changed, images.built('ci')?.id]).toEqual([['ci none'], '1']);
    world.next = async () => {
      expect(images.of('ci')).toEqual({ image: 'onejob/x:1' });
      return made('2', '5.2.0');
    };
    expect(await images.refresh(['ci'], () => {}, never)).toEqual([{ pool: 'ci', problem: null }]);
    expect([changed, images.of('ci'), lines]).toEqual([
      ['ci none', 'ci 1'],
      { image: 'onejob/x:2' },
      ['image ready', 'image renewed'],
    ]);
  });

  test('that cannot be made leaves the one there is, and doctor says so until it can', async () => {
    const { images, need, world, never, changed } = bench(
      pool('ci', { service: 'azure' }),
      pool('b', { image: { packages: ['a'] } }),
    );
    await need('ci');
    world.next = async ({ type }) => {
      if (type === 'own-queue') return made('b');
      throw new OnejobError('E_CI_UNREACHABLE', 'The service is away.');
    };
    const outcome = await images.refresh(['ci', 'b'], () => {}, never);
    expect(outcome).toMatchObject([
      { pool: 'ci', problem: { code: 'E_CI_UNREACHABLE' } },
      { pool: 'b', problem: null },
    ]);
    expect([images.built('ci')?.id, images.built('b')?.id]).toEqual(['1', 'b']);
    expect([images.of('ci'), changed]).toEqual([{ image: 'onejob/x:1' }, ['ci none', 'b none']]);
    expect(images.findings('ci').map(({ level }) => level)).toEqual(['ok', 'warning']);
    world.next = async () => made('1');
    await images.refresh(['ci'], () => {}, never);
    expect(images.findings('ci').map(({ level }) => level)).toEqual(['ok']);
  });
});

describe('a recipe on a chosen base', () => {
  const h100 = card('NVIDIA H100 80GB HBM3', '9.0');

  test('waits for the look at the GPUs, and is another when another base is chosen', async () => {
    const { images, need, world } = bench(pool('gpu', { service: 'azure', devices: 1, image: { base: 'auto' } }));
    await expect(need('gpu')).rejects.toMatchObject({ code: 'E_IMAGE_CHOICE', retry: true });
    expect(images.saw(hostWith('550.54.14', '12.4', h100))).toEqual(['gpu']);
    world.next = async ({ base }) => made(`on ${base}`);
    expect([await need('gpu'), images.base('gpu')]).toMatchObject([{ image: `onejob/x:on ${cuda124}` }, cuda124]);
    images.saw(hostWith('580.95.05', '13.0', h100));
    expect(images.of('gpu')).toBeNull();
    expect((await need('gpu')).image).toMatch(/on nvidia\/cuda:13\.0\./);
  });

  test('has no image where none can be chosen, with the reason', () => {
    const { images } = bench(pool('gpu', { service: 'azure', devices: 1, image: { base: 'auto' } }));
    images.saw(hostWith('390.157', '9.1', h100));
    expect(images.of('gpu')).toMatchObject({ problem: expect.any(String) });
    expect(images.findings('gpu')).toMatchObject([{ level: 'error' }]);
  });

  test('a build for a base that is no longer the chosen one counts for nothing', async () => {
    const { images, need, world } = bench(pool('gpu', { service: 'azure', devices: 1, image: { base: 'auto' } }));
    images.saw(hostWith('550.54.14', '12.4', h100));
    const late = Promise.withResolvers<Built>();
    world.next = () => late.promise;
    const asked = need('gpu');
    await new Promise((resolve) => setImmediate(resolve));
    images.saw(hostWith('580.95.05', '13.0', h100));
    late.resolve(made('for 12.4'));
    await asked;
    expect(images.of('gpu')).toBeNull();
  });
});

describe('the daily look', () => {
  const there = (id: string, recipe: string): ImageThere => ({ id, labels: { recipe }, tags: [], created: 0, size: 0 });

  test('comes soon after the start and then every day, only for images in use, and removes what they replace', async () => {
    const { world, images, need, tick, timers, renewal, changed } = bench(
      pool('ci', { service: 'azure' }),
      pool('idle', { service: 'azure' }),
    );
    const stop = renewal();
    expect(await tick()).toBe(60_000);
    expect([world.gets, world.pruned]).toEqual([0, 0]);
    await need('ci');
    world.next = async () => made('2');
    world.engine = [there('1', 'r'), there('2', 'r'), there('x', 'of another config')];
    expect(await tick()).toBe(86_400_000);
    expect([changed.at(-1), world.gets, world.pruned, world.engine.map(({ id }) => id)]).toEqual(['ci 1', 2, 1, ['2', 'x']]);
    world.next = () => Promise.reject(new Error('away'));
    expect(await tick()).toBe(86_400_000);
    // Nobody can say which package is still the one to keep.
    expect([images.of('ci'), world.pruned, timers.length]).toEqual([{ image: 'onejob/x:2' }, 1, 1]);
    stop();
    expect(timers).toEqual([]);
  });

  test('is not there where nothing is built', () => {
    const { renewal, timers } = bench(pool('plain'));
    renewal();
    expect(timers).toEqual([]);
  });
});

test('closing ends what is being built', async () => {
  const { images, need, world } = bench(pool('lab', { image: { packages: ['git'] } }));
  const began = Promise.withResolvers<AbortSignal>();
  world.next = (_wish, _say, signal) => {
    began.resolve(signal);
    return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
  };
  const asked = need('lab').catch((error: unknown) => error);
  const signal = await began.promise;
  await images.close();
  expect([signal.aborted, await asked]).toMatchObject([true, { name: 'AbortError' }]);
});

describe('the image of engines for containers', () => {
  test('is what doctor names it, and no image of a pool', async () => {
    const { images, need } = bench(pool('a', { image: null, containers: true }));
    const said = () => images.findings('engine').map(({ subject, message }) => `${subject}: ${message}`);
    expect(said()).toEqual(['containers: The image of engines is built when it is first needed.']);
    await need('engine');
    expect(said()).toEqual(['containers: The image of engines is onejob/x:1, built on debian:trixie-slim.']);
  });

  test('is one for all pools that have them, built from its own Dockerfile and without an agent', async () => {
    const own = pool('a', { image: null, containers: true });
    const { images, world, need, changed } = bench(own, pool('b', { service: 'azure', containers: true }));
    const wishes: ImageWish[] = [];
    world.next = async (wish) => {
      wishes.push(wish);
      return made('e1');
    };
    expect(images.names).toEqual(['b', 'engine']);
    expect(await need('engine')).toEqual({ image: 'onejob/x:e1', pull: 'never' });
    expect(wishes).toEqual([
      expect.objectContaining({ type: 'engine', base: 'debian:trixie-slim', packages: [], dockerfile: null }),
    ]);
    expect(images.of('engine')).toEqual({ image: 'onejob/x:e1' });
    expect(changed).toEqual(['engine none']);
  });

  test('is not there where no pool has them', () => {
    expect(bench(pool('a', { image: null })).images.names).toEqual([]);
  });

  test('can be asked for by its name, like a pool', async () => {
    const own = pool('a', { image: null, containers: true });
    const { images, never } = bench(own);
    const desk = createImageDesk(images, [own]);
    const outcome = { pool: 'engine', image: 'onejob/x:1', agent: null, what: 'built', problem: null };
    expect(await desk.make('build', ['engine'], () => {}, never)).toEqual([outcome]);
    await expect(createImageDesk(bench().images, []).make('build', ['engine'], () => {}, never)).rejects.toMatchObject({
      code: 'E_POOL_UNKNOWN',
    });
  });
});
