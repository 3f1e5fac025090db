/** The devices that an image is chosen for, and the CUDA that they support. Unknown is never taken as "no GPU" or "newest". */

import { compareVersions, newest, oldest } from '../base/version.ts';
import type { Device, Inventory } from '../gpu/inventory.ts';
import type { Generation, Tables } from '../gpu/tables.ts';
import { pinIt } from './request.ts';

export type Cards =
  /** NVIDIA's, at least one. `note`: what is ignored. */
  | { readonly kind: 'cuda'; readonly devices: readonly Device[]; readonly note: string | null }
  | { readonly kind: 'none'; readonly why: string }
  | { readonly kind: 'problem'; readonly problem: string };

const vendors = { nvidia: 'NVIDIA', amd: 'AMD', intel: 'Intel' } as const;

/** `wanted`: UUIDs of the agent's devices, empty for an agent without devices; undefined for all that are there. */
export function cardsFor(inventory: Inventory, wanted: readonly string[] | undefined): Cards {
  if (wanted === undefined) return everyCard(inventory);
  if (wanted.length === 0) return { kind: 'none', why: 'the agent gets no devices' };
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
    const some = `onejob could not read all devices (${firstFinding(inventory)}), and chooses the image for those that it could read`;
    const notes = complete ? [] : [some];
    if (other !== undefined) notes.push(`${vendors[other.vendor]} ${other.model} is ignored, because CUDA images cannot use it`);
    return { kind: 'cuda', devices: nvidia, note: notes.join('; ') || null };
  }
  if (other !== undefined) return { kind: 'problem', problem: notNvidia(other) };
  if (complete && driver === null && !findings.some((each) => each.level === 'error')) {
    const [found] = findings;
    return { kind: 'none', why: `this host has no GPU${found === undefined ? '' : ` (${found.message.replace(/\.$/, '')})`}` };
  }
  return { kind: 'problem', problem: `Cannot determine which GPUs this host has: ${firstFinding(inventory)}. ${pinIt}` };
}

function firstFinding({ findings, driver }: Inventory): string {
  const found = findings.find((each) => each.level === 'error') ?? findings[0];
  if (found !== undefined) return found.message.replace(/\.$/, '');
  return driver === null ? 'the tool did not list them all' : `driver ${driver} is loaded, but lists no devices`;
}

function notNvidia({ vendor, model, uuid }: Device): string {
  return `${uuid} is from ${vendors[vendor]} (${model}), but onejob chooses images only for GPUs from NVIDIA. ${pinIt}`;
}

function notThere(uuid: string, { devices, complete }: Inventory): string {
  const known = devices.map((each) => each.uuid);
  const there = known.length === 0 ? 'this host has no devices' : `this host has ${known.join(', ')}`;
  return `There is no device ${uuid}: ${there}${complete ? '' : ', but onejob could not read all of them'}.`;
}

/** What the tables say of a generation, or have in common for several rows. */
export type CudaRange = Omit<Generation, 'compute'>;

/** By compute capability, or if that is unknown by architecture: then what holds for all GPUs of that name. */
function cudaRange({ computeCapability: compute, architecture }: Device, { generations }: Tables): CudaRange | null {
  // "Ada Lovelace" is also called "Ada".
  const [called] = architecture?.toLowerCase().split(/\s+/) ?? [];
  const isNamed = ({ name, platform }: Generation) => name.toLowerCase() === called && platform === undefined;
  const rows = generations.filter((each) => (compute === null ? isNamed(each) : each.compute.includes(compute)));
  const [row] = rows;
  if (row === undefined) return null;
  const drivers = rows.map((each) => each.lastDriver).filter((each) => each !== null);
  return {
    ...row,
    first: newest(rows.map((each) => each.first)) ?? '0',
    last: oldest(rows.map((each) => each.last).filter((each) => each !== null)),
    lastDriver: drivers.length === 0 ? null : Math.min(...drivers),
    verified: rows.every((each) => each.verified),
  };
}

export function inRange(cuda: string, { first, last }: Pick<CudaRange, 'first' | 'last'>): boolean {
  return compareVersions(cuda, first) >= 0 && (last === null || compareVersions(cuda, last) <= 0);
}

/** `CUDA 9.0 to 12.9`, `CUDA 12.8 and newer`. */
export function rangeWords({ first, last }: Pick<CudaRange, 'first' | 'last'>): string {
  return last === null ? `CUDA ${first} and newer` : `CUDA ${first} to ${last}`;
}

export interface CardGroup {
  readonly model: string;
  readonly compute: string | null;
  /** null: unknown which CUDA they support. */
  readonly range: CudaRange | null;
  /** UUIDs of the GPUs, including those of the instances among the devices. */
  readonly gpus: ReadonlySet<string>;
  readonly instances: number;
}

/** Equal devices together, so that eight equal cards are one step of an explanation. */
export function groupsOf(devices: readonly Device[], tables: Tables): CardGroup[] {
  const groups = Map.groupBy(devices, ({ model, computeCapability, architecture }) =>
    JSON.stringify([model, computeCapability, architecture]),
  );
  return [...groups.values()].flatMap((alike) => {
    const [first] = alike;
    if (first === undefined) return [];
    return {
      model: first.model,
      compute: first.computeCapability,
      range: cudaRange(first, tables),
      gpus: new Set(alike.map((each) => each.parent ?? each.uuid)),
      instances: alike.filter((each) => each.kind === 'mig').length,
    };
  });
}

/** `2 × NVIDIA A100-SXM4-40GB (7 MIG instances), compute 8.0`. */
export function groupWords({ model, compute, gpus, instances }: CardGroup): string {
  const count = gpus.size > 1 ? `${gpus.size} × ` : '';
  const mig = instances === 0 ? '' : ` (${instances} MIG ${instances === 1 ? 'instance' : 'instances'})`;
  return `${count}${model}${mig}, ${compute === null ? 'compute capability unknown' : `compute ${compute}`}`;
}
