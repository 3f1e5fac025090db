/** How warm and fast a card was during a job, so that a slow job can be told from a slow card. */
import { z } from 'zod';

/** null: the card does not report it. */
const spread = z.object({ min: z.number(), median: z.number(), max: z.number() }).nullable();

export const varianceView = z.object({
  /** How often the card was asked: about every 5 s. */
  samples: z.int(),
  /** °C */
  temperature: spread,
  smClockMHz: spread,
  memoryClockMHz: spread,
  /** What slowed its clocks down, and for about how long. */
  throttled: z.array(z.object({ reason: z.string(), seconds: z.int() })),
  /** What else makes it hard to compare, as sentences without their full stops. */
  notes: z.array(z.string()),
});
export type VarianceView = z.infer<typeof varianceView>;

/** `41–63 °C (median 60), SM 1980 MHz, memory 2619 MHz; throttled: thermal 12 s`. */
export function varianceText({ temperature, smClockMHz, memoryClockMHz, throttled, notes }: VarianceView): string {
  const of = (name: string, seen: z.infer<typeof spread>, unit: string): string[] => {
    if (seen === null) return [];
    const { min, median, max } = seen;
    return [`${name}${min === max ? `${min} ${unit}` : `${min}–${max} ${unit} (median ${median})`}`];
  };
  const card = [...of('', temperature, '°C'), ...of('SM ', smClockMHz, 'MHz'), ...of('memory ', memoryClockMHz, 'MHz')];
  const slowed = throttled.map(({ reason, seconds }) => `${reason} ${seconds} s`).join(', ');
  return [card.join(', '), slowed === '' ? 'not throttled' : `throttled: ${slowed}`, ...notes].join('; ');
}
