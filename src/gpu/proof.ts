/**
 * The clean-slot proof: whether a device may go to the next agent of its slot, judged from one look at the host and from what
 * the device showed just before the last agent was released. Pure.
 *
 * Never clean: a device that is not listed, a value that was known before and is not known now, a tool that did not answer. A
 * value that a device never reports (AMD and Intel report less than NVIDIA) cannot be compared; the evidence says so. A display's
 * processes are residents and never a fault; a person's compute process makes the device occupied, which is not the device's fault.
 */

import type { Baseline, ProofInput } from './baseline.ts';
import { capital } from './finding.ts';
import type { Device, Inventory } from './inventory.ts';
import { describeHolder, type Holder, ownMemory, sortHolders } from './processes.ts';
import { allChecks, type Check, type Fault, type Finding } from './proof-checks.ts';

/** `before`: the device's previous baseline, so that memory that each job leaks does not add up in it. */
type BaselineContext = Pick<Baseline, 'boot' | 'driver' | 'mark'> & { readonly before: Baseline | null };

export function baselineOf(device: Device, { boot, driver, mark, before }: BaselineContext): Baseline {
  const own = ownMemory(device);
  const same = before !== null && before.uuid === device.uuid && before.boot === boot && before.driver === driver;
  const least = same && before.memoryMiB !== null && own !== null ? Math.min(own, before.memoryMiB) : own;
  const { uuid, pciId, computeMode, persistence, settings, parent, mig, ecc, health } = device;
  return {
    uuid,
    pciId,
    boot,
    driver,
    memoryMiB: least,
    computeMode,
    persistence,
    settings,
    parent,
    mig,
    ecc,
    uncorrectedErrors: health.uncorrectedErrors,
    health: health.state,
    listsProcesses: device.processes !== null,
    mark,
  };
}

/** Plain JSON, for the store and `onejob proofs`. */
export type Evidence = {
  readonly device: string;
  readonly pciId: string | null;
  /** Wall clock, ms since the epoch. */
  readonly at: number;
  readonly checks: Check[];
  /** Processes on the device, without residents. */
  readonly holders: Holder[];
  /** The kernel log's lines about it since the baseline, harmless ones too. */
  readonly kernel: string[];
};

/**
 * - `wait`: something of the ended agent is still going away; look again, at the latest at `until`.
 * - `occupied`: a person's process uses it; the slot waits.
 * - `dirty`: the device is at fault and goes to quarantine. `remedy` says what may lift that: a later `look` that finds it clean
 *   (judged with the baseline's `mark` moved to the time of quarantine), a `reset`, a `reboot`, or only its owner (`replace`).
 * - `unknown`: not all answers came; look again later.
 * - `host`: the fault is not this device's but the driver's or the tool's, so it affects all devices of the host.
 */
export type ProofVerdict = { readonly evidence: Evidence } & (
  | { readonly kind: 'clean' }
  | { readonly kind: 'wait'; readonly message: string; readonly until: number }
  | { readonly kind: 'occupied'; readonly message: string }
  | ({ readonly kind: 'dirty' } & Fault)
  | { readonly kind: 'unknown'; readonly message: string }
  | { readonly kind: 'host'; readonly code: string; readonly message: string; readonly hint: string | null }
);

/** Codes of findings about a whole host, with their consequences. */
const hostFaults: Readonly<Record<string, string>> = {
  'library-mismatch': 'reboot needed',
  'tool-keeps-hanging': 'reboot needed, unless you can end the tool that hangs',
  'no-devices': 'the driver found no GPU: reboot needed',
  'driver-not-loaded': 'the driver has to be loaded',
  'nvml-missing': "the driver's library has to be reinstalled",
  'tool-missing': "the driver's tools have to be reinstalled",
};

const remedies: readonly Fault['remedy'][] = ['look', 'reset', 'reboot', 'replace'];

/** Judges one device. The same input always gives the same verdict. */
export function judgeProof(input: ProofInput): ProofVerdict {
  const { baseline, inventory } = input;
  const device = inventory.devices.find((one) => one.uuid === baseline.uuid) ?? null;
  const holders = device === null ? null : sortHolders(device, input);
  const findings = allChecks(device, holders, input);
  const kernel = findings.flatMap((finding) => finding.log);
  const evidence: Evidence = {
    device: baseline.uuid,
    pciId: device?.pciId ?? baseline.pciId,
    at: input.wall,
    checks: findings.map(({ check, result, saw, before }) => ({ check, result, saw, before })),
    holders: holders === null ? [] : [...holders.leftovers, ...holders.unseen, ...holders.others].slice(0, 32),
    kernel: kernel.slice(-32),
  };
  const faults = findings.flatMap((finding) => finding.faults);
  const fromKernel = findings.some((finding) => finding.check === 'kernelLog' && finding.result === 'failed');
  const worst = faults.toSorted((a, b) => remedies.indexOf(b.remedy) - remedies.indexOf(a.remedy))[0];
  // A message of the driver about this device outweighs a tool that fails for all of them: it names the one at fault.
  if (worst !== undefined && fromKernel) return { kind: 'dirty', ...worst, evidence };
  const unknown = findings.filter((finding) => finding.result === 'unknown');
  if (device === null || unknown.length > 0) {
    const host = hostFault(inventory);
    if (host !== null) return { kind: 'host', ...host, evidence };
  }
  if (worst !== undefined) return { kind: 'dirty', ...worst, evidence };
  if (unknown.length > 0) return { kind: 'unknown', message: unknownMessage(unknown, input), evidence };
  const waits = findings.flatMap(({ wait }) => wait ?? []);
  if (waits[0] !== undefined) return { kind: 'wait', ...waits[0], evidence };
  if (holders !== null && findings.some((finding) => finding.result === 'held'))
    return { kind: 'occupied', message: `held by ${listHolders([...holders.others, ...holders.unseen], input.wall)}`, evidence };
  return { kind: 'clean', evidence };
}

/** A fault of the whole host, so that none of its GPUs can be used; null when there is none. */
export function hostFault({ findings }: Inventory): { code: string; message: string; hint: string | null } | null {
  const host = findings.find((one) => one.subject === 'host' && one.level === 'error' && Object.hasOwn(hostFaults, one.code));
  if (host === undefined) return null;
  return { code: host.code, message: `${capital(hostFaults[host.code] ?? '')}. ${host.message}`, hint: host.hint };
}

/** Host pids of all processes that the tool lists on a GPU. */
export function pidsOn(inventory: Inventory): number[] {
  return inventory.devices.flatMap((device) => (device.processes ?? []).map((process) => process.pid));
}

function listHolders(holders: readonly Holder[], wall: number): string {
  const shown = holders.slice(0, 3).map((one) => describeHolder(one, wall));
  return holders.length > 3 ? `${shown.join('; ')} and ${holders.length - 3} more` : shown.join('; ');
}

function unknownMessage(unknown: readonly Finding[], { inventory, baseline }: ProofInput): string {
  const hung = inventory.findings.find((one) => one.code === 'tool-hung');
  if (hung !== undefined) return hung.message;
  const asked = unknown.map((finding) => finding.check).join(', ');
  return `The state of ${baseline.uuid} is unknown: the tool reported nothing about ${asked}.`;
}
