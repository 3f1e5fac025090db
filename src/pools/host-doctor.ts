/** What `doctor` says of a host whose pools have devices: what config asks of them, and what of the host needs mending. */
import { fits } from '../config/conditions.ts';
import type { PoolConfig } from '../config/config.ts';
import { deviceFindings } from '../config/device-findings.ts';
import { type EngineFacts, gpuDoctor } from '../gpu/doctor.ts';
import { readHostFacts } from '../gpu/host-facts.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { hostFault } from '../gpu/proof.ts';
import type { ToolRunner } from '../gpu/run.ts';
import { archOf } from '../images/request.ts';
import type { Finding } from '../runtimes/runtime.ts';

export interface HostDoctorParts {
  /** Pools whose agents need devices. */
  readonly pools: readonly PoolConfig[];
  /** What was seen last. */
  readonly inventory: Inventory;
  readonly runner: ToolRunner;
  /** Where `sys`, `proc` and `etc` of the host are. */
  readonly roots: { readonly sys: string; readonly proc: string; readonly etc: string };
  /** The Engine that grants the devices of these pools; null when there is none. */
  readonly engine: (signal: AbortSignal) => Promise<EngineFacts | null>;
  /** Image of a pool's sandboxes; null where there is none, or it is not known. */
  readonly imageOf: (pool: string) => string | null;
}

/** Rejects only when `signal` aborts. */
export async function hostFindings({ pools, inventory, ...parts }: HostDoctorParts, signal: AbortSignal): Promise<Finding[]> {
  const [facts, engine] = await Promise.all([
    readHostFacts({ runner: parts.runner, ...parts.roots, signal }),
    parts.engine(signal),
  ]);
  signal.throwIfAborted();
  const images = pools.flatMap((pool) => {
    const image = parts.imageOf(pool.name);
    const devices = inventory.devices.filter((device) => fits(device, pool.devices));
    return image === null ? [] : [{ pool: pool.name, image, devices }];
  });
  const found = gpuDoctor(inventory, { ...facts, engine, images, arch: archOf(process.arch) });
  // What holds all GPUs back is said where the pools are held back.
  const fault = hostFault(inventory);
  const host = fault === null ? found : found.filter(({ message }) => !fault.message.endsWith(message));
  return [...host, ...deviceFindings({ pools }, inventory)];
}
