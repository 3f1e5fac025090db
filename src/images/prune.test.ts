import { join } from 'node:path';
import { expect, test } from 'vitest';
import { settings } from '../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../test/kit/fake-engine.ts';
import { scratch } from '../../test/support/scratch.ts';
import { createImageBuilder } from './builder.ts';
import { BuiltImages } from './built.ts';
import { imageLabels } from './plan.ts';

const never = new AbortController().signal;

test('a built image that lost its name is removed; an image without one that somebody made of it is not', async () => {
  using dir = scratch();
  const Labels = { [imageLabels.owner]: 'me', [imageLabels.hash]: 'h' };
  // The containerd store takes only the name of an image that another is made of.
  const there = ['sha256:built', 'sha256:theirs'].map((Id) => ({ Id, RepoTags: [], Created: 1, Labels }));
  const removed: string[] = [];
  await using fake = fakeEngine('prune', (path, { method }, reply) => {
    if (method === 'DELETE') removed.push(path);
    reply.end(JSON.stringify(path === '/images/json' ? there : []));
  });
  await fake.start();
  const built = new BuiltImages(join(dir.path, 'built'));
  built.add('sha256:built');
  const builder = await createImageBuilder({ environment: settings(fake.socket), owner: 'me', packages: dir.path, built });
  expect(await builder.prune(() => false, never)).toEqual([]);
  expect(removed).toEqual(['/images/sha256:built']);
  builder.close();
});
