import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import type { BenchmarkConfig } from '../../config/config.ts';
import { emptySlot, type Slot } from '../../core/slot.ts';
import { Cooling } from './benchmark-cooling.ts';
import type { UseSample } from './device-use.ts';

let clock: ReturnType<typeof handClock>;
let slot: Slot;
let benchmark: BenchmarkConfig;
let device: string | null;
let idle: number | null;
let samples: UseSample[];
let asked: number;
let cooled: number;
let cooling: Cooling;

beforeEach(() => {
  clock = handClock();
  slot = emptySlot({ key: 'bench/1', runtime: 'docker', grace: 0, devices: ['GPU-0'] });
  benchmark = { cpus: null, clock: null, cool_to: null, cool_wait: 600_000 };
  device = 'GPU-0';
  idle = null;
  samples = [];
  asked = 0;
  cooled = 0;
  cooling = new Cooling({
    clock,
    log: { info() {}, warn() {}, error() {} },
    use: {
      recent: (_, since) => samples.filter(({ at }) => at >= since),
      asked() {
        asked += 1;
      },
    },
    slots: () => [{ slot, benchmark }],
    device: () => device,
    idle: () => idle,
    learn: (_, celsius) => {
      idle = celsius;
    },
    cooled() {
      cooled += 1;
    },
  });
});
afterEach(() => cooling.close());

/** A sample every five seconds, each with the next temperature. */
function sees(...temperatures: readonly (number | null)[]): void {
  for (const temperature of temperatures) {
    clock.advance(5_000);
    const rest = { memoryUsedMiB: 0, utilization: 0, powerW: 1, smClockMHz: 1, memoryClockMHz: 1, throttled: [] };
    samples.push({ ...rest, temperature, at: clock.wall() });
    cooling.check();
  }
}
const times = (count: number, temperature: number | null) => Array.from({ length: count }, () => temperature);
const job = (agent: Slot['agent']): void => {
  slot = { ...slot, agent };
  cooling.slotChanged(slot);
};
const why = () => cooling.whyNot('bench/1');

describe('the idle temperature', () => {
  test('is the first one that stays the same for two minutes', () => {
    cooling.check();
    expect(why()).toMatch(/^the temperature of GPU-0 is not known, until \d\d:\d\d at most$/);
    sees(60, 55, 50, 45, 41, ...times(20, 40));
    expect(why()).toMatch(/^GPU-0 has 40 °C, and must have the same temperature for 2 min, until/);
    sees(...times(5, 40));
    expect(why()).toBeNull();
    expect(idle).toBe(40);
    expect(cooled).toBe(1);
  });

  test('falls with a cooler room, and rises with a warmer one', () => {
    idle = 40;
    cooling.check();
    sees(37);
    expect([why(), idle]).toEqual([null, 37]);
    job({ kind: 'busy', agent: 'a', job: 'j', since: 0, due: null });
    job({ kind: 'free' });
    sees(60, ...times(24, 45));
    expect(why()).not.toBeNull();
    sees(45);
    expect([why(), idle]).toEqual([null, 45]);
  });

  test('does not count where config says a temperature', () => {
    benchmark = { ...benchmark, cool_to: 30 };
    cooling.check();
    sees(...times(60, 31));
    expect(why()).toMatch(/^GPU-0 has 31 °C, and must cool to 30 °C, until/);
    sees(30);
    expect([why(), idle]).toEqual([null, null]);
  });
});

describe('after a job', () => {
  beforeEach(() => {
    idle = 40;
    cooling.check();
    sees(41);
    expect(why()).toBeNull();
    job({ kind: 'busy', agent: 'a', job: 'j', since: 0, due: null });
  });

  test('the next one waits from its end on, not one step with it, until the card is nearly as cool', () => {
    // The end and the next release are planned before the slot has changed.
    expect(why()).toBe('its card must be cool before its next job');
    sees(80, 80);
    job({ kind: 'proving', agent: 'a', since: 0 });
    job({ kind: 'free' });
    sees(70, 50, 44);
    expect(why()).toMatch(/^GPU-0 has 44 °C, and must cool to 43 °C, until/);
    sees(43);
    expect(why()).toBeNull();
    expect(cooling.noteOf('bench/1')).toBeNull();
  });

  test('a card that does not cool delays it for ten minutes only, which is said', () => {
    job({ kind: 'free' });
    sees(...[...times(119, 60)].map((_, n) => 60 + (n % 2) * 3));
    expect(why()).not.toBeNull();
    clock.advance(5_000);
    expect(why()).toBeNull();
    expect(cooled).toBe(2);
    expect(cooling.noteOf('bench/1')).toBe('its card was not cool after 10m: GPU-0 has 60 °C, and must cool to 43 °C');
  });

  test('so does one whose temperature nobody knows', () => {
    job({ kind: 'free' });
    sees(...times(10, null));
    clock.advance(600_000);
    expect(why()).toBeNull();
    expect(cooling.noteOf('bench/1')).toContain('the temperature of GPU-0 is not known');
  });

  test('samples of before count for nothing', () => {
    sees(20);
    clock.advance(1_000);
    job({ kind: 'free' });
    expect(why()).toMatch(/^the temperature of GPU-0 is not known/);
  });

  test('samples are asked for while it waits, and not after that', () => {
    job({ kind: 'free' });
    const before = asked;
    sees(50);
    expect(asked).toBeGreaterThan(before);
    sees(40);
    const after = asked;
    sees(40, 40);
    expect(asked).toBe(after);
    expect(clock.next()).toBeNull();
  });

  test('a card that a person has meanwhile must cool anew', () => {
    job({ kind: 'free' });
    device = null;
    clock.advance(700_000);
    cooling.check();
    device = 'GPU-0';
    cooling.check();
    sees(70);
    expect(why()).toMatch(/^GPU-0 has 70 °C, and must cool to 43 °C/);
  });
});
