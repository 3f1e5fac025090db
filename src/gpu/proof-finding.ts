/** What one check of the clean-slot proof comes to. */

/** Why a device is dirty. `code` is a stable word for programs. */
export type Fault = {
  readonly code: string;
  readonly message: string;
  readonly remedy: 'look' | 'reset' | 'reboot' | 'replace';
  /** What to type next; null where nothing helps. */
  readonly hint: string | null;
};

export interface Finding {
  readonly check:
    | 'listed'
    | 'health'
    | 'processes'
    | 'memory'
    | 'computeMode'
    | 'persistence'
    | 'settings'
    | 'mig'
    | 'eccMode'
    | 'eccErrors'
    | 'kernelLog'
    | 'recoveryAction'
    | 'driver'
    | 'nodes';
  readonly result: Check['result'];
  readonly saw: string | null;
  readonly before: string | null;
  readonly faults: readonly Fault[];
  readonly wait: { readonly message: string; readonly until: number } | null;
  /** Lines of the kernel log. */
  readonly log: readonly string[];
}

/** One line of the evidence. `unchecked`: this device or host never tells, or something else made the question void. */
export type Check = {
  readonly check: Finding['check'];
  readonly result: 'ok' | 'failed' | 'wait' | 'held' | 'unknown' | 'unchecked';
  readonly saw: string | null;
  readonly before: string | null;
};

export function finding(check: Finding['check'], result: Finding['result'], more: Partial<Finding> = {}): Finding {
  return { saw: null, before: null, faults: [], wait: null, log: [], ...more, check, result };
}

export function failed(check: Finding['check'], fault: Fault, more: Partial<Finding> = {}): Finding {
  return finding(check, 'failed', { ...more, faults: [fault] });
}

/** What a person can do. A MIG instance is reset with its GPU, `parent`. */
export function hintFor(remedy: Fault['remedy'], uuid: string, parent: string | null): string {
  const clear = `"onejob gpus clear ${uuid}"`;
  if (remedy === 'reboot') return 'Reboot the host.';
  if (remedy === 'replace') return `Ask the vendor's support; when it is mended, type ${clear}.`;
  const gpu = parent ?? uuid;
  if (!gpu.startsWith('GPU-')) return `Reset it when nothing uses it, or reboot the host; then type ${clear}.`;
  return `When nothing uses it, type "nvidia-smi --gpu-reset -i ${gpu}" as root, or reboot the host; then ${clear}.`;
}

/** Whether the host has certainly been booted since the baseline. */
export function wasRebooted(before: string | null, now: string | null): boolean {
  return before !== null && now !== null && before !== now;
}
