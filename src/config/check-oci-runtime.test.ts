/** Pools whose sandboxes another OCI runtime starts. */
import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const errors = (pool: string, more = '') => folder.check(`pools: { p: { ${pool} } }\n${more}`);

it('a pool with one is one of Docker, and one without has nothing of it in its recipe', async () => {
  expect(await errors('oci_runtime: runsc')).toEqual([]);
  const { config } = await folder.load('pools: { p: { oci_runtime: runsc }, q: { image: "debian:12" } }\n');
  expect(config.pools[0]).toMatchObject({ runtime: 'docker', recipe: { ociRuntime: 'runsc' } });
  expect(config.pools[1]?.recipe).not.toHaveProperty('ociRuntime');
});

it.each([
  ['oci_runtime: runsc, runtime: process', 'oci_runtime: is runsc, but "runtime" is process, and only an Engine has OCI runtimes'],
  ['oci_runtime: runsc, runtime: c', 'oci_runtime: is runsc, but "runtime" is c', 'runtimes: { c: { type: kubernetes } }\n'],
  ['oci_runtime: runsc, containers: true', 'oci_runtime: is runsc, but "containers" gives agents an engine of their own'],
  ['oci_runtime: runsc, unsafe: { privileged: true }', 'oci_runtime: is runsc, but "unsafe" takes away what it protects'],
  ['oci_runtime: runsc, network: host', 'oci_runtime: is runsc, but "network" is host'],
  ['oci_runtime: runsc, grant: runtime', 'oci_runtime: is runsc, but "grant" is runtime'],
  ['grant: runtime, trust: { oci_runtime: runsc }', 'trust.oci_runtime: is runsc, but "grant" is runtime'],
  [
    'containers: true, trust: { oci_runtime: runsc, containers: allow }',
    'trust.oci_runtime: is runsc, but "containers" gives agents an engine of their own, which needs the kernel of this host; write trust: { containers: refuse }',
  ],
])('%s is refused', async (pool, why, more = '') => {
  const found = (await errors(pool, more)).filter((line) => line.includes('oci_runtime'));
  expect(found).toEqual([expect.stringContaining(`pools.p.${why}`)]);
});

it('a path is refused', async () => {
  expect(await errors('oci_runtime: "../runsc"')).toEqual([expect.stringContaining('an OCI runtime such as "runsc"')]);
});
