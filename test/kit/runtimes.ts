/** Devices for tests of runtimes. */
import type { LeasedDevice } from '../../src/ports/runtime.ts';

/** A card of NVIDIA's, unless told otherwise. */
export function leased(changes: Partial<LeasedDevice> = {}): LeasedDevice {
  const minor = changes.minor ?? 0;
  return {
    uuid: `GPU-${minor}`,
    kind: 'gpu',
    vendor: 'nvidia',
    index: minor,
    minor,
    pciId: `0000:0${minor}:00.0`,
    parent: null,
    mig: null,
    ...changes,
  };
}

/** MIG instance `instance` of card `minor`. */
export function slice(minor: number, instance: number): LeasedDevice {
  const mig = { profile: '1g.10gb', gpuInstance: instance, computeInstance: 0 };
  return leased({ uuid: `MIG-${minor}-${instance}`, kind: 'mig', parent: `GPU-${minor}`, minor, index: instance, mig });
}

/** A card of AMD's with `/dev/dri/renderD<minor>`. */
export function amd(minor: number, changes: Partial<LeasedDevice> = {}): LeasedDevice {
  return leased({ vendor: 'amd', uuid: `GPU-00000000000000${minor % 100}`, index: minor - 128, minor, ...changes });
}
