/** Findings of `doctor` about pools. */
import { expect, test } from 'vitest';
import { poolLike } from '../../test/kit/pool.ts';
import type { Recipe } from '../ports/runtime.ts';
import { imageFindings, poolFindings } from './findings.ts';
import { Pause } from './loop/pause.ts';
import type { Reconciler } from './loop/reconciler.ts';

const never = new AbortController().signal;

function world(...images: readonly (string | null)[]) {
  const asked: (string | null)[] = [];
  const runtime = {
    capabilities: { grants: 'host' },
    name: 'docker',
    imageTrouble: async ({ image }: Recipe) => {
      asked.push(image);
      return image === 'there:1' ? null : 'docker.io does not have it.';
    },
  };
  const pools = images.map((image, at) => poolLike({ name: `p${at}`, recipe: { image, pull: 'missing' } }, { runtime }));
  const reconciler = { pools, pause: new Pause() } as unknown as Reconciler;
  return { pools, asked, reconciler };
}

test('an unavailable image is an error before any job needs it, checked once, and named', async () => {
  const { pools, asked } = world('there:1', 'gone:1', 'gone:1');
  const missing = {
    level: 'error',
    message: 'It waits for image "gone:1" on docker: docker.io does not have it.',
    hint: null,
    code: 'image-waits',
  };
  expect(await imageFindings(pools, never)).toEqual([
    { subject: 'pool p1', ...missing },
    { subject: 'pool p2', ...missing },
  ]);
  expect(asked).toEqual(['there:1', 'gone:1']);
});

test('an unavailable image for jobs is named, before it is needed and after', async () => {
  const { reconciler } = world();
  const ready = { images: ['there:1', 'gone:2'], pull: 'missing', logins: null } as const;
  const [pool] = world('there:1').pools;
  Object.assign(pool?.config.recipe ?? {}, { containers: { image: null, ready } });
  const message = 'It waits for image "gone:2" on docker: docker.io does not have it.';
  expect(await imageFindings([...(pool ? [pool] : [])], never)).toMatchObject([{ subject: 'pool p0', message }]);
  pool?.failed({ code: 'E_IMAGE_NOT_FOUND', message: 'Image "gone:2" is not there.', retry: false }, 'prepare', 0, 0);
  Object.assign(reconciler, { pools: [pool] });
  expect(poolFindings(reconciler)).toMatchObject([
    { message: 'It waits for image "gone:2" on docker: Image "gone:2" is not there.' },
  ]);
});

test('an image that was tried is reported once, with the answer', async () => {
  const { pools, reconciler } = world('gone:1');
  pools[0]?.failed({ code: 'E_IMAGE_DENIED', message: 'docker.io refused.', retry: false }, 'prepare', 0, 0);
  expect(poolFindings(reconciler)).toEqual([
    {
      level: 'error',
      subject: 'pool p0',
      message: 'It waits for image "gone:1" on docker: docker.io refused.',
      hint: null,
      code: 'image-waits',
    },
  ]);
  expect(await imageFindings(pools, never)).toEqual([]);
});

test('an Engine that is away is its own finding', async () => {
  const { pools } = world('gone:1');
  for (const pool of pools) pool.away = 'Cannot reach the Engine.';
  expect(await imageFindings(pools, never)).toEqual([]);
});
