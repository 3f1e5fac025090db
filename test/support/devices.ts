/** Devices, and what pools ask for, as tests begin with them. */
import type { DeviceRequest } from '../../src/config/config.ts';
import type { Device } from '../../src/gpu/inventory.ts';

/** Of a pool whose agents need a whole card each, whichever it is. */
export const oneDevice: DeviceRequest = {
  count: 1,
  mig: null,
  model: null,
  uuids: [],
  vendor: null,
  memory: null,
  compute: null,
  share: 1,
  display: 'allow',
};

/** A healthy card `GPU-000n…`, idle. */
export function gpu(n: number, more: Partial<Device> = {}): Device {
  return {
    kind: 'gpu',
    vendor: 'nvidia',
    uuid: `GPU-000${n}`,
    parent: null,
    index: n,
    minor: n,
    pciId: `0000:0${n}:00.0`,
    model: 'NVIDIA A100-SXM4-40GB',
    memoryMiB: 40_960,
    memoryUsedMiB: 0,
    computeCapability: '8.0',
    architecture: 'Ampere',
    mig: { mode: 'disabled', pending: null },
    health: { state: 'ok', reasons: [], uncorrectedErrors: 0, recoveryAction: null },
    persistence: true,
    settings: null,
    ecc: null,
    computeMode: 'Default',
    display: false,
    processes: [],
    ...more,
  };
}

/** An instance `MIG-000n` of a card. */
export function instance(n: number, parent: Device): Device {
  const mig = { profile: '1g.5gb', gpuInstance: n, computeInstance: 0 };
  return { ...parent, kind: 'mig', uuid: `MIG-000${n}`, parent: parent.uuid, index: n, memoryMiB: 4_864, mig };
}
