/**
 * GPUs that exist as data: what NVIDIA's tool prints of them, who is on them, and what the kernel says. The device manager and its
 * parsers are the real ones. What a card really is, the world knows; a job may be let at none that is not clean.
 */
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readEnvironment } from '../../src/config/environment.ts';
import { sleep } from '../../src/core/clock.ts';
import type { AgentLane, Slot } from '../../src/core/slot.ts';
import { createLocks, type DeviceLocks } from '../../src/gpu/lock.ts';
import { useQuery } from '../../src/gpu/nvidia/use.ts';
import type { ToolReply, ToolRunner } from '../../src/gpu/run.ts';
import type { KnownDevice } from '../../src/store/devices.ts';
import { openStore } from '../../src/store/store.ts';
import { emptyHost, plugIn } from '../support/fake-tools/fake-tools.ts';
import { card, driver580, instance, listText, queryXml, type StubGpu, useText, versionText } from '../support/gpu-cards.ts';
import type { SimHost } from './host.ts';
import { asWorld, type SimProcess } from './process.ts';
import type { Seen } from './runtime.ts';
import type { Happening, MakeOutside, Outside } from './scenario.ts';

interface OnCard {
  readonly pid: number;
  /** UUIDs of what it is on: whole cards, or MIG instances. */
  readonly devices: readonly string[];
  /** Agent that it belongs to; null: a person's. */
  readonly agent: string | null;
  readonly since: number;
  /** When its agent ended; null while that lives, and for a person's. */
  endedAt: number | null;
  /** MiB that it uses. */
  mib: number;
}

/** ms for which a look may stand before a release (`baselineAge` in `src/manager/devices/verification.ts`), and what a slow one takes. */
const lookMayBeOld = 75_000;
/** ms in which what has just happened may not have been seen. */
const justNow = 1_000;
/** ms that the quickest look takes: a proof begins after the end of the agent. */
const lookTakes = 40;
/** ms after which a device that is clean is tried again at the latest, and with it some time for the look. */
const longestQuarantine = 3_900_000;
/** ms that a proof may take when nothing but what an agent left is in its way. */
const longestProof = 180_000;
/** MiB that a process uses. */
const usualMiB = 512;
/** MiB of a card that a job leaves in use without a process that has it. */
const keptMiB = 2_048;

const times = <T>(count: number, make: (n: number) => T): T[] => Array.from({ length: count }, (_, n) => make(n));
/** An A100 that is cut into instances; the host's are counted from `first`. */
const cut = (n: number, first: number, count: number): StubGpu =>
  card(n, {
    model: 'NVIDIA A100-SXM4-80GB',
    architecture: 'Ampere',
    instances: times(count, (part) => instance(first + part, 7 + part)),
  });

/** Four H100, and an A100 with three instances. */
export const gpus: MakeOutside = (host, random) => machine(host, random, [...times(4, card), cut(4, 0, 3)]);

/** What a host of 18 agents has: two A100 with seven instances each, three RTX 5000, and an H100. */
export const gpusOf18: MakeOutside = (host, random) => {
  const turing = { model: 'Quadro RTX 5000', architecture: 'Turing', memoryMiB: 16_384 };
  return machine(host, random, [cut(0, 0, 7), cut(1, 7, 7), ...times(3, (n) => card(2 + n, turing)), card(5)]);
};

const memoryOf = (on: readonly OnCard[]): number => on.reduce((sum, { mib }) => sum + mib, 0);
const agentOf = (lane: AgentLane): string | null => (lane.kind === 'free' ? null : lane.agent);

