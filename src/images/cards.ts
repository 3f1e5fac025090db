/** Which devices of a host an image is chosen for. What could not be seen is unknown, never a host without a GPU. */
import type { Device, Inventory } from '../gpu/inventory.ts';
import { pinIt } from './pin.ts';

export type Cards =
  /** NVIDIA's, at least one. `note`: what else is there and was left aside; null when nothing is. */
  | { readonly kind: 'cuda'; readonly devices: readonly Device[]; readonly note: string | null }
  | { readonly kind: 'none'; readonly why: string }
  | { readonly kind: 'problem'; readonly problem: string };

const vendors = { nvidia: 'NVIDIA', amd: 'AMD', intel: 'Intel' } as const;

/** `wanted`: UUIDs that the agent will have, none for an agent without a device; undefined for whatever is there. */
export function cardsFor(inventory: Inventory, wanted: readonly string[] | undefined): Cards {
  if (wanted === undefined) return everyCard(inventory);
  if (wanted.length === 0) return { kind: 'none', why: 'the agent gets no device' };
  const devices: Device[] = [];
  for (const uuid of new Set(wanted)) {
    const device = inventory.devices.find((each) => each.uuid === uuid);
    if (device === undefined) return { kind: 'problem', problem: notThere(uuid, inventory) };
    devices.push(device);
  }
  const other = devices.find((each) => each.vendor !== 'nvidia');
  return other === undefined ? { kind: 'cuda', devices, note: null } : { kind: 'problem', problem: notNvidia(other) };
}

function everyCard(inventory: Inventory): Cards {
  const { devices, complete, findings, driver } = inventory;
  const nvidia = devices.filter((each) => each.vendor === 'nvidia');
  const [other] = devices.filter((each) => each.vendor !== 'nvidia');
  if (nvidia.length > 0) {
    const notes = [
      ...(complete ? [] : [`not all devices could be read (${firstFinding(inventory)}); the image is chosen for those that were`]),
      ...(other === undefined ? [] : [`${vendors[other.vendor]} ${other.model} is left aside, as no image of CUDA uses it`]),
    ];
    return { kind: 'cuda', devices: nvidia, note: notes.length === 0 ? null : notes.join('; ') };
  }
  if (other !== undefined) return { kind: 'problem', problem: notNvidia(other) };
  if (complete && driver === null && !findings.some((each) => each.level === 'error')) {
    const [found] = findings;
    return { kind: 'none', why: `this host has no GPU${found === undefined ? '' : ` (${found.message.replace(/\.$/, '')})`}` };
  }
  return { kind: 'problem', problem: `It is not known which GPUs there are: ${firstFinding(inventory)}. ${pinIt}` };
}

function firstFinding({ findings, driver }: Inventory): string {
  const found = findings.find((each) => each.level === 'error') ?? findings[0];
  if (found !== undefined) return found.message.replace(/\.$/, '');
  return driver === null ? 'the tool did not list them all' : `there is a driver ${driver}, but it lists no device`;
}

function notNvidia({ vendor, model, uuid }: Device): string {
  return `${uuid} is from ${vendors[vendor]} (${model}), and images are chosen for NVIDIA's GPUs only. ${pinIt}`;
}

function notThere(uuid: string, { devices, complete }: Inventory): string {
  const known = devices.map((each) => each.uuid);
  const there = known.length === 0 ? 'there is none' : `there ${known.length === 1 ? 'is' : 'are'} ${known.join(', ')}`;
  return `There is no device ${uuid}: ${there}${complete ? '' : ', but not all could be read'}.`;
}
