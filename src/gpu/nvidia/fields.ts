/**
 * Where each output of nvidia-smi says a thing: the element of `-q -x`, the label of `-q`, the column of `--query-gpu`. One
 * table, so that all of them are read alike. Every one of them may be missing: which are there depends on driver and card.
 *
 * Source: recordings of drivers 352 to 610 (test/fixtures/gpu/nvidia-smi) and their `--help-query-gpu`.
 */

interface Places {
  /** Path of elements below `<gpu>`: names repeat under different parents. */
  readonly xml?: readonly string[];
  /** Path of labels below `GPU <PCI address>`, in lower case. */
  readonly text?: readonly string[];
  /** Column without its unit. */
  readonly csv?: readonly string[];
}

const gpuFields = {
  model: { xml: ['product_name'], text: ['product name'], csv: ['name', 'gpu_name'] },
  uuid: { xml: ['uuid'], text: ['gpu uuid'], csv: ['uuid', 'gpu_uuid'] },
  pciId: { xml: ['pci/pci_bus_id'], text: ['pci/bus id'], csv: ['pci.bus_id', 'gpu_bus_id'] },
  index: { csv: ['index'] },
  minor: { xml: ['minor_number'], text: ['minor number'] },
  architecture: { xml: ['product_architecture'], text: ['product architecture'] },
  computeCapability: { xml: ['compute_cap'], csv: ['compute_cap'] },
  memoryTotal: { xml: ['fb_memory_usage/total'], text: ['fb memory usage/total'], csv: ['memory.total'] },
  memoryUsed: { xml: ['fb_memory_usage/used'], text: ['fb memory usage/used'], csv: ['memory.used'] },
  temperature: { xml: ['temperature/gpu_temp'], text: ['temperature/gpu current temp'], csv: ['temperature.gpu'] },
  performanceState: { xml: ['performance_state'], text: ['performance state'], csv: ['pstate'] },
  persistence: { xml: ['persistence_mode'], text: ['persistence mode'], csv: ['persistence_mode'] },
  computeMode: { xml: ['compute_mode'], text: ['compute mode'], csv: ['compute_mode'] },
  // What is set, not what is reached: `clocks` and `instant_power_draw` change by themselves.
  graphicsClock: { xml: ['applications_clocks/graphics_clock'], text: ['applications clocks/graphics'] },
  memoryClock: { xml: ['applications_clocks/mem_clock'], text: ['applications clocks/memory'] },
  powerLimit: {
    xml: ['gpu_power_readings/current_power_limit', 'power_readings/power_limit'],
    text: ['gpu power readings/current power limit', 'power readings/power limit'],
  },
  displayActive: { xml: ['display_active'], text: ['display active'], csv: ['display_active'] },
  migCurrent: { xml: ['mig_mode/current_mig'], text: ['mig mode/current'], csv: ['mig.mode.current'] },
  migPending: { xml: ['mig_mode/pending_mig'], text: ['mig mode/pending'], csv: ['mig.mode.pending'] },
  eccCurrent: { xml: ['ecc_mode/current_ecc'], text: ['ecc mode/current'], csv: ['ecc.mode.current'] },
  eccPending: { xml: ['ecc_mode/pending_ecc'], text: ['ecc mode/pending'], csv: ['ecc.mode.pending'] },
  // Volta and older count all kinds in one total, Turing and newer by memory, from 535 on SRAM by kind.
  uncorrectedTotal: {
    xml: ['ecc_errors/volatile/double_bit/total'],
    text: ['ecc errors/volatile/double bit/total'],
    csv: ['ecc.errors.uncorrected.volatile.total'],
  },
  uncorrectedDram: { xml: ['ecc_errors/volatile/dram_uncorrectable'], text: ['ecc errors/volatile/dram uncorrectable'] },
  uncorrectedSram: { xml: ['ecc_errors/volatile/sram_uncorrectable'], text: ['ecc errors/volatile/sram uncorrectable'] },
  uncorrectedParity: {
    xml: ['ecc_errors/volatile/sram_uncorrectable_parity'],
    text: ['ecc errors/volatile/sram uncorrectable parity'],
  },
  uncorrectedSecded: {
    xml: ['ecc_errors/volatile/sram_uncorrectable_secded'],
    text: ['ecc errors/volatile/sram uncorrectable sec-ded'],
  },
  sramThreshold: {
    xml: ['ecc_errors/aggregate/sram_threshold_exceeded'],
    text: ['ecc errors/aggregate/sram threshold exceeded'],
    csv: ['ecc.errors.uncorrected.aggregate.sram.thresholdExceeded'],
  },
  channelRepair: { xml: ['ecc_errors/channel_repair_pending'], text: ['ecc errors/channel repair pending'] },
  tpcRepair: { xml: ['ecc_errors/tpc_repair_pending'], text: ['ecc errors/tpc repair pending'] },
  unrepairable: { xml: ['ecc_errors/unrepairable_memory'], text: ['ecc errors/unrepairable memory'] },
  retirementPending: {
    xml: ['retired_pages/pending_retirement'],
    text: ['retired pages/pending'],
    csv: ['retired_pages.pending'],
  },
  blacklistPending: { xml: ['retired_pages/pending_blacklist'], text: ['retired pages/pending page blacklist'] },
  remapPending: { xml: ['remapped_rows/remapped_row_pending'], text: ['remapped rows/pending'], csv: ['remapped_rows.pending'] },
  remapFailure: {
    xml: ['remapped_rows/remapped_row_failure'],
    text: ['remapped rows/remapping failure occurred'],
    csv: ['remapped_rows.failure'],
  },
  recoveryAction: { xml: ['gpu_recovery_action'], text: ['gpu recovery action'], csv: ['gpu_recovery_action'] },
  resetRequired: {
    xml: ['gpu_reset_status/reset_required'],
    text: ['gpu reset status/reset required'],
    csv: ['reset_status.reset_required'],
  },
  drainRecommended: {
    xml: ['gpu_reset_status/drain_and_reset_recommended'],
    text: ['gpu reset status/drain and reset recommended'],
    csv: ['reset_status.drain_and_reset_recommended'],
  },
  fabricState: { xml: ['fabric/state'], text: ['fabric/state'], csv: ['fabric.state'] },
  fabricStatus: { xml: ['fabric/status'], text: ['fabric/status'], csv: ['fabric.status'] },
  fabricSummary: { xml: ['fabric/health/summary'], text: ['fabric/health/summary'], csv: ['fabric.health.summary'] },
  fabricRoute: {
    xml: ['fabric/health/route_unhealthy'],
    text: ['fabric/health/route unhealthy'],
    csv: ['fabric.health.route_unhealthy'],
  },
  fabricConfig: {
    xml: ['fabric/health/incorrect_configuration'],
    text: ['fabric/health/incorrect configuration'],
    csv: ['fabric.health.incorrect_configuration'],
  },
} as const satisfies Record<string, Places>;

