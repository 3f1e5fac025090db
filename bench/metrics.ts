/** What one scrape of `/metrics` costs the daemon, and what of that is prom-client's. */
import { MetricsWorld } from '../test/support/metrics-world.ts';
import { rounded, type Stats, stats } from './stats.ts';

export interface MetricsFigure {
  /** ms for a scrape. */
  readonly scrape: Stats;
  /** ms to read the state alone, without prom-client. */
  readonly reading: Stats;
  readonly kilobytes: number;
  readonly lines: number;
}

/** So many slots with running jobs in 20 pools, and 16 cards. Each scrape finds ten ended jobs more. */
export async function metricsFigure(slots: number, rounds: number): Promise<MetricsFigure> {
  const pools = Array.from({ length: 20 }, (_, n) => `pool-${n}`);
  using world = new MetricsWorld({ pools, slots: Math.ceil(slots / (pools.length - 1)), cards: 16 });
  await world.fill();
  const [scrape, reading]: [number[], number[]] = [[], []];
  let text = '';
  for (let round = -10; round < rounds; round++) {
    for (let n = 0; n < 10; n++) world.ended(`j${round}-${n}`, 'passed', pools[n] ?? '');
    const began = performance.now();
    text = await world.text();
    const scraped = performance.now();
    world.readings();
    const read = performance.now();
    if (round < 0) continue;
    scrape.push(rounded(scraped - began));
    reading.push(rounded(read - scraped));
  }
  const lines = text.split('\n').length;
  return { scrape: stats(scrape), reading: stats(reading), kilobytes: Math.round(text.length / 1000), lines };
}
