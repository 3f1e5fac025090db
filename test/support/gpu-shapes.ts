/** A host's devices in a few words. */
import type { Inventory } from '../../src/gpu/inventory.ts';

/** Devices of a kind in a row as one word: how many, model, memory in MiB, compute capability; `*`: MIG is on. */
export function shapes({ devices }: Inventory): string[] {
  const words = devices.map((device) => {
    const { model, memoryMiB, computeCapability, mig } = device;
    if (device.kind === 'mig') return `MIG ${mig !== null && 'profile' in mig ? mig.profile : ''} ${memoryMiB ?? '?'}`;
    const on = mig !== null && 'mode' in mig && mig.mode === 'enabled' ? '*' : '';
    return `${model}${on}, ${memoryMiB ?? '?'}, ${computeCapability ?? '?'}`;
  });
  return [...Map.groupBy(words, (word) => word)].map(([word, same]) => `${same.length} x ${word}`);
}
