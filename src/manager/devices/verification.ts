/**
 * Between two agents of a slot with devices: stores what the devices showed before, and afterwards requires them to be clean. A
 * faulty device goes to quarantine alone; it waits for one that a person uses; one that cannot be seen is not clean.
 */
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId, DeviceId, Slot, SlotEvent } from '../../core/slot.ts';
import type { Baseline } from '../../gpu/baseline.ts';
import { type Device, unknownGpu } from '../../gpu/inventory.ts';
import { baselineOf, judgeProof, type ProofVerdict } from '../../gpu/proof.ts';
import type { KnownDevice } from '../../store/devices.ts';
import type { Store } from '../../store/store.ts';
import { agentEnded, type OutcomeStore } from '../../verdict/outcomes.ts';
import type { DeviceLook, DeviceWatch } from './device-watch.ts';
import type { DeviceCheck, Quarantine, QuarantineParts } from './quarantine.ts';

interface VerifierParts extends Pick<QuarantineParts, 'clock' | 'log' | 'registry'> {
  readonly store: Pick<Store, 'bootId' | 'transaction'> & OutcomeStore;
  readonly watch: Pick<DeviceWatch, 'look' | 'ours' | 'fault'>;
  readonly quarantine: Pick<Quarantine, 'put' | 'putOff'>;
  readonly groupsOf: (slot: Slot, agent: AgentId) => readonly string[];
  /** Whether agents of this slot may share its devices with others. */
  readonly isShared: (key: string) => boolean;
  readonly isStopping: () => boolean;
  readonly missingNodes: (device: Device) => string[];
  /** Clocks of measurements. Default: none is locked. */
  readonly clocks?: {
    /** Locks those that the slot's agents need. @throws OnejobError E_CLOCKS */
    lock(slot: Slot, agent: AgentId, signal: AbortSignal): Promise<void>;
    /** Sets them back if they are locked; else, why the device must not be used. */
    reset(uuid: DeviceId, signal: AbortSignal): Promise<Dirty | null>;
  };
}

type Dirty = Extract<ProofVerdict, { kind: 'dirty' }>;

/** How old a look "just before the release" may be, ms: the loop must not wait for a tool. */
const baselineAge = 60_000;
/** ms until the next look: for what is just leaving, and for anything else. */
const firstPause = 500;
const longestPause = 5_000;
/** How long a stop waits for a proof, and how often that is checked, ms. */
const patience = 2_000;
const stopCheckEvery = 500;

type Note = (line: string | null) => void;

export class Verifier {
  readonly #parts: VerifierParts;

  constructor(parts: VerifierParts) {
    this.#parts = parts;
  }

