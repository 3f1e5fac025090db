import { beforeEach, expect, it } from 'vitest';
import type { Mount, Recipe, Runtime } from '../../ports/runtime.ts';
import type { Pool } from '../loop/pool.ts';
import { createDiagnosticSandboxes } from './probe-sandbox.ts';

const patient = new AbortController().signal;
const mount = (host: string, container: string, cache: Mount['cache']) => ({ host, container, cache, readOnly: false });
const recipe = {
  image: 'x:1',
  pull: 'always',
  network: 'default',
  mounts: [mount('/c/{name}', '/c', null), mount('/state/caches/p', '/root', { name: 'home' })],
  tmpfs: { '/t': 'size=1m' },
  env: { A: '{name}' },
};

let made: unknown[];
let fingerprint: string | null;
beforeEach(() => {
  [made, fingerprint] = [[], 'f'];
});

function trial({ image = 'x:1' as string | null, known = null as string | null, images = true } = {}) {
  const runtime = {
    name: 'sim',
    capabilities: { images },
    fingerprint: async () => fingerprint,
    hostAddress: async (network: string, port: number) => `${network}:${port}`,
  } as unknown as Runtime;
  const service = { equip: (one: Recipe) => ({ ...one, user: 'agent' }) };
  const pool = { config: { name: 'p', recipe: { ...recipe, image } }, runtime, service } as unknown as Pool;
  return createDiagnosticSandboxes({
    reconciler: { pools: [pool] },
    nameOf: (key) => `box-${key.replace('/', '-')}`,
    fingerprints: { madeFrom: () => known },
    probe: {
      look: async ({ spec, script }) => {
        made.push(spec.recipe);
        return `said ${script}`;
      },
    },
  });
}

it("is like the pool's first slot, with what its service adds, without its caches, and fetches nothing", async () => {
  const sandbox = trial().like('p');
  expect(await sandbox?.ask('hello', patient)).toBe('said hello');
  expect(made).toEqual([
    {
      image: 'x:1',
      pull: 'never',
      network: 'default',
      user: 'agent',
      env: { A: 'box-p-1' },
      mounts: [mount('/c/box-p-1', '/c', null)],
      tmpfs: { '/t': 'size=1m', '/root': expect.stringContaining('exec') },
    },
  ]);
  expect(await sandbox?.hostAddress(7070, patient)).toBe('default:7070');
});

it('a change of the recipe is another kind of sandbox, on its own network', async () => {
  const one = trial();
  const [own, other] = [one.like('p'), one.like('p', (base) => ({ ...base, network: 'internet' }))];
  expect(own?.kind).not.toBe(other?.kind);
  expect(one.like('p')?.kind).toBe(own?.kind);
  expect(await other?.hostAddress(1, patient)).toBe('internet:1');
});

it('a chosen or built image is used as it is known; without one there is no sandbox', () => {
  expect(trial({ image: null, known: 'built:1' }).like('p')?.recipe.image).toBe('built:1');
  expect(trial({ image: null }).like('p')).toBeNull();
  expect(trial({ image: null, images: false }).like('p')).not.toBeNull();
  expect(trial().like('other')).toBeNull();
});

it('a missing image is reported, not pulled', async () => {
  fingerprint = null;
  await expect(trial().like('p')?.ask('hello', patient)).rejects.toMatchObject({
    code: 'E_IMAGE_NOT_FOUND',
    hint: /docker pull x:1/,
  });
  expect(made).toEqual([]);
});
