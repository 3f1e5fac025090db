/**
 * How much of the devices is in use, in memory only: recent samples by device, and what each running agent has used so far.
 *
 * A regular look already contains the memory of every device. The rest costs a call of NVIDIA's tool, so that is made only while an
 * agent works on a device or somebody has asked in the last minute. Nothing waits for a sample, and none begins during a look: the
 * proof between two agents must not notice. A tool that fails is left alone for a minute, without a message: looks report it.
 */
import type { VarianceView } from '../../contract/variance.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId, AgentLane, DeviceId, Slot } from '../../core/slot.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import { type DeviceUse, readUse, useQuery } from '../../gpu/nvidia/use.ts';
import type { ToolRunner } from '../../gpu/run.ts';
import { CardReadings } from './card-readings.ts';

/** `at`: wall clock, ms since the epoch. */
export type UseSample = DeviceUse & { readonly at: number };

/** What an agent has used so far of all its devices together, including what others use of a shared one. */
export interface AgentUse {
  /** Most memory seen in use at a time, MiB. */
  readonly peakMemoryMiB: number | null;
  /** Mean over all samples and devices, percent. */
  readonly meanUtilization: number | null;
}

interface DeviceUseParts {
  readonly clock: Clock;
  readonly runner: Pick<ToolRunner, 'run'>;
  /** Whether a look at the devices is in progress. */
  readonly isLooking: () => boolean;
  readonly slots: () => readonly Slot[];
  /** Whether the slot's jobs are measurements. Default: none is. */
  readonly isMeasuring?: (key: string) => boolean;
  /** Called after each answer of the tool. */
  readonly measured?: () => void;
}

/** ms between two samples, until the first one, until the tool is tried again, and for which somebody who asked counts. */
const [every, soon, tryAgain, interest] = [5_000, 1_000, 60_000, 60_000];
/** ms. As long as a look may take: the runner must not believe that the tool hangs because a sample was less patient. */
const limit = 30_000;
/** ms after which a sample is no longer how a device is now. */
const fresh = 60_000;
/** Samples kept of a device: an hour. */
const kept = 720;

/** Its time is of the monotonic clock, ms. `measured`: from the tool's own query, not from a look. */
interface Kept {
  readonly sample: UseSample;
  readonly time: number;
  readonly measured: boolean;
}

interface Account {
  peak: number | null;
  utilization: number;
  samples: number;
  readonly readings: CardReadings;
  /** When the card was asked last for it: core clock, ms; null: never. */
  readAt: number | null;
}

export class DeviceUses {
  readonly #parts: DeviceUseParts;
  readonly #samples = new Map<DeviceId, Kept[]>();
  readonly #accounts = new Map<AgentId, Account>();
  readonly #closed = new AbortController();
  #cancel: (() => void) | null = null;
  #askedAt = Number.NEGATIVE_INFINITY;
  #pausedUntil = Number.NEGATIVE_INFINITY;
  #hasNvidia = false;

  constructor(parts: DeviceUseParts) {
    this.#parts = parts;
  }

