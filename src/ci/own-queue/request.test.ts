import { describe, expect, it } from 'vitest';
import { type JobRequest, jobRequest } from '../../contract/job.ts';
import type { Mount } from '../../ports/runtime.ts';
import { checkRequest, type QueuePool, recipeOfJob } from './request.ts';

const data: Mount = { host: '/data', container: '/in', readOnly: true, variable: null, cache: null };
const pool = {
  name: 'default',
  timeout: null,
  recipe: { image: 'x', mounts: [data] },
  devices: { count: 0 },
} as unknown as QueuePool;
const check = (volumes: JobRequest['volumes'], problem?: (mount: Mount) => string | null) =>
  checkRequest(jobRequest.parse({ command: ['true'], volumes }), new Map([['default', pool]]), problem);

describe('the volumes of a job', () => {
  it('are refused with their reason', () => {
    expect(() => check([{ ...data, container: '/other' }], () => 'it holds secrets')).toThrow(
      expect.objectContaining({ code: 'E_JOB_REQUEST', message: 'Cannot mount /data at /other: it holds secrets.' }),
    );
  });

  it.each([
    ['/data/../etc', { host: '/data/../etc' }],
    ['/workspace', { container: '/workspace/' }],
    ['A=B', { variable: 'A=B' }],
  ])('are refused for their paths and names: %s', (_, more) => {
    expect(() => check([{ ...data, ...more }])).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST' }));
  });

  it('are refused where the engine of its containers has its programs, whose root would run what a job has written', () => {
    const volumes = [{ ...data, container: '/usr/local/share' }];
    expect(check(volumes, () => null).volumes).toEqual(volumes);
    const engine = { ...pool, recipe: { ...pool.recipe, containers: { image: null } } };
    const ask = () => checkRequest(jobRequest.parse({ command: ['true'], volumes }), new Map([['default', engine]]), () => null);
    expect(ask).toThrow(
      expect.objectContaining({ code: 'E_JOB_REQUEST', message: expect.stringContaining('the engine has its programs') }),
    );
  });

  it('are refused twice at one place, however that is written', () => {
    expect(() => check([data, { ...data, host: '/more', container: '//in/' }])).toThrow(/another of its volumes/);
  });

  it('are refused if they are not on this host, unless a job before it may make them', () => {
    const volumes = [{ ...data, host: '/new' }];
    const ask = (needs: string[]) =>
      checkRequest(
        jobRequest.parse({ command: ['true'], volumes, needs }),
        new Map([['default', pool]]),
        () => null,
        () => false,
      );
    expect(() => ask([])).toThrow(
      expect.objectContaining({
        code: 'E_JOB_REQUEST',
        message: 'Cannot mount /new at /in: /new does not exist on this host.',
        hint: 'Create it, or correct --volume.',
      }),
    );
    expect(ask(['j1']).volumes).toEqual(volumes);
  });

  it('are kept in the one way of writing them; what the pool has already is not asked about', () => {
    const { volumes } = check([{ ...data, host: '/data//', container: '/./in' }], () => 'nothing new');
    expect(volumes).toEqual([data]);
  });
});

describe('a job of a pool that other hosts have', () => {
  const far = { ...pool, name: 'burst.gpu', elsewhere: { host: 'burst', pool: 'gpu' } };
  const ask = (more: Partial<JobRequest>) =>
    checkRequest(jobRequest.parse({ command: ['true'], ...more }), new Map([['burst.gpu', far]]), () => 'it holds secrets');

  it('may name folders that this host shows to nobody, but no impossible ones', () => {
    expect(ask({ volumes: [{ ...data, container: '/other' }] }).volumes).toHaveLength(1);
    expect(() => ask({ volumes: [{ ...data, host: '/data/../etc', container: '/other' }] })).toThrow(
      expect.objectContaining({ code: 'E_JOB_REQUEST' }),
    );
  });

  it('cannot have clients that run programs in it', () => {
    expect(() => ask({ attended: true })).toThrow(
      expect.objectContaining({ code: 'E_JOB_REQUEST', message: expect.stringContaining('burst.gpu') }),
    );
  });
});

describe('the limits of a job', () => {
  const limited = { ...pool, recipe: { ...pool.recipe, memory: 2 ** 30, cpus: 2 } };
  const ask = (more: { memory?: number; cpus?: number }) =>
    checkRequest(jobRequest.parse({ command: ['true'], ...more }), new Map([['default', limited]]));

  it("go up to the pool's, and make a sandbox of its own", () => {
    expect(recipeOfJob(ask({ memory: 2 ** 30, cpus: 2 }), limited.recipe)).toBeNull();
    expect(recipeOfJob(ask({ memory: 2 ** 29, cpus: 0.5 }), limited.recipe)).toMatchObject({
      memory: 2 ** 29,
      cpus: 0.5,
      image: 'x',
    });
    expect(recipeOfJob(ask({ memory: 2 ** 29 }), { ...limited.recipe, memory: null })).toMatchObject({ memory: 2 ** 29 });
  });

  it.each([
    [{ memory: 2 ** 31 }, 'Cannot give the job 2GiB of memory: agents of pool "default" have only 1GiB.'],
    [{ cpus: 4 }, 'Cannot give the job 4 CPUs: agents of pool "default" have only 2.'],
  ])('are refused beyond: %j', (more, message) => {
    expect(() => ask(more)).toThrow(expect.objectContaining({ code: 'E_JOB_REQUEST', message }));
  });
});

