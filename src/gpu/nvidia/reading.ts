/** What one output of nvidia-smi gave, before anything is concluded from it: texts as printed, and whether it was whole. */
import { cudaVersion, driverVersion, said, type Trouble, troubleIn } from './values.ts';

/**
 * The path of each element of `-q -x` below its GPU, since names repeat under different parents. Every one of them may be missing:
 * which are there depends on driver and card.
 *
 * Source: recordings of drivers 352 to 610 (test/fixtures/gpu/nvidia-smi).
 */
const gpuFields = {
  model: ['product_name'],
  uuid: ['uuid'],
  pciId: ['pci/pci_bus_id'],
  index: ['index'],
  minor: ['minor_number'],
  architecture: ['product_architecture'],
  memoryTotal: ['fb_memory_usage/total'],
  memoryUsed: ['fb_memory_usage/used'],
  temperature: ['temperature/gpu_temp'],
  performanceState: ['performance_state'],
  persistence: ['persistence_mode'],
  computeMode: ['compute_mode'],
  // What is set, not what is reached: `clocks` and `instant_power_draw` change by themselves.
  graphicsClock: ['applications_clocks/graphics_clock'],
  memoryClock: ['applications_clocks/mem_clock'],
  powerLimit: ['gpu_power_readings/current_power_limit', 'power_readings/power_limit'],
  displayActive: ['display_active'],
  migCurrent: ['mig_mode/current_mig'],
  migPending: ['mig_mode/pending_mig'],
  eccCurrent: ['ecc_mode/current_ecc'],
  eccPending: ['ecc_mode/pending_ecc'],
  // Volta and older count all kinds in one total, Turing and newer by memory, from 535 on SRAM by kind.
  uncorrectedTotal: ['ecc_errors/volatile/double_bit/total'],
  uncorrectedDram: ['ecc_errors/volatile/dram_uncorrectable'],
  uncorrectedSram: ['ecc_errors/volatile/sram_uncorrectable'],
  uncorrectedParity: ['ecc_errors/volatile/sram_uncorrectable_parity'],
  uncorrectedSecded: ['ecc_errors/volatile/sram_uncorrectable_secded'],
  sramThreshold: ['ecc_errors/aggregate/sram_threshold_exceeded'],
  channelRepair: ['ecc_errors/channel_repair_pending'],
  tpcRepair: ['ecc_errors/tpc_repair_pending'],
  unrepairable: ['ecc_errors/unrepairable_memory'],
  retirementPending: ['retired_pages/pending_retirement'],
  blacklistPending: ['retired_pages/pending_blacklist'],
  remapPending: ['remapped_rows/remapped_row_pending'],
  remapFailure: ['remapped_rows/remapped_row_failure'],
  recoveryAction: ['gpu_recovery_action'],
  resetRequired: ['gpu_reset_status/reset_required'],
  drainRecommended: ['gpu_reset_status/drain_and_reset_recommended'],
  fabricState: ['fabric/state'],
  fabricStatus: ['fabric/status'],
  fabricSummary: ['fabric/health/summary'],
  fabricRoute: ['fabric/health/route_unhealthy'],
  fabricConfig: ['fabric/health/incorrect_configuration'],
} as const;

/** Of one MIG instance. Some drivers say the UUID there, most only with `-L`. */
const migFields = {
  index: ['index'],
  uuid: ['uuid', 'mig_uuid'],
  gpuInstance: ['gpu_instance_id'],
  computeInstance: ['compute_instance_id'],
  memoryTotal: ['fb_memory_usage/total'],
  memoryUsed: ['fb_memory_usage/used'],
  uncorrected: ['ecc_error_count/volatile_count/sram_uncorrectable', 'ecc_errors/volatile/sram_uncorrectable'],
} as const;

