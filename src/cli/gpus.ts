/** `onejob gpus`: the GPUs of this host or of a recording, and their problems. A running daemon adds what jobs use each GPU for. */
import { resolve } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { type ClientOptions, createClient } from '../api/client.ts';
import type { DeviceView } from '../api/schema.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { createProbe, type Probe } from '../gpu/probe.ts';
import { ownersOf } from '../gpu/processes.ts';
import { exitCodes } from './exit.ts';
import { gpuLines, type Leases, type Owners } from './gpu-table.ts';
import type { Session } from './session.ts';
import { redrawn } from './text.ts';

export interface GpusFlags {
  readonly from?: string;
  readonly watch?: boolean;
  /** ms; default 5 s. */
  readonly every?: number;
  /** Ends `watch`, for tests. */
  readonly signal?: AbortSignal;
}

/** 1 when a finding is an error, a device has failed, or not all devices could be read. */
export async function showGpus(session: Session, flags: GpusFlags, probe?: Probe): Promise<number> {
  const path = session.context.variables.PATH ?? '/usr/local/bin:/usr/bin:/bin';
  using own = flags.from === undefined && probe === undefined ? createProbe({ path, maxAge: 0 }) : null;
  const host = probe ?? own;
  const look = async (): Promise<Seen> => {
    if (flags.from === undefined && host !== null) {
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

type Seen = { readonly inventory: Inventory; readonly leases: Leases };

/** Whether to continue. */
async function pause({ every = 5_000, signal }: GpusFlags): Promise<boolean> {
  await after(every, undefined, { signal }).catch(() => {});
  return signal?.aborted !== true;
}

function isWell({ complete, findings, devices }: Inventory): boolean {
  return complete && findings.every(({ level }) => level !== 'error') && devices.every(({ health }) => health.state !== 'failed');
}

async function show({ output }: Session, { from, watch }: GpusFlags, { inventory, leases }: Seen): Promise<void> {
  // A program that reads changes gets each as one JSON value.
  if (output.json || (watch && output.width === null)) {
    const devices = inventory.devices.map((device) => ({ ...device, ...leaseValue(leases.get(device.uuid)) }));
    return output.value({ ...inventory, devices });
  }
  const pids = from === undefined ? inventory.devices.flatMap((device) => device.processes?.map(({ pid }) => pid) ?? []) : [];
  const owners: Owners = ownersOf(pids);
  const lines = gpuLines(inventory, nothingIn(from), { colors: output.colors, width: output.width, owners, leases });
  return output.print(...(watch ? [redrawn(lines)] : lines));
}

function nothingIn(from: string | undefined): string {
  if (from !== undefined) return `No GPUs in ${from}.`;
  return 'No GPUs: the PCI bus (/sys/bus/pci/devices) has no NVIDIA, AMD or Intel card, and no nvidia-smi on the PATH lists one.';
}

/** The daemon's view of each GPU. `patience`: ms that a daemon may take; short, since GPUs must be shown if the daemon hangs. */
export async function askLeases({ place, version }: Session, patience = 2_000): Promise<Leases> {
  const { socket, systemSocket } = await place().catch(() => ({ socket: null, systemSocket: null }));
  for (const path of [socket, systemSocket]) {
    if (path === null) continue;
    const views = await devicesAt({ socket: path, version, patience });
    if (views !== null) return new Map(views.map((view) => [view.uuid, view]));
  }
  return new Map();
}

async function devicesAt(options: ClientOptions): Promise<DeviceView[] | null> {
  try {
    const client = createClient(options);
    return await client.devices().finally(() => client.close());
  } catch {
    // Without a usable daemon the host's own answer is complete.
    return null;
  }
}

/** What `--json` adds to each device. */
function leaseValue(view: DeviceView | undefined) {
  if (view === undefined) return {};
  const { state, slot, agents, why, until } = view;
  return { lease: { state, slot, agents, why, until } };
}
