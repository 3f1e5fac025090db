/** Hosts made by hand, for tests. */
import { type Device, type Inventory, noGpus } from '../../src/gpu/inventory.ts';
import type { ImageRequest } from '../../src/images/request.ts';

export function card(model: string, computeCapability: string | null, more: Partial<Device> = {}): Device {
  return {
    kind: 'gpu',
    vendor: 'nvidia',
    uuid: `GPU-${model.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}`,
    parent: null,
    index: 0,
    minor: 0,
    pciId: '0000:01:00.0',
    model,
    memoryMiB: 16_384,
    memoryUsedMiB: 0,
    computeCapability,
    architecture: null,
    mig: null,
    health: { state: 'ok', reasons: [], uncorrectedErrors: null, recoveryAction: null },
    persistence: null,
    settings: null,
    ecc: null,
    computeMode: null,
    display: null,
    processes: null,
    ...more,
  };
}

/** `cuda`: as its tool says it; null where it does not. */
export function hostWith(driver: string | null, cuda: string | null, ...devices: Device[]): Inventory {
  return { ...noGpus, driver, cuda, cudaFrom: cuda === null ? null : 'tool', devices };
}

export function request(inventory: Inventory, more: Partial<ImageRequest> = {}): ImageRequest {
  return { arch: 'amd64', platform: null, inventory, flavour: 'devel', distribution: null, ...more };
}
