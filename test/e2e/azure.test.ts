/** Azure Pipelines from end to end: the stand-in, the scripted agent in its image on the real Engine, and the daemon between. */
import { expect, test } from 'vitest';
import { azureBench } from '../support/azure.ts';
import { onejob } from '../support/onejob.ts';

test('jobs run one after the other, each in a fresh agent, and nothing is left at the service but the placeholder', async () => {
  await using bench = await azureBench();
  const { azure, pool } = bench;
  await using here = await onejob({ config: bench.config() });
  const daemon = await here.up();
  const placed = await azure.next('agentAdded');
  expect(placed.name).toMatch(/^onejob-placeholder-/);
  const results = [];
  for (let n = 1; n <= 3; n++) results.push(await azure.queue(pool, { script: `echo job ${n}` }).finished);
  expect(results.map(({ result }) => result)).toEqual(['succeeded', 'succeeded', 'succeeded']);
  expect(results[2]?.log).toContain('job 3');
  const agents = azure.requests(pool).map(({ agent }) => agent?.name);
  expect(new Set(agents).size).toBe(3);
  await daemon.stop();
  expect(azure.agents(pool).map(({ name }) => name)).toEqual([placed.name]);
  expect(azure.log.filter(({ leaked }) => leaked)).toEqual([]);
  expect(azure.log.filter(({ identity, route }) => identity === 'pat' && /session|message|plan/.test(route))).toEqual([]);
});
