/** What one output of nvidia-smi gave, before anything is concluded from it: texts as printed, and whether it was whole. */
import { cudaVersion, driverVersion, said, type Trouble, troubleIn } from './values.ts';

/**
 * Elements of `-q -x` by their path below the GPU, since names repeat under different parents. Any may be missing, depending on
 * driver and card. Source: recordings of drivers 352 to 610 (test/fixtures/gpu/nvidia-smi).
 */
const gpuFields = {
  product_name: 'model',
  uuid: 'uuid',
  'pci/pci_bus_id': 'pciId',
  index: 'index',
  minor_number: 'minor',
  product_architecture: 'architecture',
  'fb_memory_usage/total': 'memoryTotal',
  'fb_memory_usage/used': 'memoryUsed',
  'temperature/gpu_temp': 'temperature',
  performance_state: 'performanceState',
  persistence_mode: 'persistence',
  compute_mode: 'computeMode',
  // What is set, not what is reached: `clocks` and `instant_power_draw` change by themselves.
  'applications_clocks/graphics_clock': 'graphicsClock',
  'applications_clocks/mem_clock': 'memoryClock',
  'gpu_power_readings/current_power_limit': 'powerLimit',
  'power_readings/power_limit': 'powerLimit',
  display_active: 'displayActive',
  'mig_mode/current_mig': 'migCurrent',
  'mig_mode/pending_mig': 'migPending',
  'ecc_mode/current_ecc': 'eccCurrent',
  'ecc_mode/pending_ecc': 'eccPending',
  // Volta and older count all kinds in one total, Turing and newer by memory, from 535 on SRAM by kind.
  'ecc_errors/volatile/double_bit/total': 'uncorrectedTotal',
  'ecc_errors/volatile/dram_uncorrectable': 'uncorrectedDram',
  'ecc_errors/volatile/sram_uncorrectable': 'uncorrectedSram',
  'ecc_errors/volatile/sram_uncorrectable_parity': 'uncorrectedParity',
  'ecc_errors/volatile/sram_uncorrectable_secded': 'uncorrectedSecded',
  'ecc_errors/aggregate/sram_threshold_exceeded': 'sramThreshold',
  'ecc_errors/channel_repair_pending': 'channelRepair',
  'ecc_errors/tpc_repair_pending': 'tpcRepair',
  'ecc_errors/unrepairable_memory': 'unrepairable',
  'retired_pages/pending_retirement': 'retirementPending',
  'retired_pages/pending_blacklist': 'blacklistPending',
  'remapped_rows/remapped_row_pending': 'remapPending',
  'remapped_rows/remapped_row_failure': 'remapFailure',
  gpu_recovery_action: 'recoveryAction',
  'gpu_reset_status/reset_required': 'resetRequired',
  'gpu_reset_status/drain_and_reset_recommended': 'drainRecommended',
  'fabric/state': 'fabricState',
  'fabric/status': 'fabricStatus',
  'fabric/health/summary': 'fabricSummary',
  'fabric/health/route_unhealthy': 'fabricRoute',
  'fabric/health/incorrect_configuration': 'fabricConfig',
} as const;

/** Of one MIG instance. Some drivers say the UUID there, most only with `-L`. */
const migFields = {
  index: 'index',
  uuid: 'uuid',
  mig_uuid: 'uuid',
  gpu_instance_id: 'gpuInstance',
  compute_instance_id: 'computeInstance',
  'fb_memory_usage/total': 'memoryTotal',
  'fb_memory_usage/used': 'memoryUsed',
  'ecc_error_count/volatile_count/sram_uncorrectable': 'uncorrected',
  'ecc_errors/volatile/sram_uncorrectable': 'uncorrected',
} as const;

/** Of one process. */
const processFields = {
  pid: 'pid',
  process_name: 'name',
  type: 'type',
  used_memory: 'memory',
  gpu_instance_id: 'gpuInstance',
  compute_instance_id: 'computeInstance',
} as const;

export type GpuField = (typeof gpuFields)[keyof typeof gpuFields];
type MigField = (typeof migFields)[keyof typeof migFields];
type ProcessField = (typeof processFields)[keyof typeof processFields];

const gpuPlaces = new Map<string, GpuField>(Object.entries(gpuFields));
const migPlaces = new Map<string, MigField>(Object.entries(migFields));
const processPlaces = new Map<string, ProcessField>(Object.entries(processFields));

/** Texts as printed, each where the tool said something of the kind, be it only `N/A`. */
export type Facts<F extends string> = { readonly [K in F]?: string };
export type MigReading = Facts<MigField | 'profile'>;
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

export const nothingRead: Reading = { driver: null, cuda: null, attached: null, gpus: [], whole: false, rest: '' };

/** A GPU while it is read. */
export interface Block {
  facts: { [K in GpuField]?: string };
  instances: { [K in MigField | 'profile']?: string }[];
  processes: { [K in ProcessField]?: string }[] | null;
  trouble: Trouble | null;
}

export function newBlock(facts: Block['facts'] = {}): Block {
  return { facts, instances: [], processes: null, trouble: null };
}

/** Where the values of the newest MIG instance and the newest process of a block are. */
const inInstance = 'mig_devices/mig_device/';
const inProcess = 'processes/process_info/';

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
