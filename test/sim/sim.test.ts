/** What the simulator decides about a change: the corpus, then every scenario with its seeds. Nothing here is retried. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, type TaskMeta, test } from 'vitest';
import { type Played, Players } from './players.ts';
import { scenarios } from './scenarios/index.ts';
import type { Order } from './worker.ts';

const players = new Players({ count: 2, limit: 120_000 });
afterAll(() => players[Symbol.dispose]());

declare module 'vitest' {
  interface TaskMeta {
    /** What each play came to: two runs of one tree have the same, which `test/repeat.ts` compares. */
    plays?: string[];
  }
}

const folder = join(import.meta.dirname, 'corpus');
const saved = readdirSync(folder).filter((name) => name.endsWith('.json'));

/** What broke, with how to see it. */
async function wrong(orders: readonly Order[], meta: TaskMeta): Promise<string[]> {
  const played = await Promise.all(orders.map((order) => players.play(order)));
  meta.plays = played.map(({ scenario, seed, hash, counts }) => `${scenario}, seed ${seed}: ${hash} ${JSON.stringify(counts)}`);
  return played.filter(({ broken }) => broken !== null).map(inWords);
}

function inWords({ scenario, seed, broken, story }: Played): string {
  const told = story.slice(-30).map(([ms, what]) => `${(ms / 1_000).toFixed(3)} ${what}`);
  return [broken, `npm run sim -- --scenario ${scenario} --seed ${seed} --story`, ...told].join('\n');
}

test('what broke once holds now', { timeout: 240_000 }, async ({ task }) => {
  const orders = saved.map((name) => JSON.parse(readFileSync(join(folder, name), 'utf8')) as Order);
  expect(await wrong(orders, task.meta)).toEqual([]);
});

// Several at a time, so that no player waits for the last play of a scenario.
describe.concurrent('no promise is broken', () => {
  const played = scenarios.filter(({ seeds }) => seeds !== 0).map(({ name, seeds = 3 }) => [name, seeds] as const);
  test.for(played)('%s', { timeout: 240_000 }, async ([scenario, seeds], { task, expect }) => {
    const orders = Array.from({ length: seeds }, (_, seed) => ({ scenario, seed }));
    expect(await wrong(orders, task.meta)).toEqual([]);
  });
});

test('a seed tells the same story twice', { timeout: 60_000 }, async () => {
  const order = { scenario: 'kills', seed: 3 };
  const [one, other] = await Promise.all([players.play(order), players.play(order)]);
  expect({ hash: other.hash, counts: other.counts }).toEqual({ hash: one.hash, counts: one.counts });
});
