/**
 * Lets a measurement begin once its card is as cool as one without work. The idle temperature is learnt: it is the last one that
 * stayed the same for two minutes, or a lower one that was seen since. A card that does not cool delays a job only for as long as
 * config allows, and the record of the job says so.
 */
import type { Log } from '../../base/log.ts';
import { formatDuration, formatTime } from '../../base/units.ts';
import type { BenchmarkConfig } from '../../config/config.ts';
import { type Clock, Timers } from '../../core/clock.ts';
import type { DeviceId, Slot } from '../../core/slot.ts';
import type { DeviceUses, UseSample } from './device-use.ts';

interface CoolingParts {
  readonly clock: Clock;
  readonly log: Log;
  readonly use: Pick<DeviceUses, 'recent' | 'asked'>;
  /** Slots for measurements, each with what its pool asks for. */
  readonly slots: () => readonly { readonly slot: Slot; readonly benchmark: BenchmarkConfig }[];
  /** What the slot is to have; null while it has none, or may not use it. */
  readonly device: (key: string) => DeviceId | null;
  /** °C; null: not learnt yet. */
  readonly idle: (uuid: DeviceId) => number | null;
  readonly learn: (uuid: DeviceId, idle: number) => void;
  /** The slot may start. */
  readonly cooled: (key: string) => void;
}

/** °C above the idle temperature that count as cool, and by which a temperature that stays the same may differ. */
const [margin, jitter] = [3, 1];
/** ms for which a temperature stays the same. */
const still = 120_000;

interface Gate {
  isOpen: boolean;
  /** Since when it waits: core clock, and wall clock, ms; null: it does not, as while an agent works. */
  since: { readonly time: number; readonly wall: number } | null;
  /** Why the card was not cool when the last job began. */
  note: string | null;
}

export class Cooling {
  readonly #parts: CoolingParts;
  readonly #timers: Timers;
  readonly #gates = new Map<string, Gate>();

  constructor(parts: CoolingParts) {
    this.#parts = parts;
    this.#timers = new Timers(parts.clock);
  }

  /** Why its next job waits, as a sentence without its full stop; null: it does not. */
  whyNot(key: string): string | null {
    const { clock, slots } = this.#parts;
    const { isOpen, since } = this.#gate(key);
    if (isOpen) return null;
    const benchmark = slots().find(({ slot }) => slot.key === key)?.benchmark;
    const uuid = this.#parts.device(key);
    if (since === null || uuid === null || benchmark === undefined) return 'its card must be cool before its next job';
    const until = `until ${formatTime(since.wall + benchmark.cool_wait, clock.wall())} at most`;
    return `${this.#text(uuid, benchmark, since.wall)}, ${until}`;
  }

  /** Why the card was warm when the slot's job began; null: it was not. */
  noteOf(key: string): string | null {
    return this.#gates.get(key)?.note ?? null;
  }

  slotChanged({ key, agent }: Slot): void {
    // Closed while the job runs: its end and the next release are one commit.
    if (agent.kind !== 'free') this.#close(key);
    else this.check();
  }

  /** After each sample, and whenever devices may have moved. */
  check(): void {
    const { clock, device, slots, use } = this.#parts;
    for (const { slot, benchmark } of slots()) {
      const { key } = slot;
      const gate = this.#gate(key);
      const uuid = slot.agent.kind === 'free' ? device(key) : null;
      if (uuid === null) this.#close(key);
      else if (!gate.isOpen) {
        gate.since ??= { time: clock.now(), wall: clock.wall() };
        use.asked();
        this.#timers.arm(key, gate.since.time + benchmark.cool_wait, () => this.check());
        this.#judge(key, uuid, gate.since, benchmark);
      }
    }
  }

  close(): void {
    this.#timers.clear();
  }

  #gate(key: string): Gate {
    const known = this.#gates.get(key);
    if (known !== undefined) return known;
    const gate: Gate = { isOpen: false, since: null, note: null };
    this.#gates.set(key, gate);
    return gate;
  }

  #close(key: string): void {
    const gate = this.#gate(key);
    gate.isOpen = false;
    gate.since = null;
    this.#timers.cancel(key);
  }

  #judge(key: string, uuid: DeviceId, since: NonNullable<Gate['since']>, benchmark: BenchmarkConfig): void {
    const { clock, idle, learn, log } = this.#parts;
    const seen = this.#seen(uuid, since.wall);
    const now = seen.at(-1)?.temperature ?? null;
    const known = idle(uuid);
    const isIdle = now !== null && benchmark.cool_to === null && ((known !== null && now < known) || isStill(seen));
    if (isIdle && now !== known) learn(uuid, now);
    const limit = this.#limit(uuid, benchmark);
    if (isIdle || (now !== null && limit !== null && now <= limit)) {
      this.#open(key, null);
      return;
    }
    if (clock.now() - since.time < benchmark.cool_wait) return;
    const text = this.#text(uuid, benchmark, since.wall);
    log.warn('benchmark begins warm', { slot: key, reason: text });
    this.#open(key, `its card was not cool after ${formatDuration(benchmark.cool_wait)}: ${text}`);
  }

  #open(key: string, note: string | null): void {
    const gate = this.#gate(key);
    gate.isOpen = true;
    gate.note = note;
    this.#timers.cancel(key);
    this.#parts.cooled(key);
  }

  #limit(uuid: DeviceId, { cool_to: limit }: BenchmarkConfig): number | null {
    const idle = this.#parts.idle(uuid);
    return limit ?? (idle === null ? null : idle + margin);
  }

  #text(uuid: DeviceId, benchmark: BenchmarkConfig, since: number): string {
    const now = this.#seen(uuid, since).at(-1)?.temperature ?? null;
    if (now === null) return `the temperature of ${uuid} is not known`;
    const limit = this.#limit(uuid, benchmark);
    if (limit === null) return `${uuid} has ${now} °C, and must have the same temperature for 2 min`;
    return `${uuid} has ${now} °C, and must cool to ${limit} °C`;
  }

  #seen(uuid: DeviceId, since: number): UseSample[] {
    // One of the moment in which the job ended says how warm the card was in it.
    return this.#parts.use.recent(uuid, since).filter(({ at, temperature }) => at > since && temperature !== null);
  }
}

/** Whether the temperature has stayed the same up to the last sample. */
function isStill(samples: readonly UseSample[]): boolean {
  const last = samples.at(-1);
  let [least, most] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const { at, temperature } of samples.toReversed()) {
    if (last === undefined || temperature === null) return false;
    [least, most] = [Math.min(least, temperature), Math.max(most, temperature)];
    if (most - least > jitter) return false;
    if (last.at - at >= still) return true;
  }
  return false;
}
