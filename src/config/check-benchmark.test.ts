import { afterAll, expect, test } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const load = (pool: string) => folder.load(`pools: { a: { ${pool} } }\nruntimes: { cluster: { type: slurm } }\n`);

test('true is all that it needs, with one whole card of NVIDIA', async () => {
  const { config, errors } = await load('benchmark: true, devices: 1');
  expect(errors).toEqual([]);
  expect(config.pools[0]?.benchmark).toEqual({ cpus: null, clock: null, cool_to: null, cool_wait: 600_000 });
  expect(config.pools[0]?.devices).toMatchObject({ vendor: 'nvidia', mig: false });
});

test('a map says more, and false is as without', async () => {
  const { config, errors } = await load(
    'benchmark: { cpus: "8-15", clock: 1410, cool_to: 45, cool_wait: 5m }, devices: { count: 1 }',
  );
  expect(errors).toEqual([]);
  expect(config.pools[0]?.benchmark).toEqual({ cpus: '8-15', clock: 1410, cool_to: 45, cool_wait: 300_000 });
  expect((await load('benchmark: false, devices: 1')).config.pools[0]?.benchmark).toBeUndefined();
});

test.each([
  ['benchmark: true', 'benchmark: is set, but "devices" is 0, and a measurement is of one card; write "devices: 1"'],
  ['benchmark: true, devices: 2', '"devices" is 2'],
  ['benchmark: true, devices: all', '"devices" is all'],
  ['benchmark: true, devices: { share: 2 }', '"share" is 2, so other jobs would be on the card'],
  ['benchmark: true, devices: { mig: true }', '"mig" asks for instances'],
  ['benchmark: true, devices: { vendor: amd }', '"vendor" is amd, and onejob measures only cards of NVIDIA'],
  ['benchmark: true, devices: 1, standby: false', '"standby" is false, so other pools would use the card'],
  ['benchmark: true, devices: 1, runtime: cluster', '"runtime" is cluster, which chooses devices and CPUs itself'],
  ['benchmark: { cpus: "0-3" }, devices: 1, agents: 2', 'benchmark.cpus: is set, but "agents" is 2'],
  ['benchmark: { cpus: "3-" }, devices: 1', 'benchmark.cpus: "3-" is not CPUs such as "8-15,24-31"'],
  ['benchmark: { clok: 3 }, devices: 1', 'benchmark.clok: unknown key; did you mean "clock"?'],
])('%s', async (pool, line) => {
  const { errors } = await load(pool);
  expect(errors.map(({ key, message }) => `${key}: ${message}`)).toEqual([expect.stringContaining(line)]);
});
