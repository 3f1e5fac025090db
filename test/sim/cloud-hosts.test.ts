import { expect, it } from 'vitest';
import { CloudWorld } from './cloud-hosts.ts';

const seeds = Number(process.env.ONEJOB_CLOUD_SEEDS ?? 300);
const first = Number(process.env.ONEJOB_CLOUD_SEED ?? 0);

it(`keeps its promises about machines in ${seeds} bad days`, { timeout: 3_600_000 }, async () => {
  const sums = { created: 0, gone: 0, jobs: 0, kills: 0 };
  for (let seed = first; seed < first + seeds; seed += 1) {
    const world = new CloudWorld(seed);
    try {
      await world.play();
    } catch (error) {
      throw new Error(`seed ${seed}: ${error instanceof Error ? error.message : error}\n${world.story.slice(-60).join('\n')}`);
    }
    for (const key of ['created', 'gone', 'jobs', 'kills'] as const) sums[key] += world.counts[key];
  }
  console.info(sums);
  // The days were not quiet ones.
  expect(sums.created).toBeGreaterThan(seeds);
  expect(sums.jobs).toBeGreaterThan(seeds);
  expect(sums.kills).toBeGreaterThan(seeds / 2);
});

it('lists a cloud as often for a thousand hosts as for one', { timeout: 600_000 }, async () => {
  const hour = 3_600_000;
  const listed = async (hosts: number): Promise<{ lists: number; created: number }> => {
    const rules = { min: 1, max: 1, spot: 'never', lifetime: 12 * hour } as const;
    const world = new CloudWorld(1, { hosts, rules, trouble: 0, kills: false, isCalm: true, span: 3 * hour });
    await world.calm(hour / 3);
    const before = world.counts.lists;
    await world.calm(hour / 2);
    return { lists: world.counts.lists - before, created: world.counts.created };
  };
  // A list itself takes seconds.
  for (const hosts of [1, 1000]) {
    const { lists, created } = await listed(hosts);
    expect(created).toBe(hosts);
    expect(lists).toBeGreaterThan(25);
    expect(lists).toBeLessThanOrEqual(30);
  }
});
