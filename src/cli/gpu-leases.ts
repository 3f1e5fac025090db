/** What the daemon that leads here makes of each GPU, for `onejob gpus`, which asks the host itself and works without one. */
import { type ClientOptions, createClient } from '../api/client.ts';
import type { DeviceView } from '../api/device-schema.ts';
import type { GpuFinding } from '../gpu/inventory.ts';
import type { Session } from './session.ts';

/** By UUID; none where no daemon answers, or none of its pools has devices. */
export type Leases = ReadonlyMap<string, DeviceView>;

/** `patience`: ms a daemon may take; short, for whoever asks for GPUs may do so because nothing else answers. */
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
    // Nobody there, not for us, of another version, or without devices: the host's own answer does not depend on it.
    return null;
  }
}

/** What a job's view of a device is in a word or two; empty where no daemon says anything. */
export function leaseText(view: DeviceView | undefined): string {
  if (view === undefined) return '';
  const { state, slot } = view;
  if (state === 'leased' || state === 'free') return slot ?? state;
  return slot === null ? state : `${slot}, ${state}`;
}

/** Devices that no job gets and why, also those that are not there any more. A person's process stands in the table. */
export function leaseFindings(leases: Leases): GpuFinding[] {
  return [...leases.values()].flatMap(({ uuid, parent, state, why, hint }): GpuFinding[] => {
    const isOwn = parent === null || leases.get(parent)?.why !== why;
    if (why === null || !isOwn) return [];
    if (state === 'missing' || state === 'quarantined') return [{ level: 'error', code: state, subject: uuid, message: why, hint }];
    return state === 'reserved' || state === 'elsewhere'
      ? [{ level: 'warning', code: state, subject: uuid, message: why, hint }]
      : [];
  });
}

/** What `--json` adds to each device. */
export function leaseValue(view: DeviceView | undefined): {
  lease?: Pick<DeviceView, 'state' | 'slot' | 'agents' | 'why' | 'until'>;
} {
  if (view === undefined) return {};
  const { state, slot, agents, why, until } = view;
  return { lease: { state, slot, agents, why, until } };
}