/** Of one MIG instance: below `<mig_device>`, and below `MIG Device`. Some drivers say the UUID there, most only with `-L`. */
const migFields = {
  index: { xml: ['index'], text: ['index'] },
  uuid: { xml: ['uuid'], text: ['uuid', 'mig uuid'] },
  gpuInstance: { xml: ['gpu_instance_id'], text: ['gpu instance id'] },
  computeInstance: { xml: ['compute_instance_id'], text: ['compute instance id'] },
  memoryTotal: { xml: ['fb_memory_usage/total'], text: ['shared fb memory usage/total', 'fb memory usage/total'] },
  memoryUsed: { xml: ['fb_memory_usage/used'], text: ['shared fb memory usage/used', 'fb memory usage/used'] },
  uncorrected: {
    xml: ['ecc_error_count/volatile_count/sram_uncorrectable'],
    text: ['ecc errors/volatile/sram uncorrectable'],
  },
} as const satisfies Record<string, Places>;

/** Of one process: below `<process_info>`, below `Processes`, and columns of `--query-compute-apps`. */
const processFields = {
  pid: { xml: ['pid'], text: ['process id'], csv: ['pid'] },
  name: { xml: ['process_name'], text: ['name'], csv: ['process_name', 'name'] },
  type: { xml: ['type'], text: ['type'] },
  memory: { xml: ['used_memory'], text: ['used gpu memory'], csv: ['used_gpu_memory', 'used_memory'] },
  gpuInstance: { xml: ['gpu_instance_id'], text: ['gpu instance id'] },
  computeInstance: { xml: ['compute_instance_id'], text: ['compute instance id'] },
  gpu: { csv: ['gpu_uuid'] },
} as const satisfies Record<string, Places>;

export type GpuField = keyof typeof gpuFields;
export type MigField = keyof typeof migFields | 'profile';
export type ProcessField = keyof typeof processFields;

/** Texts as printed, each where the tool said something of the kind, be it only `N/A`. */
export type Facts<F extends string> = { readonly [K in F]?: string };

function placesOf<F extends string>(fields: Record<F, Places>, form: keyof Places): ReadonlyMap<string, F> {
  const entries = Object.entries<Places>(fields) as [F, Places][];
  return new Map(entries.flatMap(([field, places]) => (places[form] ?? []).map((place) => [place, field] as const)));
}

export const xmlPlaces = {
  gpu: placesOf<GpuField>(gpuFields, 'xml'),
  mig: placesOf<keyof typeof migFields>(migFields, 'xml'),
  process: placesOf<ProcessField>(processFields, 'xml'),
};
export const textPlaces = {
  gpu: placesOf<GpuField>(gpuFields, 'text'),
  mig: placesOf<keyof typeof migFields>(migFields, 'text'),
  process: placesOf<ProcessField>(processFields, 'text'),
};
export const csvPlaces = {
  gpu: placesOf<GpuField>(gpuFields, 'csv'),
  process: placesOf<ProcessField>(processFields, 'csv'),
};
