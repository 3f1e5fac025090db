/** What a series of measurements says. */

export interface Stats {
  readonly n: number;
  readonly p50: number;
  readonly p95: number;
  readonly min: number;
  readonly max: number;
}

/** Nearest-rank percentiles, rounded to 3 digits after the point. @throws RangeError for an empty series. */
export function stats(values: readonly number[]): Stats {
  if (values.length === 0) throw new RangeError('nothing was measured');
  const sorted = [...values].sort((a, b) => a - b);
  const at = (share: number): number => rounded(sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] ?? 0);
  return { n: sorted.length, p50: at(0.5), p95: at(0.95), min: at(1 / sorted.length), max: at(1) };
}

/** How a figure compares with its floor, pair by pair: both of a pair were measured right after each other. */
export interface Ratio {
  readonly pairs: number;
  /** Floor and figure, as they were measured. */
  readonly measured: readonly (readonly [floor: number, figure: number])[];
  /** figure / floor */
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

/** What else the machine does differs from minute to minute, and so is in both of a pair, but not in all pairs alike. */
export function ratio(measured: readonly (readonly [floor: number, figure: number])[]): Ratio {
  const each = measured.map(([floor, figure]) => figure / floor).sort((a, b) => a - b);
  const [low = Number.NaN, high = Number.NaN] = [each[Math.floor((each.length - 1) / 2)], each[Math.ceil((each.length - 1) / 2)]];
  const [min = Number.NaN, max = Number.NaN] = [each[0], each.at(-1)];
  return { pairs: each.length, measured, median: rounded((low + high) / 2), min: rounded(min), max: rounded(max) };
}

/** `90.1 % (median of 6 pairs, 84.2–95.3 %)` */
export function ratioText({ pairs, median, min, max }: Ratio): string {
  const percent = (share: number) => Math.round(share * 1000) / 10;
  return `${percent(median)} % (median of ${pairs} pairs, ${percent(min)}–${percent(max)} %)`;
}

/** Takes floor and figure in turn, beginning with either, so that neither always has what the other leaves behind. */
export async function inTurn(pairs: number, floor: () => Promise<number>, figure: () => Promise<number>): Promise<Ratio> {
  const measured: [number, number][] = [];
  for (let pair = 0; pair < pairs; pair++) {
    if (pair % 2 === 0) {
      const first = await floor();
      measured.push([first, await figure()]);
    } else {
      const first = await figure();
      measured.push([await floor(), first]);
    }
  }
  return ratio(measured);
}

export function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}
