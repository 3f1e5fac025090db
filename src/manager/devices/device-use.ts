/**
 * How much of the devices is in use, in memory only: recent samples by device, and what each running agent has used so far.
 *
 * A regular look already contains the memory of every device. The rest costs a call of NVIDIA's tool, so that is made only while an
 * agent works on a device or somebody has asked in the last minute. Nothing waits for a sample, and none begins during a look: the
 * proof between two agents must not notice. A tool that fails is left alone for a minute, without a message: looks report it.
 */
import type { Clock } from '../../core/clock.ts';
import type { AgentId, AgentLane, DeviceId, Slot } from '../../core/slot.ts';
import type { Inventory } from '../../gpu/inventory.ts';
import { type DeviceUse, readUse, useQuery } from '../../gpu/nvidia/use.ts';
import type { ToolRunner } from '../../gpu/run.ts';

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
}

export type DeviceUses = ReturnType<typeof createDeviceUses>;

export function createDeviceUses({ clock, runner, isLooking, slots }: DeviceUseParts) {
  const samples = new Map<DeviceId, Kept[]>();
  const accounts = new Map<AgentId, Account>();
  const closed = new AbortController();
  let cancel: (() => void) | null = null;
  let askedAt = Number.NEGATIVE_INFINITY;
  let pausedUntil = Number.NEGATIVE_INFINITY;
  let hasNvidia = false;

  const isNeeded = (): boolean => clock.now() - askedAt < interest || slots().some((slot) => works(slot));

  function wake(): void {
    if (cancel !== null || !hasNvidia || closed.signal.aborted) return;
    arm(soon);
  }

  function arm(ms: number): void {
    cancel = clock.after(ms, () => void tick());
  }

  async function tick(): Promise<void> {
    const busy = isLooking();
    if (!busy && isNeeded() && clock.now() >= pausedUntil) await measure();
    cancel = null;
    if (!closed.signal.aborted && isNeeded()) arm(busy ? soon : every);
  }

  async function measure(): Promise<void> {
    const { code, hung, output } = await runner.run('nvidia-smi', useQuery, { limit, signal: closed.signal });
    if (closed.signal.aborted) return;
    const found = code === 0 && !hung ? readUse(output) : new Map<DeviceId, DeviceUse>();
    if (found.size === 0) pausedUntil = clock.now() + tryAgain;
    take(found, true);
  }

  function take(found: ReadonlyMap<DeviceId, DeviceUse>, measured: boolean): void {
    const [time, at] = [clock.now(), clock.wall()];
    for (const [uuid, use] of found) {
      const before = samples.get(uuid) ?? [];
      before.push({ sample: { ...use, at }, time, measured });
      if (before.length > kept) before.shift();
      samples.set(uuid, before);
    }
    account(found);
  }

  function account(found: ReadonlyMap<DeviceId, DeviceUse>): void {
    const there = new Set<AgentId>();
    for (const slot of slots()) {
      if (slot.agent.kind !== 'free') there.add(slot.agent.agent);
      for (const { agent } of slot.leaving) there.add(agent);
      if (!works(slot)) continue;
      const uses = slot.devices.flatMap((uuid) => found.get(uuid) ?? []);
      if (uses.length > 0) add(slot.agent.agent, uses);
    }
    for (const agent of accounts.keys()) if (!there.has(agent)) accounts.delete(agent);
  }

  function add(agent: AgentId, uses: readonly DeviceUse[]): void {
    const one = accounts.get(agent) ?? { peak: null, utilization: 0, samples: 0 };
    accounts.set(agent, one);
    const memory = uses.flatMap(({ memoryUsedMiB }) => memoryUsedMiB ?? []);
    if (memory.length > 0) one.peak = Math.max(one.peak ?? 0, sum(memory));
    const shares = uses.flatMap(({ utilization }) => utilization ?? []);
    one.utilization += sum(shares);
    one.samples += shares.length;
  }

  return {
    /** A look has ended: memory of devices that no query has covered just now, such as MIG instances. */
    looked({ devices }: Inventory): void {
      hasNvidia = devices.some(({ vendor, kind }) => vendor === 'nvidia' && kind === 'gpu');
      const now = clock.now();
      const isCovered = (uuid: DeviceId): boolean => {
        const last = samples.get(uuid)?.at(-1);
        return last?.measured === true && now - last.time <= 2 * every;
      };
      const seen = devices.filter(({ uuid, memoryUsedMiB }) => memoryUsedMiB !== null && !isCovered(uuid));
      take(new Map(seen.map(({ uuid, memoryUsedMiB }) => [uuid, { ...nothing, memoryUsedMiB }])), false);
      for (const [uuid, all] of samples) if (now - (all.at(-1)?.time ?? 0) > kept * every) samples.delete(uuid);
      if (isNeeded()) wake();
    },
    /** A slot has changed. */
    changed(slot: Slot): void {
      if (works(slot)) wake();
    },
    /** Somebody wants to know: samples are taken for the next minute. */
    asked(): void {
      askedAt = clock.now();
      wake();
    },
    /** How the device is now; null when that is unknown. */
    of(uuid: DeviceId): UseSample | null {
      const last = samples.get(uuid)?.at(-1);
      return last === undefined || clock.now() - last.time > fresh ? null : last.sample;
    },
    /** Samples of the last hour at most that were taken at `since` (wall clock, ms) or later, oldest first. */
    recent: (uuid: DeviceId, since: number): UseSample[] =>
      (samples.get(uuid) ?? []).flatMap(({ sample }) => (sample.at >= since ? [sample] : [])),
    /** While its slot still knows the agent, including its end; null before its first sample. */
    useOf(agent: AgentId): AgentUse | null {
      const one = accounts.get(agent);
      if (one === undefined) return null;
      return { peakMemoryMiB: one.peak, meanUtilization: one.samples === 0 ? null : one.utilization / one.samples };
    },
    close(): void {
      closed.abort(new Error('the samples are closed'));
      cancel?.();
    },
  };
}

const nothing: DeviceUse = { memoryUsedMiB: null, utilization: null, temperature: null, powerW: null };

/** Whether its agent has a job, and with it devices. An agent that waits for one may do so for days. */
function works(slot: Slot): slot is Slot & { readonly agent: Extract<AgentLane, { readonly kind: 'busy' | 'ending' }> } {
  return slot.devices.length > 0 && (slot.agent.kind === 'busy' || slot.agent.kind === 'ending');
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}
