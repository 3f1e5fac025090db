/** Every metric of `/metrics`, declared once: `docs/metrics.md` is made from this, and tests hold the dashboard and the rules to it. */

interface Definition {
  readonly type: 'gauge' | 'counter' | 'histogram';
  /** A sentence, also for `docs/metrics.md`. */
  readonly help: string;
  readonly labels: readonly string[];
  /** Of a histogram: upper bounds in its unit. */
  readonly buckets?: readonly number[];
}

const minutes = 60;
const hours = 3_600;
const ofJobs = [0.1, 1, 10, minutes, 5 * minutes, 15 * minutes, hours, 4 * hours, 12 * hours, 48 * hours] as const;
const used = ['device', 'pool'] as const;

/** Prometheus gives each series the labels `job` and `instance`, so no metric may have its own. */
export const definitions = {
  onejob_build_info: { type: 'gauge', labels: ['version', 'node'], help: 'Always 1: the versions of onejob and of its Node.' },

  onejob_slots: { type: 'gauge', labels: ['pool'], help: 'Slots of the pool.' },
  onejob_agents: {
    type: 'gauge',
    labels: ['pool', 'state'],
    help: 'Agents by state, in the words of `onejob status`; `leaving`: it has ended, and is being cleared.',
  },
  onejob_pool_paused: { type: 'gauge', labels: ['pool'], help: '1 while people have paused the pool, or it drains.' },
  onejob_pool_held: {
    type: 'gauge',
    labels: ['pool', 'reason'],
    help: '1 while onejob itself starts nothing in the pool: `disk`, `state` (the store cannot be written), `devices` or `look` (GPUs cannot be checked), `service` (its CI service), `isolation`, `starting`, `temporary`.',
  },
  onejob_pool_backing_off: {
    type: 'gauge',
    labels: ['pool'],
    help: '1 while the pool waits after failures before it starts something again.',
  },
  onejob_slot_gap_seconds: {
    type: 'histogram',
    labels: ['pool'],
    buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, minutes, 5 * minutes],
    help: 'Time from the end of an agent until the next one stands ready in the same slot, with its devices proved clean.',
  },

  onejob_jobs_waiting: {
    type: 'gauge',
    labels: ['pool'],
    help: 'Jobs that wait for the pool; missing while its CI service does not say.',
  },
  onejob_oldest_waiting_job_seconds: {
    type: 'gauge',
    labels: ['pool'],
    help: 'For how long the oldest waiting job has waited; 0 if no job is known to wait.',
  },
  onejob_jobs_total: {
    type: 'counter',
    labels: ['pool', 'service', 'verdict'],
    help: 'Ended jobs by whose fault their end was: `passed`, `cancelled`, `code`, `infrastructure`, `configuration` or `unknown`.',
  },
  onejob_job_wait_seconds: { type: 'histogram', labels: ['pool'], buckets: ofJobs, help: 'How long ended jobs had waited.' },
  onejob_job_run_seconds: { type: 'histogram', labels: ['pool'], buckets: ofJobs, help: 'How long ended jobs ran.' },

  onejob_devices: { type: 'gauge', labels: ['state'], help: 'Devices by state, in the words of `onejob gpus`.' },
  onejob_device_info: {
    type: 'gauge',
    labels: ['device', 'kind', 'model', 'pci'],
    help: 'Always 1: what the device is. `device`: its UUID.',
  },
  onejob_device_quarantined: { type: 'gauge', labels: ['device'], help: '1 while the device is in quarantine.' },
  onejob_device_memory_bytes: { type: 'gauge', labels: ['device'], help: 'Memory of the device.' },
  onejob_device_memory_used_bytes: {
    type: 'gauge',
    labels: used,
    help: 'Memory of the device that is in use. `pool`: that has the device now, else empty.',
  },
  onejob_device_utilization_ratio: { type: 'gauge', labels: used, help: 'Share of the time in which the device computed, 0 to 1.' },
  onejob_device_temperature_celsius: { type: 'gauge', labels: used, help: 'Temperature of the device.' },
  onejob_device_power_watts: { type: 'gauge', labels: used, help: 'Power of the whole board of the device.' },
  onejob_proof_seconds: {
    type: 'histogram',
    labels: ['verdict'],
    buckets: [0.1, 0.25, 0.5, 1, 2, 5, 10, 30, minutes, 5 * minutes],
    help: 'Time from the end of an agent until a verdict of the proof of its device, as in `onejob proofs`.',
  },

  onejob_job_device: {
    type: 'gauge',
    labels: ['pool', 'job_id', 'device'],
    help: 'Always 1: the running job has the device. It joins a job to the use of its devices.',
  },
  onejob_job_memory_peak_bytes: {
    type: 'gauge',
    labels: ['pool', 'job_id'],
    help: 'Most memory that was in use on the devices of the running job together.',
  },
  onejob_job_utilization_ratio: {
    type: 'gauge',
    labels: ['pool', 'job_id'],
    help: 'Mean utilisation of the devices of the running job so far, 0 to 1.',
  },

  onejob_ci_calls_total: {
    type: 'counter',
    labels: ['service', 'result'],
    help: 'Calls of a CI service by their answer: `ok`, `denied` (401, 403), `throttled` (429), `refused` (other 4xx), `failed` (5xx), `unreachable`.',
  },

  onejob_problems: { type: 'gauge', labels: [], help: 'Problems of the whole host that `onejob status` shows.' },
  onejob_store_bytes: { type: 'gauge', labels: [], help: 'Size of the database, with its write-ahead log.' },
  onejob_state_disk_bytes: { type: 'gauge', labels: [], help: 'Size of the disk that holds the state directory.' },
  onejob_state_disk_free_bytes: { type: 'gauge', labels: [], help: 'Free space on that disk.' },
  onejob_event_loop_lag_p99_seconds: {
    type: 'gauge',
    labels: [],
    help: 'How late the daemon was at most in 99 % of its turns since the last scrape.',
  },
  onejob_event_loop_lag_max_seconds: {
    type: 'gauge',
    labels: [],
    help: 'How late the daemon was at most since the last scrape.',
  },

  process_cpu_seconds_total: { type: 'counter', labels: [], help: 'CPU time of the daemon.' },
  process_resident_memory_bytes: { type: 'gauge', labels: [], help: 'Resident memory of the daemon.' },
  process_start_time_seconds: { type: 'gauge', labels: [], help: 'When the daemon started, seconds since the epoch.' },
  process_open_fds: { type: 'gauge', labels: [], help: 'Open file descriptors of the daemon.' },
  nodejs_heap_used_bytes: { type: 'gauge', labels: [], help: 'Used heap of the daemon.' },
} as const satisfies Readonly<Record<string, Definition>>;

type Definitions = typeof definitions;
export type MetricName = keyof Definitions;
export type NameOf<T extends Definition['type']> = {
  [N in MetricName]: Definitions[N]['type'] extends T ? N : never;
}[MetricName];
export type LabelsOf<N extends MetricName> = Readonly<Record<Definitions[N]['labels'][number], string>>;
