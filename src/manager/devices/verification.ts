/**
 * Between two agents of a slot with devices: stores what the devices showed before, and afterwards requires them to be clean. A
 * faulty device goes to quarantine alone; it waits for one that a person uses; one that cannot be seen is not clean.
 */
import { sleep } from '../../core/clock.ts';
import type { AgentId, DeviceId, Slot, SlotEvent } from '../../core/slot.ts';
import type { Baseline } from '../../gpu/baseline.ts';
import { type Device, unknownGpu } from '../../gpu/inventory.ts';
import type { KernelMark } from '../../gpu/kernel-log.ts';
import { baselineOf, judgeProof, type ProofVerdict } from '../../gpu/proof.ts';
import type { Proof } from '../../store/devices.ts';
import type { Store } from '../../store/store.ts';
import { agentEnded, type OutcomeStore } from '../../verdict/outcomes.ts';
import type { DeviceLook, DeviceWatch } from './device-watch.ts';
import type { Quarantine, QuarantineParts } from './quarantine.ts';

interface VerifierParts extends Pick<QuarantineParts, 'clock' | 'log' | 'registry'> {
  readonly store: Pick<Store, 'bootId' | 'transaction'> & OutcomeStore;
  readonly watch: DeviceWatch;
  readonly quarantine: Quarantine;
  readonly groupsOf: (slot: Slot, agent: AgentId) => readonly string[];
  /** Whether agents of this slot may share its devices with others. */
  readonly isShared: (key: string) => boolean;
  readonly isStopping: () => boolean;
  readonly missingNodes: (device: Device) => string[];
}

/** How old a look "just before the release" may be, ms: the loop must not wait for a tool. */
const baselineAge = 60_000;
/** ms until the next look: for what is just leaving, and for anything else. */
const firstPause = 500;
const longestPause = 5_000;
/** How long a stop waits for a proof, and how often that is checked, ms. */
const patience = 2_000;
const thoughtOf = 500;

type Note = (line: string | null) => void;

