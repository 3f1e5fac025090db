import { expect, it } from 'vitest';
import { CloudWorld } from './cloud-hosts.ts';

const seeds = Number(process.env.ONEJOB_CLOUD_SEEDS ?? 300);
const first = Number(process.env.ONEJOB_CLOUD_SEED ?? 0);

/** Plays it to the end. @throws Error with its story */
async function played(name: string, world: CloudWorld): Promise<CloudWorld> {
  try {
    await world.play();
    return world;
  } catch (error) {
    throw new Error(
      `${name}: ${error instanceof Error ? error.message : error}\n${world.story[0]}\n${world.story.slice(-60).join('\n')}`,
    );
  }
}

it(`keeps its promises about machines in ${seeds} bad days`, { timeout: 3_600_000 }, async () => {
  const sums = { created: 0, gone: 0, jobs: 0, kills: 0, pieces: 0, sweeps: 0, late: 0, cleared: 0 };
  for (let seed = first; seed < first + seeds; seed += 1) {
    const { counts, account } = await played(`seed ${seed}`, new CloudWorld(seed));
    const all: Record<string, number> = { ...counts, ...account.counts };
    for (const key of Object.keys(sums) as (keyof typeof sums)[]) sums[key] += all[key] ?? 0;
  }
  console.info(sums);
  if (seeds < 100) return;
  // The days were not quiet ones.
  expect(sums.created).toBeGreaterThan(seeds);
  expect(sums.jobs).toBeGreaterThan(seeds);
  expect(sums.kills).toBeGreaterThan(seeds / 2);
  for (const key of ['pieces', 'sweeps', 'late', 'cleared'] as const) expect([key, sums[key]]).not.toEqual([key, 0]);
});

it('a manager killed at any boundary of create and destroy makes one machine for a job, and nothing lives on', {
  timeout: 600_000,
}, async () => {
  // Two create calls time out: one whose machine exists all the same, and one without.
  for (const timeouts of [0, 1, 2]) {
    const minute = 60_000;
    const rules = { min: 0, max: 1, spot: 'never', lifetime: 360 * minute, agents: 1 } as const;
    const play = { rules, timeouts, trouble: 0, kills: false, isCalm: true, faults: [], span: minute };
    const { effects } = await played('without a kill', new CloudWorld(5, play));
    for (let killAt = 1; killAt <= effects; killAt += 1) {
      const world = await played(`${timeouts} time-outs, killed at ${killAt}`, new CloudWorld(5, { ...play, killAt }));
      expect([killAt, world.counts.kills, world.account.machines.length]).toEqual([killAt, 1, 1]);
    }
  }
});

it('lists a cloud as often for a thousand hosts as for one', { timeout: 600_000 }, async () => {
  const hour = 3_600_000;
  const listed = async (hosts: number): Promise<{ lists: number; created: number }> => {
    const rules = { min: 1, max: 1, spot: 'never', lifetime: 12 * hour } as const;
    const world = new CloudWorld(1, { hosts, rules, trouble: 0, kills: false, isCalm: true, faults: [] });
    await world.calm(hour / 3);
    const before = world.account.counts.lists;
    await world.calm(hour / 2);
    return { lists: world.account.counts.lists - before, created: world.account.counts.created };
  };
  // A list itself takes seconds.
  for (const hosts of [1, 1000]) {
    const { lists, created } = await listed(hosts);
    expect(created).toBe(hosts);
    expect(lists).toBeGreaterThan(25);
    expect(lists).toBeLessThanOrEqual(30);
  }
});