  /** A look has ended: memory of devices that no query has covered just now, such as MIG instances. */
  looked({ devices }: Inventory): void {
    this.#hasNvidia = devices.some(({ vendor, kind }) => vendor === 'nvidia' && kind === 'gpu');
    const now = this.#parts.clock.now();
    const isCovered = (uuid: DeviceId): boolean => {
      const last = this.#samples.get(uuid)?.at(-1);
      return last?.measured === true && now - last.time <= 2 * every;
    };
    const seen = devices.filter(({ uuid, memoryUsedMiB }) => memoryUsedMiB !== null && !isCovered(uuid));
    this.#take(new Map(seen.map(({ uuid, memoryUsedMiB }) => [uuid, { ...nothing, memoryUsedMiB }])), false);
    for (const [uuid, all] of this.#samples) if (now - (all.at(-1)?.time ?? 0) > kept * every) this.#samples.delete(uuid);
    if (this.#isNeeded()) this.#wake();
  }

  slotChanged(slot: Slot): void {
    if (works(slot)) this.#wake();
  }

  /** Somebody wants to know: samples are taken for the next minute. */
  asked(): void {
    this.#askedAt = this.#parts.clock.now();
    this.#wake();
  }

  /** How the device is now; null when that is unknown. */
  of(uuid: DeviceId): UseSample | null {
    const last = this.#samples.get(uuid)?.at(-1);
    return last === undefined || this.#parts.clock.now() - last.time > fresh ? null : last.sample;
  }

  /** Samples of the last hour at most that were taken at `since` (wall clock, ms) or later, oldest first. */
  recent(uuid: DeviceId, since: number): UseSample[] {
    return (this.#samples.get(uuid) ?? []).flatMap(({ sample }) => (sample.at >= since ? [sample] : []));
  }

  /** While its slot still knows the agent, including its end; null before its first sample. */
  useOf(agent: AgentId): AgentUse | null {
    const account = this.#accounts.get(agent);
    if (account === undefined) return null;
    const { peak, utilization, samples } = account;
    return { peakMemoryMiB: peak, meanUtilization: samples === 0 ? null : utilization / samples };
  }

  /** How its card was during its measurement. As long as `useOf`; null: it was not asked. */
  varianceOf(agent: AgentId, notes: readonly string[]): VarianceView | null {
    const account = this.#accounts.get(agent);
    return account === undefined || account.readAt === null ? null : account.readings.view(notes);
  }

  close(): void {
    this.#closed.abort(new Error('the samples are closed'));
    this.#cancel?.();
  }

  #isNeeded(): boolean {
    const { clock, slots } = this.#parts;
    return clock.now() - this.#askedAt < interest || slots().some(works);
  }

  #wake(): void {
    if (this.#cancel !== null || !this.#hasNvidia || this.#closed.signal.aborted) return;
    this.#arm(soon);
  }

  #arm(ms: number): void {
    this.#cancel = this.#parts.clock.after(ms, () => void this.#tick());
  }

  async #tick(): Promise<void> {
    const busy = this.#parts.isLooking();
    if (!busy && this.#isNeeded() && this.#parts.clock.now() >= this.#pausedUntil) await this.#measure();
    this.#cancel = null;
    if (!this.#closed.signal.aborted && this.#isNeeded()) this.#arm(busy ? soon : every);
  }

  async #measure(): Promise<void> {
    const { clock, runner } = this.#parts;
    const { signal } = this.#closed;
    const { code, hung, output } = await runner.run('nvidia-smi', useQuery, { limit, signal });
    if (signal.aborted) return;
    const uses = code === 0 && !hung ? readUse(output) : new Map<DeviceId, DeviceUse>();
    if (uses.size === 0) this.#pausedUntil = clock.now() + tryAgain;
    this.#take(uses, true);
    this.#parts.measured?.();
  }

  #take(uses: ReadonlyMap<DeviceId, DeviceUse>, measured: boolean): void {
    const { clock } = this.#parts;
    const [time, at] = [clock.now(), clock.wall()];
    for (const [uuid, use] of uses) {
      const samples = this.#samples.get(uuid) ?? [];
      samples.push({ sample: { ...use, at }, time, measured });
      if (samples.length > kept) samples.shift();
      this.#samples.set(uuid, samples);
    }
    this.#account(uses, measured);
  }

  #account(uses: ReadonlyMap<DeviceId, DeviceUse>, measured: boolean): void {
    const present = new Set<AgentId>();
    for (const slot of this.#parts.slots()) {
      if (slot.agent.kind !== 'free') present.add(slot.agent.agent);
      for (const { agent } of slot.leaving) present.add(agent);
      if (!works(slot)) continue;
      const own = slot.devices.flatMap((uuid) => uses.get(uuid) ?? []);
      if (own.length > 0) this.#add(slot.agent.agent, own);
      const [card] = own;
      if (card !== undefined && measured && this.#parts.isMeasuring?.(slot.key) === true) this.#read(slot.agent.agent, card);
    }
    for (const agent of this.#accounts.keys()) if (!present.has(agent)) this.#accounts.delete(agent);
  }

  /** A sample stands for the time since the last one, but not for a gap. */
  #read(agent: AgentId, card: DeviceUse): void {
    const account = this.#accountOf(agent);
    const now = this.#parts.clock.now();
    account.readings.add(card, account.readAt === null ? soon : Math.min(now - account.readAt, 2 * every));
    account.readAt = now;
  }

  #accountOf(agent: AgentId): Account {
    const known = this.#accounts.get(agent);
    if (known !== undefined) return known;
    const account = { peak: null, utilization: 0, samples: 0, readings: new CardReadings(), readAt: null };
    this.#accounts.set(agent, account);
    return account;
  }

  #add(agent: AgentId, uses: readonly DeviceUse[]): void {
    const account = this.#accountOf(agent);
    const memory = uses.flatMap(({ memoryUsedMiB }) => memoryUsedMiB ?? []);
    if (memory.length > 0) account.peak = Math.max(account.peak ?? 0, sum(memory));
    const shares = uses.flatMap(({ utilization }) => utilization ?? []);
    account.utilization += sum(shares);
    account.samples += shares.length;
  }
}

const nothing: DeviceUse = {
  memoryUsedMiB: null,
  utilization: null,
  temperature: null,
  powerW: null,
  smClockMHz: null,
  memoryClockMHz: null,
  throttled: null,
};

/** Whether its agent has a job, and with it devices. An agent that waits for one may do so for days. */
function works(slot: Slot): slot is Slot & { readonly agent: Extract<AgentLane, { readonly kind: 'busy' | 'ending' }> } {
  return slot.devices.length > 0 && (slot.agent.kind === 'busy' || slot.agent.kind === 'ending');
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