  /** Whether the agent's devices are still clean, by the last look and the kernel log: much may have happened since the proof. */
  async before(slot: Slot, agent: AgentId, signal: AbortSignal): Promise<boolean> {
    if (slot.devices.length === 0) return true;
    const { clock, log, quarantine, registry, watch } = this.#parts;
    const look = await watch.look(baselineAge, signal);
    for (const uuid of slot.devices) {
      const verdict = this.#judge(slot, uuid, look, clock.now());
      const why = verdict.kind === 'clean' ? (watch.fault ?? registry.known.whyNot(uuid)) : verdict.message;
      if (why === null) continue;
      log.warn('job not released', { slot: slot.key, agent, device: uuid, reason: why });
      if (verdict.kind === 'dirty') quarantine.put(uuid, verdict, look.kernel.mark);
      return false;
    }
    registry.known.save(this.#baselines(slot, agent, look));
    await this.#parts.clocks?.lock(slot, agent, signal);
    return true;
  }

  /** Devices that no agent uses: stores a baseline when they are seen first; puts a failed one in quarantine. */
  idle(look: DeviceLook, devices: readonly Device[]): void {
    const { clock, quarantine, registry } = this.#parts;
    for (const device of devices) {
      const known = registry.known.get(device.uuid);
      if (known === undefined || registry.known.whyNot(device.uuid) !== null) continue;
      if (device.health.state === 'failed') {
        const verdict = this.#judge(null, device.uuid, look, clock.now());
        if (verdict.kind === 'dirty') quarantine.put(device.uuid, verdict, look.kernel.mark);
      } else if (known.baseline === null && registry.whyNot(device.uuid) === null) {
        registry.known.save([{ ...known, baseline: { agent: '', containers: [], saw: this.#baselineNow(device, look, null) } }]);
      }
    }
  }

  /** Resolves when each device of the slot is clean or was taken away from it. `note` gets what it waits for. */
  async prove(slot: Slot, agent: AgentId, note: Note, signal: AbortSignal): Promise<SlotEvent[]> {
    const open = new Set(slot.devices);
    using stop = overdueStop(this.#parts);
    try {
      const ends = AbortSignal.any([signal, stop.signal]);
      for (const uuid of open) await this.resetClocks(uuid, ends);
      await this.#untilJudged(slot, agent, open, note, ends);
    } catch (error) {
      if (signal.aborted || !stop.signal.aborted) throw error;
      // A person may stay for days and a tool may hang for ever; neither must keep onejob from stopping.
      for (const uuid of open) this.#parts.quarantine.putOff(uuid);
    }
    note(null);
    return [{ kind: 'proved', agent }];
  }

  /** Sets the clocks of a measurement back, if they are locked; a device where that fails goes to quarantine. */
  async resetClocks(uuid: DeviceId, signal: AbortSignal): Promise<void> {
    const { clocks, log, quarantine, registry } = this.#parts;
    const dirty = (await clocks?.reset(uuid, signal)) ?? null;
    if (dirty === null) return;
    log.error('clocks not set back', { device: uuid, reason: dirty.message });
    quarantine.put(uuid, dirty, registry.known.get(uuid)?.baseline?.saw?.mark ?? { seq: null, at: null });
  }

  /** Whether a device that is out of use would be found clean now. */
  async recheck(uuid: DeviceId, signal: AbortSignal): Promise<DeviceCheck> {
    const locked = (await this.#parts.clocks?.reset(uuid, signal)) ?? null;
    const look = await this.#parts.watch.look(0, signal);
    if (locked !== null) return { verdict: locked, mark: look.kernel.mark };
    return { verdict: this.#judge(null, uuid, look, this.#parts.clock.now()), mark: look.kernel.mark };
  }

  /** The slot's devices with what they show just before the agent's release. */
  #baselines(slot: Slot, agent: AgentId, look: DeviceLook): KnownDevice[] {
    const { groupsOf, isShared, registry, watch } = this.#parts;
    const containers = [...groupsOf(slot, agent)];
    const { alive } = watch.ours();
    return slot.devices.flatMap((uuid) => {
      const known = registry.known.get(uuid);
      const device = look.inventory.devices.find((one) => one.uuid === uuid);
      if (known === undefined || device === undefined) return [];
      const { baseline } = known;
      // An agent that shares the device with a running one is judged by the baseline of that one.
      const joins = baseline !== null && baseline.agent !== agent && alive.has(baseline.agent) && isShared(slot.key);
      if (joins) return [{ ...known, baseline: { ...baseline, containers: [...baseline.containers, agent, ...containers] } }];
      return [{ ...known, baseline: { agent, containers, saw: this.#baselineNow(device, look, baseline?.saw ?? null) } }];
    });
  }

  #baselineNow(device: Device, { inventory, kernel }: DeviceLook, before: Baseline | null): Baseline {
    return baselineOf(device, { boot: this.#parts.store.bootId, driver: inventory.driver, mark: kernel.mark, before });
  }

  /** Removes judged devices from `open`. */
  async #untilJudged(slot: Slot, agent: AgentId, open: Set<DeviceId>, note: Note, signal: AbortSignal): Promise<void> {
    const { clock, quarantine, registry, watch } = this.#parts;
    const began = clock.now();
    const since = new Map<DeviceId, number>();
    let last = new Map<DeviceId, string>();
    while (open.size > 0) {
      // A device that no longer belongs to the slot is judged elsewhere.
      for (const uuid of open) if (registry.known.whyNot(uuid) !== null) open.delete(uuid);
      if (open.size === 0) break;
      const look = await watch.look(0, signal);
      let wait = longestPause;
      const waiting = new Map<DeviceId, string>();
      for (const uuid of open) {
        const verdict = this.#judge(slot, uuid, look, since.get(uuid) ?? began);
        const isNews = last.get(uuid) !== verdict.kind;
        if (isNews) this.#record(slot, agent, uuid, verdict, clock.now() - began);
        if (verdict.kind === 'clean' || verdict.kind === 'dirty') {
          open.delete(uuid);
          if (verdict.kind === 'dirty') quarantine.put(uuid, verdict, look.kernel.mark);
          continue;
        }
        // What a person leaves behind gets its time from then on. A later look knows no more about an invisible process.
        if (verdict.kind === 'occupied' && verdict.evidence.holders.some(({ user }) => user !== null)) since.set(uuid, clock.now());
        waiting.set(uuid, verdict.kind);
        note(verdict.message);
        wait = Math.min(wait, verdict.kind === 'wait' ? firstPause + (clock.now() - began) / 10 : longestPause);
      }
      last = waiting;
      if (open.size === 0) continue;
      await sleep(clock, wait, signal);
      signal.throwIfAborted();
    }
  }

  /** `since`: when the device became free of what used it, core clock, ms. */
  #judge(slot: Slot | null, uuid: DeviceId, { inventory, owners, kernel }: DeviceLook, since: number): ProofVerdict {
    const { clock, isShared, missingNodes, registry, store, watch } = this.#parts;
    const { bootId } = store;
    const device = inventory.devices.find((one) => one.uuid === uuid);
    return judgeProof({
      // Without a baseline, as after a kill in the middle of a release, it must look like an idle device.
      baseline: registry.known.get(uuid)?.baseline?.saw ?? unseen(uuid, bootId, inventory.driver, device?.pciId ?? null),
      inventory,
      owners,
      ours: watch.ours(),
      kernel,
      boot: bootId,
      shared: slot !== null && isShared(slot.key),
      missingNodes: slot === null || device === undefined ? [] : missingNodes(device),
      now: clock.now(),
      since,
      wall: clock.wall(),
    });
  }

  #record(slot: Slot, agent: AgentId, device: DeviceId, verdict: ProofVerdict, took: number): void {
    const { clock, isShared, log, store } = this.#parts;
    const message = 'message' in verdict ? verdict.message : null;
    const evidence = { ...verdict.evidence, message, shared: isShared(slot.key) };
    store.transaction({ durable: false }, () => {
      store.proofs.add({ device, slot: slot.key, agent, verdict: verdict.kind, evidence, took, at: clock.wall() });
      agentEnded(store, agent);
    });
    if (verdict.kind === 'clean' || verdict.kind === 'wait') return;
    log.warn('device not clean', { device, slot: slot.key, verdict: verdict.kind, reason: message });
  }
}

/** Aborted once a stop has waited long enough. */
function overdueStop({ clock, isStopping }: { readonly clock: Clock; readonly isStopping: () => boolean }) {
  const overdue = new AbortController();
  let since: number | null = null;
  let cancel = (): void => {};
  const check = (): void => {
    if (isStopping()) since ??= clock.now();
    if (since !== null && clock.now() - since >= patience) overdue.abort();
    else cancel = clock.after(stopCheckEvery, check);
  };
  check();
  return { signal: overdue.signal, [Symbol.dispose]: () => cancel() };
}

function unseen(uuid: DeviceId, boot: string, driver: string | null, pciId: string | null): Baseline {
  const context = { boot, driver, mark: { seq: null, at: null }, before: null };
  return { ...baselineOf({ ...unknownGpu('nvidia', uuid, ''), pciId }, context), listsProcesses: true };
}
