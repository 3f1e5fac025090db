/** The reading of one output of nvidia-smi, without any conclusions: texts as printed, and whether the output was complete. */
import { normalPci } from '../pci.ts';
import fields from './fields.json' with { type: 'json' };
import { cudaVersion, driverVersion, nvidiaText, type Trouble, troubleIn } from './values.ts';

export type GpuField = keyof typeof fields.gpu;
type MigField = keyof typeof fields.mig | 'profile';
type ProcessField = keyof typeof fields.process;

/** The field of each path in `fields.json`. */
function placesOf<F extends string>(all: Readonly<Record<F, readonly string[]>>): ReadonlyMap<string, F> {
  const entries = Object.entries(all) as [F, readonly string[]][];
  return new Map(entries.flatMap(([field, places]) => places.map((place) => [place, field] as const)));
}

const gpuPlaces = placesOf(fields.gpu);
const migPlaces = placesOf<MigField>({ ...fields.mig, profile: [] });
const processPlaces = placesOf(fields.process);

/** Texts as printed, including `N/A`. */
export type Facts<F extends string> = { readonly [K in F]?: string };
export type MigReading = Facts<MigField>;
export type ProcessReading = Facts<ProcessField>;

export interface Reading {
  /** As printed, or null. */
  readonly driver: string | null;
  readonly cuda: string | null;
  /** Number of GPUs that the driver reports; null where the output does not contain it. */
  readonly attached: number | null;
  readonly gpus: readonly GpuReading[];
  /** Whether the output has all that it should: nothing cut, nothing out of place. */
  readonly whole: boolean;
  /** Text around the answer: mostly error messages. */
  readonly rest: string;
}

export interface GpuReading {
  readonly facts: Facts<GpuField>;
  readonly instances: readonly MigReading[];
  /** null where the output does not tell about processes. */
  readonly processes: readonly ProcessReading[] | null;
  /** The problem that the card reported instead of a value. */
  readonly trouble: Trouble | null;
  /** Whether its state was read, or only its name, which tells nothing about health. */
  readonly depth: 'state' | 'name';
}

export const nothingRead: Reading = { driver: null, cuda: null, attached: null, gpus: [], whole: false, rest: '' };

/** A GPU while it is read. */
export interface Block {
  readonly facts: { [K in GpuField]?: string };
  readonly instances: { [K in MigField]?: string }[];
  processes: { [K in ProcessField]?: string }[] | null;
  trouble: Trouble | null;
}

export function newBlock(facts: Block['facts'] = {}): Block {
  return { facts, instances: [], processes: null, trouble: null };
}

/** Where the values of the newest MIG instance and the newest process of a block are. */
const inInstance = 'mig_devices/mig_device/';
const inProcess = 'processes/process_info/';

/** Stores a value of a block by its path; ignores unknown paths. */
export function take(block: Block, place: string, value: string): void {
  if (place.startsWith('processes/')) {
    const field = processPlaces.get(place.slice(inProcess.length));
    const process = block.processes?.at(-1);
    if (field !== undefined && process !== undefined) process[field] = value;
    return;
  }
  block.trouble ??= troubleIn(value);
  if (place.startsWith(inInstance)) {
    const field = migPlaces.get(place.slice(inInstance.length));
    const instance = block.instances.at(-1);
    if (field !== undefined && instance !== undefined) instance[field] = value;
    return;
  }
  const field = gpuPlaces.get(place);
  // A lost card has words there; the block itself begins with its address.
  if (field === 'pciId' && block.facts.pciId !== undefined && normalPci(value) === null) return;
  if (field !== undefined) block.facts[field] = value;
}

/** What the head of an output tells about the host. */
export function headOf(head: ReadonlyMap<string, string>): Pick<Reading, 'driver' | 'cuda' | 'attached'> {
  // Of its newer and its older name, the one whose text contains a version.
  const text = (parse: typeof driverVersion, newer: string, older: string) =>
    (parse(head.get(newer)) === null ? head.get(older) : null) ?? head.get(newer) ?? null;
  const count = head.get('attached_gpus') ?? '';
  return {
    driver: text(driverVersion, 'kmd_version', 'driver_version'),
    cuda: text(cudaVersion, 'cuda_umd_version', 'cuda_version'),
    attached: /^\d{1,4}$/.test(count) ? Number(count) : null,
  };
}

/** `facts`, completed with values from `more`. */
export function fillUp<F extends string>(facts: Facts<F>, more: Facts<F>): Facts<F> {
  const filled: { [K in F]?: string } = { ...facts };
  for (const [key, value] of Object.entries<string | undefined>(more) as [F, string | undefined][]) {
    const has = filled[key];
    if (value !== undefined && (has === undefined || (nvidiaText(has) === null && nvidiaText(value) !== null))) filled[key] = value;
  }
  return filled;
}
