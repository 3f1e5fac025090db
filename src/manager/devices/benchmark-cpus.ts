/**
 * The CPUs of slots for measurements: nothing else that onejob starts on this host may use them. What was made before they were
 * kept free is made anew, and a measurement waits for jobs that may still use them. An agent of an earlier manager may.
 */
import { type AgentId, agentsOf, type DeviceId, type Slot, type SlotEvent } from '../../core/slot.ts';
import { formatCpuList, parseCpuList } from '../../gpu/topology.ts';

interface BenchmarkCpusParts {
  /** Slots whose sandboxes this host places. */
  readonly slots: () => readonly Slot[];
  /** Slots for measurements with their devices; `cpus`: what config says. */
  readonly measuring: () => readonly {
    readonly key: string;
    readonly devices: readonly DeviceId[];
    readonly cpus: string | null;
  }[];
  /** Whether pools of this host need CPUs that are not for measurements. */
  readonly hasOthers: () => boolean;
  /** null where the host does not tell. */
  readonly near: (devices: readonly DeviceId[]) => Promise<string | null>;
  readonly online: () => Promise<string | null>;
  readonly post: (key: string, event: SlotEvent) => void;
  /** Whether slots for measurements may start has changed. */
  readonly changed: () => void;
}

export class BenchmarkCpus {
  readonly #parts: BenchmarkCpusParts;
  #own: ReadonlyMap<string, readonly number[]> = new Map();
  #problems: ReadonlyMap<string, string> = new Map();
  #all: readonly number[] = [];
  /** Who has which CPUs, as a text to compare; null: not known yet. */
  #version: string | null = null;
  readonly #made = new Map<AgentId, string | null>();
  #updating: Promise<void> = Promise.resolve();

  constructor(parts: BenchmarkCpusParts) {
    this.#parts = parts;
  }

  /** Devices may have moved to other slots. */
  update(): Promise<void> {
    this.#updating = this.#updating.then(() => this.#update());
    return this.#updating;
  }

  /** CPUs for a sandbox that is made now; null: all. `near`: those that its pool asks for. */
  async take(key: string, agent: AgentId, near: string | null): Promise<string | null> {
    await this.update();
    this.#made.set(agent, this.#version);
    const own = this.#own.get(key);
    if (own !== undefined) return formatCpuList(own);
    if (this.#own.size === 0) return near;
    const kept = new Set([...this.#own.values()].flat());
    const free = (cpus: readonly number[]): readonly number[] => cpus.filter((cpu) => !kept.has(cpu));
    const close = near === null ? [] : free(parseCpuList(near) ?? []);
    return formatCpuList(close.length > 0 ? close : free(this.#all));
  }

  /** Why a slot for measurements must not start now, as a sentence without its full stop; null if it may. */
  whyNot(key: string): string | null {
    const problem = this.#problems.get(key);
    if (problem !== undefined) return problem;
    if (!this.#own.has(key)) return 'its CPUs are not known yet';
    const old = this.#parts.slots().find((slot) => slot.key !== key && this.#isOld(slot.agent));
    return old === undefined ? null : `the agent of slot ${old.key} began before these CPUs were kept free, and may use them`;
  }

  slotChanged(slot: Slot): void {
    if (this.#version === null) return;
    this.#renew(slot);
    if (slot.agent.kind === 'free' || slot.agent.kind === 'proving') this.#parts.changed();
  }

  #isOld(lane: Slot['agent'] | Slot['standby']): boolean {
    return 'agent' in lane && lane.kind !== 'proving' && this.#made.get(lane.agent) !== this.#version;
  }

  /** Ends what has no job, and was made when the CPUs were others. */
  #renew({ key, standby, agent }: Slot): void {
    if (this.#isOld(standby)) this.#parts.post(key, { kind: 'discard' });
    if (agent.kind === 'idle' && this.#isOld(agent)) this.#parts.post(key, { kind: 'retire', agent: agent.agent });
  }

  async #update(): Promise<void> {
    const { measuring, near, online, slots, changed } = this.#parts;
    const wanted = measuring();
    const lists = await Promise.all(wanted.map(async ({ cpus, devices }) => cpus ?? (await near(devices))));
    const listed = await online();
    this.#all = (listed === null ? null : parseCpuList(listed)) ?? [];
    const [own, problems] = [new Map<string, readonly number[]>(), new Map<string, string>()];
    for (const [at, { key }] of wanted.entries()) {
      const cpus = parseCpuList(lists[at] ?? '');
      const why = this.#problemOf(cpus, own);
      if (why !== null) problems.set(key, why);
      else if (cpus !== null) own.set(key, cpus);
    }
    const version = JSON.stringify([...own]);
    const isNews = version !== this.#version || JSON.stringify([...problems]) !== JSON.stringify([...this.#problems]);
    [this.#own, this.#problems] = [own, problems];
    if (!isNews) return;
    this.#version = version;
    const present = new Set(slots().flatMap(agentsOf));
    for (const agent of this.#made.keys()) if (!present.has(agent)) this.#made.delete(agent);
    for (const slot of slots()) this.#renew(slot);
    changed();
  }

  /** Why a slot cannot have these CPUs for itself; null if it can. */
  #problemOf(cpus: readonly number[] | null, own: ReadonlyMap<string, readonly number[]>): string | null {
    const name = 'with "benchmark.cpus"';
    if (cpus === null) return `this host does not say which CPUs are near its card; name some ${name}`;
    const list = formatCpuList(cpus);
    if (cpus.some((cpu) => !this.#all.includes(cpu)))
      return `its CPUs ${list} are not all online: this host has ${formatCpuList(this.#all) || 'none that it names'}`;
    for (const [other, theirs] of own)
      if (theirs.some((cpu) => cpus.includes(cpu))) return `its CPUs ${list} are also those of slot ${other}; name others ${name}`;
    const kept = new Set([...own.values(), cpus].flat());
    if (this.#parts.hasOthers() && this.#all.every((cpu) => kept.has(cpu)))
      return `its CPUs ${list} are the last ones of this host, and other pools need some; name fewer ${name}`;
    return null;
  }
}
