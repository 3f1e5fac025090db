/** Several vendors' cards in one host as one inventory. */
import { type Device, type Inventory, noGpus } from './inventory.ts';
import { comparePci } from './pci.ts';

/** All of them together; the driver is that of the first that has one. What one could not see whole, nobody saw whole. */
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
