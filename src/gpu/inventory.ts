/**
 * What one look at a host's GPUs gave. Devices are known by UUID, never by index. Whatever a tool did not say as a number
 * is null, "unknown", and unknown never means free or healthy. A set of devices that could not be read whole says so in
 * `complete`: nobody may conclude from it that a device is gone.
 */

import { comparePci } from './pci.ts';

export type Vendor = 'nvidia' | 'amd' | 'intel';

export interface Inventory {
  /**
   * Whether `devices` is the whole set. False when a tool hung, failed or printed half: the devices listed are there, those
   * that are not listed are unknown.
   */
  readonly complete: boolean;
  /** Version of the NVIDIA kernel driver (else of the first other vendor's), such as `550.54.14`; null where none is known. */
  readonly driver: string | null;
  /** Newest CUDA that the driver can run, such as `12.4`; null where there is no NVIDIA driver or nobody can say. */
  readonly cuda: string | null;
  /** Whether `cuda` was said by the tool, or follows from the driver's branch. */
  readonly cudaFrom: 'tool' | 'driver' | null;
  /** GPUs in the order of their PCI addresses, each followed by its MIG instances. */
  readonly devices: readonly Device[];
  readonly findings: readonly GpuFinding[];
}

export interface Device {
  readonly kind: 'gpu' | 'mig';
  readonly vendor: Vendor;
  /** `GPU-…`, `MIG-…` or, of a card without one, `<vendor>-<PCI address>`. What leases and grants name. */
  readonly uuid: string;
  /** UUID of the GPU that a MIG instance is part of; null for a GPU. */
  readonly parent: string | null;
  /** Where the tool counts it now, from 0 (a MIG instance: within its GPU). For people only: it may change at a boot. */
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
  /** What is known of MIG: null on cards that cannot do it. */
  readonly mig: GpuMig | MigInstance | null;
  readonly health: Health;
  /** Whether the driver stays loaded without clients; null where it is unknown or does not apply. */
  readonly persistence: boolean | null;
  /** Whether memory errors are corrected now, and after the next reset. */
  readonly ecc: { readonly current: boolean; readonly pending: boolean } | null;
  /** `Default`, `Exclusive_Process`, `Prohibited`; null where it is unknown. */
  readonly computeMode: string | null;
  /** Clocks and power limit as somebody with rights set them, such as `1980/2619 MHz, 700 W`; null where they are unknown. */
  readonly settings: string | null;
  /** Whether a display hangs on it or is set up for it; null where it is unknown. */
  readonly display: boolean | null;
  /** Processes that hold it; null where the tool could not say, which is not the same as none. */
  readonly processes: readonly GpuProcess[] | null;
}

/** MIG of a whole GPU. */
export interface GpuMig {
  readonly mode: 'enabled' | 'disabled';
  /** What the mode is after the next reset, when that differs. */
  readonly pending: 'enabled' | 'disabled' | null;
}

export interface MigInstance {
  /** `1g.10gb`, as the tool names it; null when only `-q -x` was read, which does not. */
  readonly profile: string | null;
  readonly gpuInstance: number | null;
  readonly computeInstance: number | null;
}

export interface Health {
  /** `failed` has a reason; `unknown` is not `ok`. */
  readonly state: 'ok' | 'failed' | 'unknown';
  /** What is wrong, in words for a person; empty when nothing is. */
  readonly reasons: readonly string[];
  /** Uncorrected ECC errors since the driver was loaded; null where it is not counted. */
  readonly uncorrectedErrors: number | null;
  /** `None`, `Reset`, `Reboot`, `Drain P2P`, …; null before driver 570. */
  readonly recoveryAction: string | null;
}

export interface GpuProcess {
  /** As the host numbers it. */
  readonly pid: number;
  readonly name: string | null;
  /** Compute, graphics (a display), or both. */
  readonly type: 'C' | 'G' | 'C+G' | 'M+C' | null;
  readonly memoryMiB: number | null;
  /** MIG instance it runs on, as the driver numbers it; null outside of MIG. */
  readonly gpuInstance: number | null;
  readonly computeInstance: number | null;
}

/** One of a card that has no MIG, which computes. */
export function computing(pid: number, name: string | null, memoryMiB: number | null): GpuProcess {
  return { pid, name, type: 'C', memoryMiB, gpuInstance: null, computeInstance: null };
}

/** Something a person should know of this host's GPUs. */
export interface GpuFinding {
  readonly level: 'warning' | 'error';
  /** Stable word for programs: `driver-not-loaded`, `library-mismatch`, `tool-hung`, `gpu-lost`, `no-devices`, … */
  readonly code: string;
  /** The device's UUID or PCI address, or `host`. */
  readonly subject: string;
  /** What was seen, in one sentence. */
  readonly message: string;
  /** What to do or type next; null where nothing helps. */
  readonly hint: string | null;
}

/** A whole GPU of which only is known what it is called and who made it. */
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
    settings: null,
    ecc: null,
    computeMode: null,
    display: null,
    processes: null,
  };
}

/** Where nothing at all was found, and that is certain. */
export const noGpus: Inventory = { complete: true, driver: null, cuda: null, cudaFrom: null, devices: [], findings: [] };

/** Several vendors' cards in one host as one inventory; the driver is that of the first that has one. What one could not see whole, nobody saw whole. */
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

/** GPUs by their PCI addresses, each followed by its MIG instances as they came. An instance without its GPU comes last. */
export function inOrder(devices: readonly Device[]): Device[] {
  const parts = Map.groupBy(devices, (device) => device.parent);
  const gpus = [...(parts.get(null) ?? [])].sort((a, b) => comparePci(a.pciId, b.pciId));
  const known = new Set(gpus.map((gpu) => gpu.uuid));
  const alone = devices.filter((device) => device.parent !== null && !known.has(device.parent));
  return [...gpus.flatMap((gpu) => [gpu, ...(parts.get(gpu.uuid) ?? [])]), ...alone];
}
