/** What `doctor` is told of a host with GPUs. */
import type { Arch } from '../images/request.ts';
import type { GpuHostFacts } from './host-facts.ts';
import type { Device } from './inventory.ts';

export interface DoctorFacts extends GpuHostFacts {
  /** The Engine that grants devices; null where pools with devices do not use one, or it does not answer. */
  readonly engine: EngineFacts | null;
  /** Finished images of pools, with the devices they may run on. */
  readonly images: readonly PoolImage[];
  /** null for one that no image is published for. */
  readonly arch: Arch | null;
}

export interface EngineFacts {
  readonly version: string;
  /** `systemd` or `cgroupfs`, as the Engine says. */
  readonly cgroupDriver: string | null;
  /** How it would be asked for devices of NVIDIA; null when it cannot be. */
  readonly way: 'request' | 'cdi' | 'runtime' | null;
}

export interface PoolImage {
  readonly pool: string;
  readonly image: string;
  readonly devices: readonly Device[];
}
