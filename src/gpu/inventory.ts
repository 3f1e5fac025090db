/**
 * What one look at a host's GPUs found. UUIDs identify devices, never indexes. A value that no tool reported is null, "unknown",
 * which never means free or healthy. After a look that is not `complete`, no device may be considered gone.
 */

import { comparePci, type Vendor } from './pci.ts';

export interface Inventory {
  /** False when a tool hung, failed or printed half: `devices` are there, and any that are not listed are unknown. */
  readonly complete: boolean;
  /** Version of the NVIDIA kernel driver, such as `550.54.14`, or else of the first other vendor's; null where unknown. */
  readonly driver: string | null;
  /** Newest CUDA that the driver can run, such as `12.4`; null where there is no NVIDIA driver or it is unknown. */
  readonly cuda: string | null;
  /** Whether the tool reported `cuda`, or it follows from the driver's branch. */
  readonly cudaFrom: 'tool' | 'driver' | null;
  /** GPUs in the order of their PCI addresses, each followed by its MIG instances. */
  readonly devices: readonly Device[];
  readonly findings: readonly GpuFinding[];
}

export interface Device {
  readonly kind: 'gpu' | 'mig';
  readonly vendor: Vendor;
  /** `GPU-…`, `MIG-…` or, for a card without a UUID, `<vendor>-<PCI address>`. Leases and grants use it. */
  readonly uuid: string;
  /** UUID of the GPU that a MIG instance is part of; null for a GPU. */
  readonly parent: string | null;
  /** The tool's number for it, from 0 (a MIG instance: within its GPU). For people only: it may change at a boot. */
  readonly index: number | null;
  /** Number N of `/dev/nvidiaN` or of the render node `/dev/dri/renderDN`. */
  readonly minor: number | null;
  /** Lower case `domain:bus:device.function`, domain of at least four digits: `0000:01:00.0`. A MIG instance has its GPU's. */
  readonly pciId: string | null;
  /** As the vendor names it, such as `NVIDIA A100-SXM4-40GB`. A MIG instance has its GPU's. */
  readonly model: string;
  /** In MiB; null where it is unknown or shared with the CPU (GB10, Jetson). Of a MIG instance its own. */
  readonly memoryMiB: number | null;
  readonly memoryUsedMiB: number | null;
  /** `8.0`; NVIDIA only, from the tool or else from the name of the model. */
  readonly computeCapability: string | null;
  /** `Volta`, `Hopper`, `CDNA 3`, …; null where it is unknown. */
  readonly architecture: string | null;
  /** State of MIG; null on cards that do not have it. */
  readonly mig: GpuMig | MigInstance | null;
  readonly health: Health;
  /** Whether the driver stays loaded without clients; null where that is unknown or does not apply. */
  readonly persistence: boolean | null;
  /** Whether memory errors are corrected now, and after the next reset. */
  readonly ecc: { readonly current: boolean; readonly pending: boolean } | null;
  /** `Default`, `Exclusive_Process`, `Prohibited`; null where it is unknown. */
  readonly computeMode: string | null;
  /** Clocks and power limit that a person has set, such as `1980/2619 MHz, 700 W`; null where they are unknown. */
  readonly settings: string | null;
  /** Whether a display is connected to it or set up for it; null where unknown. */
  readonly display: boolean | null;
  /** Processes that use it; null where the tool does not list them, which is not the same as an empty list. */
  readonly processes: readonly GpuProcess[] | null;
}

export interface GpuMig {
  readonly mode: 'enabled' | 'disabled';
  /** The mode after the next reset, if it differs. */
  readonly pending: 'enabled' | 'disabled' | null;
}

interface MigInstance {
  /** `1g.10gb`, as the tool names it; null when only `-q -x` was read, which does not name it. */
  readonly profile: string | null;
  readonly gpuInstance: number | null;
  readonly computeInstance: number | null;
}

export interface Health {
  /** `failed` has a reason; `unknown` is not `ok`. */
  readonly state: 'ok' | 'failed' | 'unknown';
  readonly reasons: readonly string[];
  /** Uncorrected ECC errors since the driver was loaded; null where they are not counted. */
  readonly uncorrectedErrors: number | null;
  /** `None`, `Reset`, `Reboot`, `Drain P2P`, …; null before driver 570. */
  readonly recoveryAction: string | null;
}

export interface GpuProcess {
  /** Process id on the host. */
  readonly pid: number;
  readonly name: string | null;
  /** Compute, graphics (a display), or both. */
  readonly type: 'C' | 'G' | 'C+G' | 'M+C' | null;
  readonly memoryMiB: number | null;
  /** MIG instance that it runs on, as the driver numbers it; null outside MIG. */
  readonly gpuInstance: number | null;
  readonly computeInstance: number | null;
}

/** A compute process on a card that has no MIG. */
export function computing(pid: number, name: string | null, memoryMiB: number | null): GpuProcess {
  return { pid, name, type: 'C', memoryMiB, gpuInstance: null, computeInstance: null };
}

export interface GpuFinding {
  readonly level: 'warning' | 'error';
  /** Stable word for programs: `driver-not-loaded`, `library-mismatch`, `tool-hung`, `gpu-lost`, `no-devices`, … */
  readonly code: string;
  /** The device's UUID or PCI address, or `host`. */
  readonly subject: string;
  readonly message: string;
  /** What to do or type next; null where nothing helps. */
  readonly hint: string | null;
}

/** A whole GPU with only its name and vendor known. */
export function unknownGpu(vendor: Vendor, uuid: string, model: string): Device {
  return {
    kind: 'gpu',
    vendor,
    uuid,
    parent: null,
    index: null,
    minor: null,
    pciId: null,
    model,
    memoryMiB: null,
    memoryUsedMiB: null,
    computeCapability: null,
    architecture: null,
    mig: null,
    health: { state: 'unknown', reasons: [], uncorrectedErrors: null, recoveryAction: null },
    persistence: null,
    ecc: null,
    computeMode: null,
    settings: null,
    display: null,
    processes: null,
  };
}

export const noGpus: Inventory = { complete: true, driver: null, cuda: null, cudaFrom: null, devices: [], findings: [] };

/** The vendors' inventories as one. The driver is that of the first that has one. It is complete if each of them is. */
export function mergeInventories(all: readonly Inventory[]): Inventory {
  const withDriver = all.find((each) => each.driver !== null) ?? noGpus;
  const withCuda = all.find((each) => each.cuda !== null) ?? noGpus;
  return {
    complete: all.every((each) => each.complete),
    driver: withDriver.driver,
    cuda: withCuda.cuda,
    cudaFrom: withCuda.cudaFrom,
    devices: inOrder(all.flatMap((each) => each.devices)),
    findings: all.flatMap((each) => each.findings),
  };
}

/** GPUs in the order of their PCI addresses, each followed by its MIG instances. An instance without its GPU comes last. */
export function inOrder(devices: readonly Device[]): Device[] {
  const parts = Map.groupBy(devices, (device) => device.parent);
  const gpus = [...(parts.get(null) ?? [])].sort((a, b) => comparePci(a.pciId, b.pciId));
  const known = new Set(gpus.map((gpu) => gpu.uuid));
  const alone = devices.filter((device) => device.parent !== null && !known.has(device.parent));
  return [...gpus.flatMap((gpu) => [gpu, ...(parts.get(gpu.uuid) ?? [])]), ...alone];
}