export function createVerifier(parts: VerifierParts) {
  const { registry, store, watch, groupsOf, log, quarantine, clock, isStopping, isShared, missingNodes } = parts;
  const { bootId } = store;

  /** Whether the agent's devices are still clean, by the last look and the kernel log: much may have happened since the proof. */
  async function before(slot: Slot, agent: AgentId, signal: AbortSignal): Promise<boolean> {
    if (slot.devices.length === 0) return true;
    const look = await watch.look(baselineAge, signal);
    for (const uuid of slot.devices) {
      const verdict = judged(slot, uuid, look, clock.now());
      const why = verdict.kind === 'clean' ? (watch.fault ?? registry.known.whyNot(uuid)) : verdict.message;
      if (why === null) continue;
      log.warn('job not released', { slot: slot.key, agent, device: uuid, reason: why });
      if (verdict.kind === 'dirty') quarantine.put(uuid, verdict, look.kernel.mark);
      return false;
    }
    const containers = [...groupsOf(slot, agent)];
    const alive = watch.ours().alive;
    const seen = slot.devices.flatMap((uuid) => {
      const known = registry.known.get(uuid);
      const device = look.inventory.devices.find((one) => one.uuid === uuid);
      if (known === undefined || device === undefined) return [];
      const { baseline } = known;
      // An agent that shares the device with a running one is judged by the baseline of that one.
      const joins = baseline !== null && baseline.agent !== agent && alive.has(baseline.agent) && isShared(slot.key);
      if (joins) return [{ ...known, baseline: { ...baseline, containers: [...baseline.containers, agent, ...containers] } }];
      return [{ ...known, baseline: { agent, containers, saw: baselineNow(device, look, baseline?.saw) as never } }];
    });
    registry.known.save(seen);
    return true;
  }

  /** Devices that no agent uses: stores a baseline when they are seen first; puts a failed one in quarantine. */
  function idle(look: DeviceLook, devices: readonly Device[]): void {
    for (const device of devices) {
      const known = registry.known.get(device.uuid);
      if (known === undefined || registry.known.whyNot(device.uuid) !== null) continue;
      if (device.health.state === 'failed') {
        const verdict = judged(null, device.uuid, look, clock.now());
        if (verdict.kind === 'dirty') quarantine.put(device.uuid, verdict, look.kernel.mark);
      } else if (known.baseline === null && registry.whyNot(device.uuid) === null) {
        registry.known.save([{ ...known, baseline: { agent: '', containers: [], saw: baselineNow(device, look, null) as never } }]);
      }
    }
  }

  function baselineNow(device: Device, { inventory, kernel }: DeviceLook, before: unknown): Baseline {
    const context = { boot: bootId, driver: inventory.driver, mark: kernel.mark };
    return baselineOf(device, { ...context, before: (before ?? null) as Baseline | null });
  }

  /** Resolves when each device of the slot is clean or was taken away from it. `note` gets what it waits for. */
  async function prove(slot: Slot, agent: AgentId, note: Note, signal: AbortSignal): Promise<SlotEvent[]> {
    const open = new Set(slot.devices);
    using late = whenLate();
    try {
      await untilJudged(slot, agent, open, note, AbortSignal.any([signal, late.signal]));
    } catch (error) {
      if (signal.aborted || !late.signal.aborted) throw error;
      // A person may stay for days and a tool may hang for ever; neither must keep onejob from stopping.
      for (const uuid of open) quarantine.putOff(uuid);
    }
    note(null);
    return [{ kind: 'proved', agent }];
  }

  /** Removes judged devices from `open`. */
  async function untilJudged(slot: Slot, agent: AgentId, open: Set<DeviceId>, note: Note, signal: AbortSignal): Promise<void> {
    const began = clock.now();
    const since = new Map<DeviceId, number>();
    let last = new Map<DeviceId, string>();
    while (open.size > 0) {
      // A device that no longer belongs to the slot is judged elsewhere.
      for (const uuid of open) if (registry.known.whyNot(uuid) !== null) open.delete(uuid);
      if (open.size === 0) break;
      const look = await watch.look(0, signal);
      let wait = longestPause;
      const said = new Map<DeviceId, string>();
      for (const uuid of open) {
        const verdict = judged(slot, uuid, look, since.get(uuid) ?? began);
        const isNews = last.get(uuid) !== verdict.kind;
        if (isNews) keep(slot, agent, uuid, verdict, clock.now() - began);
        if (verdict.kind === 'clean' || verdict.kind === 'dirty') {
          open.delete(uuid);
          if (verdict.kind === 'dirty') quarantine.put(uuid, verdict, look.kernel.mark);
          continue;
        }
        // What a person leaves behind gets its time from then on. A later look knows no more about an invisible process.
        if (verdict.kind === 'occupied' && verdict.evidence.holders.some(({ user }) => user !== null)) since.set(uuid, clock.now());
        said.set(uuid, verdict.kind);
        note(verdict.message);
        wait = Math.min(wait, verdict.kind === 'wait' ? firstPause + (clock.now() - began) / 10 : longestPause);
      }
      last = said;
      if (open.size === 0) continue;
      await sleep(clock, wait, signal);
      signal.throwIfAborted();
    }
  }

  /** Aborted once a stop has waited long enough. */
  function whenLate() {
    const late = new AbortController();
    let since: number | null = null;
    let cancel = (): void => {};
    const think = (): void => {
      if (isStopping()) since ??= clock.now();
      if (since !== null && clock.now() - since >= patience) late.abort();
      else cancel = clock.after(thoughtOf, think);
    };
    think();
    return { signal: late.signal, [Symbol.dispose]: () => cancel() };
  }

  /** Whether a device that is out of use would be found clean now. */
  async function again(uuid: DeviceId, signal: AbortSignal): Promise<{ verdict: ProofVerdict; mark: KernelMark }> {
    const look = await watch.look(0, signal);
    return { verdict: judged(null, uuid, look, clock.now()), mark: look.kernel.mark };
  }

  function judged(slot: Slot | null, uuid: DeviceId, { inventory, owners, kernel }: DeviceLook, since: number): ProofVerdict {
    const device = inventory.devices.find((one) => one.uuid === uuid);
    const kept = (registry.known.get(uuid)?.baseline?.saw ?? null) as Baseline | null;
    // Without a baseline, as after a kill in the middle of a release, it must look like an idle device.
    const baseline = kept ?? unseen(uuid, bootId, inventory.driver, device?.pciId ?? null);
    return judgeProof({
      baseline,
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

  function keep(slot: Slot, agent: AgentId, device: DeviceId, verdict: ProofVerdict, took: number): void {
    const message = 'message' in verdict ? verdict.message : null;
    const evidence = { ...verdict.evidence, message, shared: isShared(slot.key) } as unknown as Proof['evidence'];
    const proof = { device, slot: slot.key, agent, verdict: verdict.kind, evidence, took, at: clock.wall() };
    store.transaction({ durable: false }, () => {
      store.proofs.add(proof);
      agentEnded(store, agent);
    });
    if (verdict.kind === 'clean' || verdict.kind === 'wait') return;
    log.warn('device not clean', { device, slot: slot.key, verdict: verdict.kind, reason: message });
  }

  return { before, idle, prove, again };
}

function unseen(uuid: DeviceId, boot: string, driver: string | null, pciId: string | null): Baseline {
  const context = { boot, driver, mark: { seq: null, at: null }, before: null };
  return { ...baselineOf({ ...unknownGpu('nvidia', uuid, ''), pciId }, context), listsProcesses: true };
}
