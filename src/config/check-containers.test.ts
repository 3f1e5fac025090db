/** Pools whose jobs run containers with an engine of their own. */
import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const errors = (pool: string, more = '') => folder.check(`pools: { p: { containers: true, ${pool} } }\n${more}`);

it('a pool with containers alone is one of Docker', async () => {
  expect(await errors('agents: 2')).toEqual([]);
  expect((await folder.load('pools: { p: { containers: true } }\n')).config.pools[0]).toMatchObject({
    runtime: 'docker',
    recipe: { containers: { image: null } },
  });
});

it('a pool without has nothing of it in its recipe, so that earlier sandboxes stay what they are', async () => {
  const { config } = await folder.load('pools: { p: { containers: false } }\n');
  expect(config.pools[0]?.recipe).not.toHaveProperty('containers');
});

it.each([
  ['runtime: process', '"runtime" is process, which cannot give jobs an engine for containers; write "runtime: docker"'],
  ['runtime: c', '"runtime" is c, which cannot give jobs an engine', 'runtimes: { c: { type: slurm, folder: /s } }\n'],
  ['runtime: c', '"runtime" is c, which cannot give jobs an engine', 'runtimes: { c: { type: kubernetes } }\n'],
  ['network: host', '"network" is host: containers of jobs would open ports of this host'],
  ['hold_failed: 30m', '"hold_failed" is set'],
])('%s is refused: %s', async (pool, why, more = '') => {
  const found = (await errors(pool, more)).filter((line) => line.includes('containers'));
  expect(found).toEqual([expect.stringContaining(`pools.p.containers: is true, but ${why}`)]);
});

it.each([
  ['volumes: ["/tmp:/t:rw"]', 'pools.p.volumes: /tmp must be open to others'],
  ['caches: ["/tmp:/t"]', 'pools.p.caches: /tmp must be open to others'],
])('%s is written to by users that own nothing: %s', async (pool, why) => {
  expect(await errors(pool)).toEqual([expect.stringContaining(why)]);
});

it('named caches go with containers', async () => {
  expect(await errors('caches: ["a:/c"]')).toEqual([]);
});

it('a pool must not be named like the image of the engines', async () => {
  const [line] = await folder.check('pools: { engine: { containers: true } }\n');
  expect(line).toContain('the pool is named "engine", like the image of such engines; give the pool another name');
});
