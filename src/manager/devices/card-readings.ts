/** Sums up samples of one card. Each value is counted, so that a job of a week takes no more room than one of a minute. */
import type { VarianceView } from '../../contract/variance.ts';
import type { DeviceUse } from '../../gpu/nvidia/use.ts';

const measured = ['temperature', 'smClockMHz', 'memoryClockMHz'] as const;

export class CardReadings {
  readonly #counts = { temperature: new Map(), smClockMHz: new Map(), memoryClockMHz: new Map() } satisfies Counts;
  readonly #throttled = new Map<string, number>();
  #samples = 0;

  /** `ms`: for how long the sample stands. */
  add(use: DeviceUse, ms: number): void {
    this.#samples += 1;
    for (const name of measured) {
      const value = use[name];
      const counts: Map<number, number> = this.#counts[name];
      if (value !== null) counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    for (const reason of use.throttled ?? []) this.#throttled.set(reason, (this.#throttled.get(reason) ?? 0) + ms);
  }

  view(notes: readonly string[]): VarianceView {
    const { temperature, smClockMHz, memoryClockMHz } = this.#counts;
    return {
      samples: this.#samples,
      temperature: spreadOf(temperature),
      smClockMHz: spreadOf(smClockMHz),
      memoryClockMHz: spreadOf(memoryClockMHz),
      throttled: [...this.#throttled].map(([reason, ms]) => ({ reason, seconds: Math.round(ms / 1000) })),
      notes: [...notes],
    };
  }
}

type Counts = Record<(typeof measured)[number], Map<number, number>>;

function spreadOf(counts: ReadonlyMap<number, number>): VarianceView['temperature'] {
  const values = [...counts].toSorted(([a], [b]) => a - b);
  const [first, last] = [values[0], values.at(-1)];
  if (first === undefined || last === undefined) return null;
  const half = values.reduce((sum, [, count]) => sum + count, 0) / 2;
  let below = 0;
  for (const [value, count] of values) {
    below += count;
    if (below >= half) return { min: first[0], median: value, max: last[0] };
  }
  return null;
}