it("a job may name an image of a registry, and its pool's own, but none that somebody else could have put here", () => {
  const built = { ...pool, recipe: { ...pool.recipe, image: 'onejob/own-queue:0123456789ab' } };
  const ask = (image: string) => checkRequest(jobRequest.parse({ command: ['true'], image }), new Map([['default', built]])).image;
  expect([ask('gcc:14'), ask('onejob/own-queue:0123456789ab')]).toEqual(['gcc:14', 'onejob/own-queue:0123456789ab']);
  for (const image of ['onejob/own-queue:aaaaaaaaaaaa', 'onejob-held:2dacd40417', `sha256:${'0'.repeat(64)}`])
    expect(() => ask(image)).toThrow(
      expect.objectContaining({
        code: 'E_JOB_REQUEST',
        message: expect.stringContaining(`Cannot run the job in image "${image}"`),
      }),
    );
});

it('a job may have 100 patterns of artifacts, and no more', () => {
  const ask = (count: number) => {
    const artifacts = Array.from({ length: count }, (_, n) => `dist/${n}`);
    return checkRequest(jobRequest.parse({ command: ['true'], artifacts }), new Map([['default', pool]]));
  };
  expect(ask(100).artifacts).toHaveLength(100);
  expect(() => ask(101)).toThrow(
    expect.objectContaining({
      code: 'E_JOB_REQUEST',
      message: 'Cannot collect the artifacts of 101 patterns: a job may have at most 100.',
    }),
  );
});

describe('a job that names no pool', () => {
  const named = (name: string, count = 0, standby = true) => ({ ...pool, name, devices: { count }, standby }) as QueuePool;
  const chosen = (pools: readonly QueuePool[], devices: number | null = null) =>
    checkRequest(jobRequest.parse({ command: ['true'], devices }), new Map(pools.map((one) => [one.name, one])), () => null).pool;

  it.each([
    ['the one called default', [named('gpu', 1), named('build'), named('default')], 'default'],
    ['the only one, also with devices', [named('gpu', 1)], 'gpu'],
    ['the first whose agents have no devices', [named('gpu', 1), named('build'), named('data')], 'build'],
  ])('goes to %s', (_, pools, expected) => {
    expect(chosen(pools)).toBe(expected);
  });

  it('goes to the first that has as many devices as it asks for', () => {
    expect(chosen([named('build'), named('one', 1), named('two', 2)], 2)).toBe('two');
  });

  it('takes no card that it did not ask for', () => {
    expect(() => chosen([named('gpu', 1), named('big', 4)])).toThrow(
      expect.objectContaining({ code: 'E_POOL_UNKNOWN', hint: 'Choose a pool with --pool: gpu, big.' }),
    );
  });

  describe('of an engine that grants devices', () => {
    const wants = { gpus: 2, model: null, images: false, folders: true, lifetime: null, keys: {} };
    const granted = { ...named('gpu', 0, false), recipe: { ...pool.recipe, wants } };
    const none = { ...named('work', 0, false), recipe: { ...pool.recipe, wants: { ...wants, gpus: 0 } } };

    it('goes to a pool with as many devices as it asks for, and takes none by accident', () => {
      expect(chosen([granted, none])).toBe('work');
      expect(chosen([none, granted], 1)).toBe('gpu');
      const here = jobRequest.parse({ command: ['true'], devices: 1, pool: 'work' });
      const pools = new Map([none, granted].map((one) => [one.name, one]));
      expect(() => checkRequest(here, pools)).toThrow(
        expect.objectContaining({ hint: 'Choose a pool that has enough with --pool: gpu.' }),
      );
    });

    it('asks the engine for as many as the job does', () => {
      const asks = (devices: number | null) => jobRequest.parse({ command: ['true'], devices });
      expect(recipeOfJob(asks(1), granted.recipe)).toMatchObject({ image: 'x', wants: { gpus: 1 } });
      expect(recipeOfJob(asks(2), granted.recipe)).toBeNull();
      expect(recipeOfJob(asks(null), granted.recipe)).toBeNull();
    });

    it('may have volumes that this host lacks: they are those of its node', () => {
      const ask = jobRequest.parse({ command: ['true'], volumes: [{ ...data, host: '/scratch' }] });
      expect(
        checkRequest(
          ask,
          new Map([['work', none]]),
          () => null,
          () => false,
        ).volumes,
      ).toHaveLength(1);
    });
  });

  it.each([
    [[named('build'), named('test')], 1, '1 device', /^A pool with devices and "standby: false" gives/],
    [[named('gpu', 1), named('big', 4)], 2, '2 devices', /^A pool with devices and "standby: false" gives/],
    [[named('gpu', 1), named('big', 4)], 0, '0 devices', /^Give the config a pool without devices/],
  ])(
    'is refused if none has as many devices as it asks for, with no advice to choose one of them: case %#',
    (pools, asked, many, hint) => {
      expect(() => chosen(pools, asked)).toThrow(
        expect.objectContaining({
          code: 'E_JOB_REQUEST',
          message: `Cannot give the job ${many}: no pool of the own queue has agents with ${many}.`,
          hint: expect.stringMatching(hint),
        }),
      );
    },
  );
});

it('a name has no blanks at its ends, from whatever client it comes', () => {
  expect(jobRequest.parse({ command: ['true'], name: ' fit 3 ', user: 'ada ' })).toMatchObject({ name: 'fit 3', user: 'ada' });
  expect(jobRequest.safeParse({ command: ['true'], name: '  ' }).success).toBe(false);
});
