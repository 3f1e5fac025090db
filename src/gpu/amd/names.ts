/**
 * What AMD's cards are called. Sources know different parts of a card, and which of them answers changes: a lease of a card
 * must not fall on a second name of it.
 */
import { join } from 'node:path';
import type { Device } from '../inventory.ts';
import { type PciCard, readText } from '../pci.ts';
import { type AmdReading, uniqueIdOf, unknownCard } from './reading.ts';

/** Name by PCI address, for the life of a probe. */
export type AmdNames = Map<string, string>;

/** The ids that amdgpu has of those cards that `readings` list, from Vega on; below `sys` (`/sys`). Wakes no card. */
export async function readIds(sys: string, cards: readonly PciCard[], readings: readonly AmdReading[]): Promise<AmdReading> {
  const listed = readings.flatMap((reading) => reading.cards);
  const read = await Promise.all(
    cards.map(async ({ pciId }) => {
      const text = await readText(join(sys, 'bus/pci/devices', pciId, 'unique_id'));
      return { ...unknownCard, pciId, uniqueId: uniqueIdOf(text) };
    }),
  );
  const known = read.filter(
    ({ pciId, uniqueId }) => uniqueId !== null && listed.some((card) => card.pciId === pciId || card.uniqueId === uniqueId),
  );
  return { source: 'bus', driver: null, cards: known, findings: [], complete: true };
}

/** `device` by the name that its place had first, unless both are ids and differ: then it is another card. */
export function keepName(device: Device, names: AmdNames): Device {
  if (device.pciId === null) return device;
  const before = names.get(device.pciId);
  const isOther = before === undefined || (isId(before) && isId(device.uuid));
  const uuid = isOther ? device.uuid : before;
  names.set(device.pciId, uuid);
  return { ...device, uuid };
}

function isId(name: string): boolean {
  return name.startsWith('GPU-');
}
