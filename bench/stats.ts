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

export function rounded(value: number): number {
  return Math.round(value * 1000) / 1000;
}