function machine(host: SimHost, random: () => number, cards: readonly StubGpu[]): Outside {
  const { engine, time } = host;
  const root = join(host.dir, 'machine');
  const broken: string[] = [];
  const cardOf = new Map(
    cards.flatMap((one) => [[one.uuid, one] as const, ...(one.instances ?? []).map((part) => [part.uuid, one] as const)]),
  );
  const processes = new Map<number, OnCard>();
  /** Cards that are off the list, and since when. */
  const lost = new Map<string, number>();
  /** Cards of which the kernel has said that they need a reset, and when. */
  const bad = new Map<string, number>();
  /** Devices of sandboxes that live. */
  const held = new Map<string, Set<Seen>>();
  let mode: 'ok' | 'hang' | 'exit 18' = 'ok';
  let printed: Map<string, string> | null = null;
  let driver = driver580;
  let drivers = 0;
  let driverSince = Number.NEGATIVE_INFINITY;
  /** Devices with memory in use that nobody has, and since when. */
  const kept = new Map<string, number>();
  /** What a manager of somebody else on this host has locked. */
  const rivals = new Set<string>();
  let rival: DeviceLocks | null = null;
  let leave: { readonly ms: number; readonly isMemory: boolean; readonly mib: number } | null = null;
  let records = 0;
  let pids = 10_000;
  const count = {
    gpuReleases: 0,
    falls: 0,
    hangs: 0,
    people: 0,
    leftovers: 0,
    xids: 0,
    tools: 0,
    drivers: 0,
    reserved: 0,
    rivals: 0,
    rivalsRefused: 0,
    shared: 0,
  };

  mkdirSync(root);
  const { sys, proc } = emptyHost(root);
  for (const name of ['dev', 'locks', 'proc/driver/nvidia']) mkdirSync(join(root, name), { recursive: true });
  writeFileSync(join(proc, 'driver/nvidia/version'), versionText(driver580));
  writeFileSync(join(root, 'kmsg'), '');
  for (const name of ['nvidiactl', 'nvidia-uvm', ...cards.map(({ minor }) => `nvidia${minor}`)])
    writeFileSync(join(root, 'dev', name), '');
  for (const { pciId } of cards) plugIn(sys, pciId, { vendor: '0x10de', driver: 'nvidia' });

  /** What the tool prints, by its arguments. */
  function texts(): Map<string, string> {
    if (printed !== null) return printed;
    const there = cards.filter(({ uuid }) => !lost.has(uuid)).map(asSeen);
    printed = new Map([
      ['-q -x', queryXml(there, driver)],
      ['-L', listText(there)],
      [useQuery.join(' '), useText(there)],
      ...there.map((one) => [`-q -x -i ${one.pciId}`, queryXml([one], driver, there.length)] as const),
    ]);
    return printed;
  }

  function asSeen(one: StubGpu): StubGpu {
    const on = [...processes.values()].filter(({ devices }) => devices.some((uuid) => cardOf.get(uuid) === one));
    const shown = on.map(({ pid, devices }) => {
      const part = (one.instances ?? []).find(({ uuid }) => devices.includes(uuid));
      return part === undefined ? { pid } : { pid, gpuInstance: part.gpuInstance, computeInstance: 0 };
    });
    const instances = one.instances?.map((part) => {
      const mine = memoryOf(on.filter(({ devices }) => devices.includes(part.uuid)));
      return { ...part, usedMiB: part.usedMiB + mine + (kept.has(part.uuid) ? keptMiB : 0) };
    });
    const keeps = [...kept.keys()].filter((uuid) => cardOf.get(uuid) === one).length;
    return { ...one, usedMiB: one.usedMiB + memoryOf(on) + keptMiB * keeps, processes: shown, instances: instances ?? null };
  }

  const changed = (): void => {
    printed = null;
  };

  function begin(devices: readonly string[], agent: string | null): OnCard {
    const pid = ++pids;
    const made: OnCard = { pid, devices, agent, since: time.now, endedAt: null, mib: usualMiB };
    processes.set(pid, made);
    const at = join(proc, String(pid));
    asWorld(() => mkdirSync(at));
    const write = (name: string, text: string): void => asWorld(() => writeFileSync(join(at, name), text));
    write('stat', `${pid} (python) S 1 ${'0 '.repeat(17)}${Math.floor(time.now / 10)} 0\n`);
    write('status', `Name:\tpython\nUid:\t${agent === null ? 1000 : 500_000}\t0\t0\t0\n`);
    write('cgroup', agent === null ? '0::/user.slice\n' : `0::/onejob/${host.store?.owner ?? owner}/${agent}\n`);
    changed();
    return made;
  }

  function end({ pid }: OnCard): void {
    if (!processes.delete(pid)) return;
    asWorld(() => rmSync(join(proc, String(pid)), { recursive: true }));
    changed();
  }

  /** Agent lanes of slots with devices, as they were after the step before; `freeSince`: of a proof, nothing else is in its way since then. */
  const lanes = new Map<string, { readonly lane: AgentLane; readonly devices: readonly string[]; freeSince: number }>();
  /** Devices in quarantine, as they were after the step before, and since when each shows nothing. */
  const away = new Map<string, { cleanSince: number | null }>();
  /** Since when the tool answers as it should. */
  let answersSince = 0;

  /** Why a proof must not find the device clean; null: nothing speaks against it. `agent`: whose leftovers count; null: everybody's. */
  function whyDirty(uuid: string, agent: string | null, isShared: boolean): string | null {
    const one = cardOf.get(uuid);
    if (one === undefined) return null;
    if (time.now - (bad.get(one.uuid) ?? time.now) > justNow) return 'which needs a reset';
    if (!isShared && time.now - (kept.get(uuid) ?? time.now) > justNow) return 'where memory is in use that nobody has';
    for (const { devices, since, endedAt, agent: whose } of processes.values()) {
      if (!devices.some((other) => shares(other, uuid))) continue;
      if (endedAt !== null && time.now - endedAt > justNow && (agent === null || whose === agent)) return 'where a process is left';
      if (whose === null && time.now - since > justNow) return 'where a person works';
    }
    return mode !== 'ok' && time.now - answersSince > 2 * justNow ? 'and the tool does not answer' : null;
  }

  /** What was between two agents, and what is out of use, continues only when it is clean; what is clean does not stay so for ever. */
  function followProofs(): void {
    const { up } = host;
    if (mode === 'ok') answersSince = time.now;
    if (up === null) return;
    for (const slot of host.slots) if (slot.devices.length > 0 || lanes.has(slot.key)) followSlot(slot);
    for (const known of up.loop.deviceManager?.registry.known.all ?? []) followDevice(known);
  }

  /** Whether a proof waits for more than what an agent left behind. */
  function isHeldUp(uuid: string): boolean {
    return lost.has(cardOf.get(uuid)?.uuid ?? uuid) || whyDirty(uuid, null, true) === 'where a person works';
  }

  function followSlot({ key, agent: lane, devices }: Slot): void {
    const before = lanes.get(key);
    // A manager that starts has read it from its store.
    if (before !== undefined && before.lane.kind === lane.kind && agentOf(before.lane) === agentOf(lane)) {
      if (lane.kind !== 'proving') return;
      if (mode !== 'ok' || !engine.isUp || devices.some(isHeldUp)) before.freeSince = time.now;
      else if (time.now - before.freeSince > longestProof)
        broken.push(`proof: slot ${key} has been between two agents for ${time.now - lane.since} ms`);
      return;
    }
    lanes.set(key, { lane, devices, freeSince: time.now });
    if (before === undefined || before.lane.kind === 'free') return;
    const had = before.lane;
    // Of what is out of use somebody else has to see.
    const inUse = before.devices.filter((uuid) => host.up?.loop.deviceManager?.registry.known.whyNot(uuid) === null);
    if (had.kind !== 'proving') {
      if (lane.kind === 'free' && inUse.length > 0)
        broken.push(`proof: slot ${key} is free after agent ${had.agent}, and nobody looked at its devices`);
      return;
    }
    for (const uuid of inUse) {
      const why = whyDirty(uuid, had.agent, isSharing(key));
      if (why !== null) broken.push(`proof: ${uuid} of slot ${key} counts as clean after agent ${had.agent}, ${why}`);
    }
  }

  function followDevice({ uuid, quarantine }: KnownDevice): void {
    const before = away.get(uuid);
    if (quarantine === null) {
      if (before === undefined) return;
      away.delete(uuid);
      const why = whyDirty(uuid, null, true);
      if (why !== null) broken.push(`proof: ${uuid} is out of quarantine, ${why}`);
      return;
    }
    const isClean = mode === 'ok' && !lost.has(cardOf.get(uuid)?.uuid ?? uuid) && whyDirty(uuid, null, false) === null;
    const cleanSince = isClean ? (before?.cleanSince ?? time.now) : null;
    if (before === undefined) away.set(uuid, { cleanSince });
    else before.cleanSince = cleanSince;
    if (quarantine.remedy === 'look' && cleanSince !== null && time.now - cleanSince > longestQuarantine)
      broken.push(`proof: ${uuid} shows nothing for ${time.now - cleanSince} ms, and is in quarantine`);
  }

  let owner = '';
  const shares = (a: string, b: string): boolean =>
    a === b || (cardOf.get(a) === cardOf.get(b) && (a.startsWith('GPU') || b.startsWith('GPU')));
  const isSharing = (slot: string): boolean => slot.startsWith('shared/');

  engine.watchers.add({
    made(sandbox) {
      for (const uuid of sandbox.granted) {
        if (rivals.has(uuid)) broken.push(`S1: ${uuid} is granted to slot ${sandbox.spec.slot} while another manager has it`);
        for (const [other, sandboxes] of held)
          for (const one of sandboxes)
            if (shares(uuid, other) && one.spec.slot !== sandbox.spec.slot && one.exit === null && !isSharing(one.spec.slot))
              broken.push(`S1: ${uuid} is granted to slot ${sandbox.spec.slot} while slot ${one.spec.slot} has ${other}`);
        held.set(uuid, (held.get(uuid) ?? new Set()).add(sandbox));
      }
    },
    released(sandbox) {
      if (sandbox.granted.length === 0 || host.isProbe(sandbox.spec.agent)) return;
      owner = sandbox.owner;
      count.gpuReleases += 1;
      for (const uuid of sandbox.granted) checkClean(uuid, sandbox);
      if (sandbox.madeAt < driverSince && time.now - driverSince > lookMayBeOld)
        broken.push(`S11: agent ${sandbox.spec.agent} was released, and its sandbox was made with an older driver`);
      const isBeside = [...processes.values()].some(
        ({ devices, agent, endedAt }) =>
          agent !== null && endedAt === null && devices.some((uuid) => sandbox.granted.includes(uuid)),
      );
      if (isBeside) count.shared += 1;
      begin(sandbox.granted, sandbox.spec.agent);
    },
    ended(sandbox) {
      for (const uuid of sandbox.granted) held.get(uuid)?.delete(sandbox);
      for (const one of processes.values()) {
        if (one.agent !== sandbox.spec.agent || one.endedAt !== null) continue;
        if (leave === null) {
          end(one);
          continue;
        }
        const { ms: stays, isMemory, mib } = leave;
        leave = null;
        count.leftovers += 1;
        host.tell(`${isMemory ? 'memory' : `process ${one.pid}`} of agent ${one.agent} stays on ${one.devices.join(', ')}`);
        if (isMemory) {
          end(one);
          keep(one.devices, stays);
        } else {
          one.endedAt = time.now;
          one.mib = mib;
          changed();
          time.after(stays, () => end(one));
        }
      }
    },
    removed(sandbox) {
      for (const uuid of sandbox.granted) held.get(uuid)?.delete(sandbox);
    },
  });

  function keep(devices: readonly string[], stays: number): void {
    const since = time.now;
    for (const uuid of devices) kept.set(uuid, since);
    changed();
    time.after(stays, () => {
      for (const uuid of devices) if (kept.get(uuid) === since) kept.delete(uuid);
      changed();
    });
  }

  function checkClean(uuid: string, { spec }: Seen): void {
    const { agent, slot } = spec;
    const one = cardOf.get(uuid);
    if (one === undefined) return;
    const say = (what: string): void => void broken.push(`proof: agent ${agent} of slot ${slot} was let at ${uuid}, ${what}`);
    const lostAt = lost.get(one.uuid);
    if (lostAt !== undefined && time.now - lostAt > lookMayBeOld) say('which is off the bus');
    const badAt = bad.get(one.uuid);
    if (badAt !== undefined && time.now - badAt > justNow) say('which needs a reset');
    const keptSince = kept.get(uuid);
    if (keptSince !== undefined && time.now - keptSince > lookTakes) say('where memory of the last one is in use');
    const known = host.store?.devices.all().find((device) => device.uuid === uuid);
    if (known?.quarantine != null && time.wall - known.quarantine.since > justNow) say('which is in quarantine');
    if (known?.reserved != null && time.wall - known.reserved.since > justNow) say('which a person has reserved');
    for (const { devices, endedAt, since, agent: whose } of processes.values()) {
      if (!devices.some((other) => shares(other, uuid))) continue;
      if (endedAt !== null && time.now - endedAt > lookTakes) say(`where a process of agent ${whose} is left`);
      if (whose === null && time.now - since > lookMayBeOld) say('where a person works');
    }
  }

  function runnerOf(process: SimProcess): ToolRunner {
    return {
      find: async (tool) => (tool === 'nvidia-smi' ? '/usr/bin/nvidia-smi' : null),
      async run(tool, args, { limit, signal }): Promise<ToolReply> {
        const about = { tool, args, output: '', code: null, missing: false, cut: false, hung: false };
        if (tool !== 'nvidia-smi') return { ...about, code: 127, missing: true };
        // Samples draw no lots, so that they change nothing else of a run.
        const isSample = args[0] === useQuery[0];
        if (!isSample) count.tools += 1;
        const now = mode;
        await sleep(process, now === 'hang' ? limit : lookTakes + (isSample ? 0 : random() * 100), signal);
        if (now === 'hang' || signal?.aborted === true) return { ...about, hung: true };
        if (now === 'exit 18')
          return {
            ...about,
            code: 18,
            output: 'Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 590.44\n',
          };
        const text = texts().get(args.join(' '));
        return text === undefined ? { ...about, code: 6, output: 'No devices were found\n' } : { ...about, code: 0, output: text };
      },
    };
  }

  /** A manager of somebody else on this host, with state of its own, wants a device. */
  function rivalWants(uuid: string, stays: number): void {
    const boot = host.store?.bootId;
    if (boot === undefined || rivals.has(uuid)) return;
    const dir = join(root, 'locks');
    rival ??= createLocks({ dir, owner: 'rival', stateDir: '/home/rival/.local/state/onejob', bootId: boot });
    const refused = rival.take(uuid);
    host.tell(`another manager wants ${uuid}: ${refused === null ? 'has it' : 'refused'}`);
    if (refused !== null) {
      count.rivalsRefused += 1;
      return;
    }
    count.rivals += 1;
    // Its number is told in messages, and must be the same in each run.
    const path = join(dir, `${uuid}@${boot}.lock`);
    writeFileSync(path, readFileSync(path, 'utf8').replace(`"pid":${process.pid}`, '"pid":4242'));
    rivals.add(uuid);
    for (const one of held.get(uuid) ?? [])
      if (one.exit === null) broken.push(`S1: another manager could lock ${uuid} while slot ${one.spec.slot} has it`);
    time.after(stays, () => {
      rivals.delete(uuid);
      rival?.keep(rivals);
    });
  }

  const pick = (n: unknown): StubGpu => cards[Number(n) % cards.length] as StubGpu;
  const ms = ({ ms: given }: Happening): number => Number(given ?? 60_000);

  /** Devices that the last manager wrote down for two slots. */
  function unbalanced(): string[] {
    const store = openStore(join(host.dir, 'state'));
    try {
      const all = store.slots.all().map(({ slot }) => slot);
      const of = new Map<string, string>();
      return all.flatMap(({ key, devices }) =>
        devices.flatMap((uuid) => {
          const other = of.get(uuid);
          of.set(uuid, key);
          return other === undefined || isSharing(key) ? [] : [`S1: ${uuid} is leased to ${other} and ${key} at the end`];
        }),
      );
    } finally {
      store.close();
    }
  }

  return {
    name: 'gpus',
    parts: (process) => ({
      env: readEnvironment({ HOME: host.dir, PATH: '/usr/bin:/bin', ONEJOB_HOST_ROOT: root }),
      runner: runnerOf(process),
    }),
    takes: {
      /** A card is on the bus, and the tool does not list it, for `ms`. */
      'gpu.fall'(happening) {
        const one = pick(happening.card);
        if (lost.has(one.uuid)) return;
        host.tell(`${one.uuid} falls off the list`);
        count.falls += 1;
        lost.set(one.uuid, time.now);
        changed();
        time.after(ms(happening), () => {
          lost.delete(one.uuid);
          changed();
        });
      },
      /** The tool does not end, for `ms`; or (`how: mismatch`) the driver was upgraded under its module. */
      'gpu.hang'(happening) {
        if (mode !== 'ok') return;
        mode = happening.how === 'mismatch' ? 'exit 18' : 'hang';
        host.tell(`nvidia-smi: ${mode}`);
        count.hangs += 1;
        time.after(ms(happening), () => {
          mode = 'ok';
        });
      },
      /** Somebody computes on a card for `ms`. */
      'gpu.person'(happening) {
        const one = pick(happening.card);
        const devices = [one.instances?.[0]?.uuid ?? one.uuid];
        host.tell(`a person comes to ${devices[0]}`);
        count.people += 1;
        const process = begin(devices, null);
        time.after(ms(happening), () => end(process));
      },
      /** The next agent that ends leaves a process of `mib` on its devices, or (`how: memory`) memory that nobody has, for `ms`. */
      'gpu.leftover'(happening) {
        leave = { ms: ms(happening), isMemory: happening.how === 'memory', mib: Number(happening.mib ?? usualMiB) };
      },
      /** The driver is replaced: for `ms` the tool does not fit it, then everything tells of a new one. */
      'gpu.driver'(happening) {
        if (mode !== 'ok') return;
        mode = 'exit 18';
        host.tell('the driver is replaced');
        time.after(ms(happening), () => {
          mode = 'ok';
          count.drivers += 1;
          drivers += 1;
          driver = { ...driver580, version: `580.${105 + drivers}.08` };
          driverSince = time.now;
          writeFileSync(join(proc, 'driver/nvidia/version'), versionText(driver));
          host.tell(`the driver is ${driver.version}`);
          changed();
        });
      },
      /** A person reserves a device for `ms`, as `onejob gpus reserve` does. */
      'gpu.reserve'(happening) {
        const one = pick(happening.card);
        const uuid = one.instances?.[0]?.uuid ?? one.uuid;
        host.process?.run(() => {
          const devices = host.up?.loop.deviceManager;
          const device = devices?.registry.known.get(uuid);
          if (devices == null || device === undefined) return;
          devices.reservations.reserve(device, { by: 'ann', for: ms(happening) });
          count.reserved += 1;
        });
      },
      /** Another manager of this host takes a device for `ms`, if it gets it. */
      'gpu.rival'(happening) {
        const one = pick(happening.card);
        rivalWants(one.instances?.[0]?.uuid ?? one.uuid, ms(happening));
      },
      /** The kernel tells of an error; with a number that asks for a reset the card is not to be used again. */
      'gpu.xid'(happening) {
        const one = pick(happening.card);
        const xid = Number(happening.xid ?? 31);
        records += 1;
        count.xids += 1;
        host.tell(`Xid ${xid} of ${one.uuid}`);
        const place = one.pciId.replace(/\.\d$/, '');
        appendFileSync(
          join(root, 'kmsg'),
          `4,${records},${Math.round(time.now * 1_000)},-;NVRM: Xid (PCI:${place}): ${xid}, pid=1, name=python\n`,
        );
        if (xid === 95) bad.set(one.uuid, bad.get(one.uuid) ?? time.now);
      },
    },
    broken() {
      followProofs();
      return broken.splice(0);
    },
    unsettled: () => null,
    calm() {
      mode = 'ok';
      leave = null;
    },
    census() {
      const locks = join(root, 'locks');
      const left = existsSync(locks) ? readdirSync(locks) : [];
      return [...left.map((name) => `S4: lock ${name} is left`), ...unbalanced()];
    },
    counts: () => count,
  };
}
