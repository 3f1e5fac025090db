/** The dice of a day in the clouds, and which faults it has. Each is on in some seeds only, so that it is also seen alone. */
import type { SimTime } from './time.ts';

/** Faults that last for a while, and what they do meanwhile. */
export const spells = [
  /** Every call is refused: the credential has expired. It also begins in the middle of a destroy. */
  'expired',
  /** Every create call finds a quota of 0. */
  'quota',
  /** No zone has any type. */
  'stockout',
  /** Lists lack one zone, and say so. */
  'half lists',
  /** What is created does not join, or says that its set-up failed. */
  'dead boots',
  /** Every call is throttled. */
  'throttled',
  /** Machines cannot reach the manager, which knows it. */
  'deaf',
  /** The same, and the manager does not know. */
  'cut',
  /** The CI service does not say how many jobs wait, which counts as none. */
  'no count',
] as const;

/** Faults that a day has or has not. */
export const habits = [
  /** A create call fails and leaves a group, a disk or an interface. */
  'pieces',
  /** Machines join late, also after they were given up. */
  'late joins',
  /** Machines report what is not true. */
  'lies',
  /** The numbers of waiting jobs come late. */
  'late counts',
  /** Somebody else uses a join token. */
  'theft',
  /** The manager has another owner after some restarts. */
  'new owner',
  /** Hosts have a budget. */
  'budget',
  /** A second manager, with its own ledger, has the same owner. */
  'two managers',
  /** A sweep without a ledger runs every hour. */
  'sweeps',
  /** After the day no manager comes back, so that the sweep alone ends everything. */
  'never back',
  /** A machine that crashes has its job run again. */
  'requeues',
] as const;

export type Fault = (typeof spells)[number] | (typeof habits)[number];

const isSpell = (fault: Fault): fault is (typeof spells)[number] => spells.some((one) => one === fault);

const minute = 60_000;

export class BadDay {
  readonly time: SimTime;
  readonly faults: ReadonlySet<Fault>;
  readonly trouble: number;
  readonly random: () => number;
  /** Until when each spell lasts; ms of virtual time. */
  readonly #until = new Map<Fault, number>();
  /** ms of virtual time when the last spell ended or will end. */
  clearFrom = 0;
  isTroubled = true;

  constructor(
    time: SimTime,
    random: () => number,
    { trouble, faults }: { readonly trouble?: number; readonly faults?: readonly Fault[] },
  ) {
    this.time = time;
    this.random = random;
    this.trouble = trouble ?? this.pick([0, 0.02, 0.1, 0.3]);
    const share = this.pick([0, 0.1, 0.25, 0.5]);
    const drawn = [...spells, ...habits].filter(() => this.chance(share));
    this.faults = new Set(faults ?? drawn);
  }

  pick<T>(of: readonly T[]): T {
    return of[Math.floor(this.random() * of.length)] as T;
  }

  chance(share: number): boolean {
    return this.random() < share;
  }

  /** Whether something goes wrong now. */
  fails(share = 1): boolean {
    return this.isTroubled && this.chance(this.trouble * share);
  }

  /** Whether the fault of a day happens now. */
  has(fault: (typeof habits)[number], share = 1): boolean {
    return this.isTroubled && this.faults.has(fault) && this.chance(share);
  }

  lasts(spell: (typeof spells)[number]): boolean {
    return this.isTroubled && this.time.now < (this.#until.get(spell) ?? 0);
  }

  begin(spell: (typeof spells)[number]): void {
    if (!this.isTroubled || !this.faults.has(spell)) return;
    const until = this.time.now + this.random() * this.pick([10 * minute, 60 * minute, 240 * minute]);
    this.#until.set(spell, Math.max(until, this.#until.get(spell) ?? 0));
    this.clearFrom = Math.max(this.clearFrom, until);
  }

  /** Lets spells begin now and then. */
  spellsCome(told: (what: string) => void): void {
    const mine = [...this.faults].filter(isSpell);
    if (mine.length === 0) return;
    this.time.after(this.random() * 180 * minute, () => {
      if (!this.isTroubled) return;
      const spell = this.pick(mine);
      this.begin(spell);
      told(`from now on: ${spell}`);
      this.spellsCome(told);
    });
  }

  /** All faults are over. */
  end(): void {
    this.isTroubled = false;
    this.clearFrom = Math.min(this.clearFrom, this.time.now);
  }
}
