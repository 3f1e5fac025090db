/**
 * `onejob gpus`: the GPUs of this host or of a recording, and what is odd about them. It asks by itself; a daemon, where there is
 * one, adds what each is to jobs.
 */
import { resolve } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import type { Inventory } from '../gpu/inventory.ts';
import { createProbe, type Probe } from '../gpu/probe.ts';
import { ownersOf } from '../gpu/processes.ts';
import { exitCodes } from './exit.ts';
import { askLeases, type Leases, leaseValue } from './gpu-leases.ts';
import { gpuLines, type Owners } from './gpu-table.ts';
import type { Session } from './session.ts';

export interface GpusFlags {
  /** File or folder of recordings, instead of this host. */
  readonly from: string | null;
  readonly watch: boolean;
  /** ms between two looks of `watch`. */
  readonly every: number;
  /** Ends `watch`; a process just ends. */
  readonly signal?: AbortSignal;
}

/** 1 when a finding is an error, a device has failed, or the set of devices is not complete. */
export async function showGpus(session: Session, flags: GpusFlags, probe?: Probe): Promise<number> {
  const path = session.context.variables.PATH ?? '/usr/local/bin:/usr/bin:/bin';
  using own = flags.from === null && probe === undefined ? createProbe({ path, maxAge: 0 }) : null;
  const host = probe ?? own;
  const look = async (): Promise<Seen> => {
    if (flags.from === null && host !== null) {
      const [inventory, leases] = await Promise.all([host.look(), askLeases(session)]);
      return { inventory, leases };
    }
    const { readRecording } = await import('../gpu/recording.ts');
    return { inventory: await readRecording(resolve(session.context.cwd, flags.from ?? '')), leases: new Map() };
  };
  const textOf = ({ inventory, leases }: Seen) => JSON.stringify([inventory, ...leases.values()]);
  let seen = await look();
  await show(session, flags, seen);
  for (let shown = textOf(seen); flags.watch && (await pause(flags)); shown = textOf(seen)) {
    seen = await look();
    if (textOf(seen) !== shown) await show(session, flags, seen);
  }
  return isWell(seen.inventory) ? exitCodes.ok : exitCodes.failed;
}

interface Seen {
  readonly inventory: Inventory;
  readonly leases: Leases;
}

/** Whether to go on. */
async function pause({ every, signal }: GpusFlags): Promise<boolean> {
  if (signal === undefined) await after(every);
  else await after(every, undefined, { signal }).catch(() => {});
  return signal?.aborted !== true;
}

function isWell({ complete, findings, devices }: Inventory): boolean {
  return complete && findings.every(({ level }) => level !== 'error') && devices.every(({ health }) => health.state !== 'failed');
}

async function show({ output }: Session, { from, watch }: GpusFlags, { inventory, leases }: Seen): Promise<void> {
  // Lines that are redrawn are for eyes; a program that reads changes wants each whole.
  if (output.json || (watch && output.width === null)) {
    const devices = inventory.devices.map((device) => ({ ...device, ...leaseValue(leases.get(device.uuid)) }));
    return output.value({ ...inventory, devices });
  }
  const pids = from === null ? inventory.devices.flatMap((device) => device.processes?.map(({ pid }) => pid) ?? []) : [];
  const owners: Owners = ownersOf(pids);
  const lines = gpuLines(inventory, nothingIn(from), { colors: output.colors, width: output.width, owners, leases });
  if (!watch) return output.print(...lines);
  // Home, the page with the rest of each line cleared, then everything below: without a flicker in between.
  return output.print(`\u001b[H${lines.map((each) => `${each}\u001b[K`).join('\n')}\u001b[J`);
}

function nothingIn(from: string | null): string {
  if (from !== null) return `No GPUs in ${from}.`;
  return 'No GPUs: there is no card of NVIDIA, AMD or Intel on the PCI bus (/sys/bus/pci/devices), and no nvidia-smi on the PATH that lists one.';
}