/** Of one process. */
const processFields = {
  pid: ['pid'],
  name: ['process_name'],
  type: ['type'],
  memory: ['used_memory'],
  gpuInstance: ['gpu_instance_id'],
  computeInstance: ['compute_instance_id'],
} as const;

export type GpuField = keyof typeof gpuFields;
export type MigField = keyof typeof migFields | 'profile';
export type ProcessField = keyof typeof processFields;

function placesOf<F extends string>(fields: Record<F, readonly string[]>): ReadonlyMap<string, F> {
  const entries = Object.entries<readonly string[]>(fields) as [F, readonly string[]][];
  return new Map(entries.flatMap(([field, places]) => places.map((place) => [place, field] as const)));
}

export const gpuPlaces = placesOf<GpuField>(gpuFields);
const migPlaces = placesOf<keyof typeof migFields>(migFields);
export const processPlaces = placesOf<ProcessField>(processFields);

/** Texts as printed, each where the tool said something of the kind, be it only `N/A`. */
export type Facts<F extends string> = { readonly [K in F]?: string };
export type MigReading = Facts<MigField>;
export type ProcessReading = Facts<ProcessField>;

export interface Reading {
  /** As printed, or null. */
  readonly driver: string | null;
  readonly cuda: string | null;
  /** How many GPUs the driver said it has; null where the output does not say. */
  readonly attached: number | null;
  readonly gpus: readonly GpuReading[];
  /** Whether the output has all that it should: nothing cut, nothing out of place. */
  readonly whole: boolean;
  /** What stands around the answer: complaints, mostly. */
  readonly rest: string;
}

export interface GpuReading {
  readonly facts: Facts<GpuField>;
  readonly instances: readonly MigReading[];
  /** null where the output does not tell about processes. */
  readonly processes: readonly ProcessReading[] | null;
  /** What the card said instead of a value. */
  readonly trouble: Trouble | null;
  /** Whether its state was read; what only has its name says nothing of health. */
  readonly depth: 'state' | 'name';
}

export const nothingRead: Reading = {
  driver: null,
  cuda: null,
  attached: null,
  gpus: [],
  whole: false,
  rest: '',
};

/** A GPU while it is read. */
export interface Block {
  facts: { [K in GpuField]?: string };
  instances: { [K in MigField]?: string }[];
  processes: { [K in ProcessField]?: string }[] | null;
  trouble: Trouble | null;
}

export function newBlock(facts: Block['facts'] = {}): Block {
  return { facts, instances: [], processes: null, trouble: null };
}

/** Where the values of the newest MIG instance and the newest process of a block are. */
const inInstance = 'mig_devices/mig_device/';
export const inProcess = 'processes/process_info/';

/** Takes a value at its place in a block; places that are not known are passed over. */
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
  if (field !== undefined) block.facts[field] = value;
}

/** What the head of an output says of the host. */
export function headOf(head: ReadonlyMap<string, string>): Pick<Reading, 'driver' | 'cuda' | 'attached'> {
  // Under its newer and its older name: the text that has a version, be it none at all.
  const text = (parse: typeof driverVersion, newer: string, older: string) =>
    (parse(head.get(newer)) === null ? head.get(older) : null) ?? head.get(newer) ?? null;
  const count = head.get('attached_gpus') ?? '';
  return {
    driver: text(driverVersion, 'kmd_version', 'driver_version'),
    cuda: text(cudaVersion, 'cuda_umd_version', 'cuda_version'),
    attached: /^\d{1,4}$/.test(count) ? Number(count) : null,
  };
}

/** `facts` filled up with what `more` says and they do not. */
export function fillUp<F extends string>(facts: Facts<F>, more: Facts<F>): Facts<F> {
  const filled: { [K in F]?: string } = { ...facts };
  for (const [key, value] of Object.entries<string | undefined>(more) as [F, string | undefined][]) {
    const has = filled[key];
    if (value !== undefined && (has === undefined || (said(has) === null && said(value) !== null))) filled[key] = value;
  }
  return filled;
}
