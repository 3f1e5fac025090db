/**
 * The checks of the clean-slot proof, in the order of the evidence: processes, memory, settings, errors, kernel log. All of them
 * run every time, so that the evidence is complete. Each compares the current value with the baseline: known before and unknown
 * now is unknown; never known is unchecked.
 */
import { formatBytes } from '../base/units.ts';
import type { Baseline, ProofInput } from './baseline.ts';
import type { Device } from './inventory.ts';
import { isAfter, type KernelEvent, pciPlace } from './kernel-log.ts';
import { sameProfile } from './mig.ts';
import { type Holder, type Holders, ownMemory } from './processes.ts';
import { gradeXid } from './xid.ts';

/** Why a device is dirty. `code` is a stable word for programs. */
export type Fault = {
  readonly code: string;
  readonly message: string;
  readonly remedy: 'look' | 'reset' | 'reboot' | 'replace';
  /** What to type next; null where nothing helps. */
  readonly hint: string | null;
};

/** One line of the evidence. `unchecked`: this device or host never reports it, or another finding makes the check pointless. */
export type Check = {
  readonly check: 'listed' | keyof typeof checks;
  readonly result: 'ok' | 'failed' | 'wait' | 'held' | 'unknown' | 'unchecked';
  readonly saw: string | null;
  readonly before: string | null;
};

export interface Finding extends Check {
  readonly faults: readonly Fault[];
  readonly wait: { readonly message: string; readonly until: number } | null;
  /** Lines of the kernel log. */
  readonly log: readonly string[];
}

/** A finding without the name of its check. */
type Outcome = Omit<Finding, 'check'>;

function outcome(result: Finding['result'], more: Partial<Outcome> = {}): Outcome {
  return { saw: null, before: null, faults: [], wait: null, log: [], ...more, result };
}

function failed(fault: Fault, more: Partial<Outcome> = {}): Outcome {
  return outcome('failed', { ...more, faults: [fault] });
}

/** How long to wait for leftover processes, and for memory that no process uses, in ms after the agent ended. */
const leftoverWait = 30_000;
export const memoryWait = 60_000;

/** MiB that a device may use above its baseline: the driver's own contexts come and go. */
const memoryTolerance = 64;

/** The checks of a device that is listed, in the order of the evidence. */
const checks = {
  health,
  processes,
  memory,
  computeMode,
  persistence,
  settings,
  mig,
  eccMode,
  eccErrors,
  kernelLog,
  recoveryAction,
  driver,
  nodes,
};

/** `device`: as listed now, null when it is not listed. `holders`: null where the tool does not list processes. */
export function allChecks(device: Device | null, holders: Holders | null, input: ProofInput): Finding[] {
  if (device === null)
    return [
      { check: 'listed', ...missing(input) },
      { check: 'kernelLog', ...kernelLog(null, input) },
    ];
  const names = Object.keys(checks) as (keyof typeof checks)[];
  const all = names.map((check) => ({ check, ...checks[check](device, input, holders) }));
  return [{ check: 'listed', ...outcome('ok') }, ...all];
}

/** The rule for a value that must be as before; it calls `judge` only for a value that is known both before and now. */
function compare<T>(
  now: T | null,
  before: T | null,
  judge: (now: T, before: T) => Fault | null,
  show: (value: T) => string = String,
): Outcome {
  const seen = { saw: now === null ? null : show(now), before: before === null ? null : show(before) };
  if (before === null) return outcome('unchecked', seen);
  if (now === null) return outcome('unknown', seen);
  const fault = judge(now, before);
  return fault === null ? outcome('ok', seen) : failed(fault, seen);
}

function missing({ baseline, inventory }: ProofInput): Outcome {
  if (!inventory.complete) return outcome('unknown');
  if (baseline.parent === null) {
    const place = baseline.pciId === null ? '' : ` at PCI ${baseline.pciId}`;
    const message = `${baseline.uuid} is no longer listed${place}: it has fallen off the bus, or was removed.`;
    return failed({ code: 'missing', message, remedy: 'reboot', hint: 'Search "dmesg" for it, and reboot the host.' });
  }
  const message = `${baseline.uuid} no longer exists: the MIG layout of ${baseline.parent} has changed.`;
  return failed({ code: 'missing', message, remedy: 'look', hint: 'Create the MIG instances again as they were.' });
}

/** Remedies for the inventory's findings about a device; others need another look. */
const remedies: ReadonlyMap<string, Fault['remedy']> = new Map([
  ['gpu-lost', 'reboot'],
  ...['reset-required', 'row-remap-pending', 'page-retirement-pending', 'repair-pending'].map((code) => [code, 'reset'] as const),
  ...['row-remap-failed', 'memory-unrepairable', 'sram-errors'].map((code) => [code, 'replace'] as const),
]);

function health({ uuid, parent, health: now }: Device, { baseline, inventory }: ProofInput): Outcome {
  const seen = { saw: now.state === 'ok' ? 'ok' : [now.state, ...now.reasons].join(', '), before: baseline.health };
  if (now.state === 'ok') return outcome('ok', seen);
  if (now.state === 'unknown') return outcome(baseline.health === 'unknown' ? 'unchecked' : 'unknown', seen);
  const about = inventory.findings.filter(({ level, subject }) => level === 'error' && (subject === uuid || subject === parent));
  const message = `${uuid} ${now.reasons.join(', and ') || 'is not healthy'}.`;
  const faults = about.map(({ code, hint }): Fault => ({ code, message, remedy: remedies.get(code) ?? 'look', hint }));
  const unnamed: Fault = { code: 'unhealthy', message, remedy: 'look', hint: 'Type "onejob gpus" to see what helps.' };
  return outcome('failed', { ...seen, faults: faults.length > 0 ? faults : [unnamed] });
}

function processes(_: Device, { baseline, now, since }: ProofInput, holders: Holders | null): Outcome {
  if (holders === null) return outcome(baseline.listsProcesses ? 'unknown' : 'unchecked');
  const { leftovers, unseen, others, residents } = holders;
  const saw = `${leftovers.length} of the agent, ${others.length + unseen.length} of others, ${residents.count} of displays`;
  const until = since + leftoverWait;
  const late = now >= until;
  const list = (of: readonly Holder[]) => of.map(({ command, pid }) => `${command ?? 'a process'} (pid ${pid})`).join(', ');
  if (leftovers.length > 0 && late) {
    const stuck = leftovers.some((one) => one.state === 'D');
    const how = stuck ? 'waits inside the driver, where nothing can end it' : 'does not end';
    const message = `${list(leftovers)} of the ended agent still uses ${baseline.uuid} after ${leftoverWait / 1000} s: it ${how}.`;
    const hint = stuck ? 'Reboot the host.' : `Type "kill -9 ${leftovers.map(({ pid }) => pid).join(' ')}".`;
    return failed({ code: 'leftover-process', message, remedy: 'look', hint }, { saw });
  }
  if (leftovers.length + unseen.length > 0 && !late) {
    const message = `${list([...leftovers, ...unseen])} is still leaving ${baseline.uuid}.`;
    return outcome('wait', { saw, wait: { message, until } });
  }
  return outcome(others.length + unseen.length > 0 ? 'held' : 'ok', { saw });
}

function memory(device: Device, { baseline, now, since }: ProofInput, holders: Holders | null): Outcome {
  const own = ownMemory(device);
  const show = (mib: number | null) => (mib === null ? null : formatBytes(mib * 2 ** 20));
  const seen = { saw: show(own), before: show(baseline.memoryMiB) };
  if (baseline.memoryMiB === null) return outcome('unchecked', seen);
  if (own === null) return outcome('unknown', seen);
  if (own <= baseline.memoryMiB + memoryTolerance) return outcome('ok', seen);
  const held =
    holders !== null && [holders.leftovers, holders.unseen, holders.others, holders.sharers].some((one) => one.length > 0);
  // It is theirs, and can be judged when they are gone.
  if (held) return outcome('unchecked', seen);
  if (holders !== null && !holders.residents.memoryKnown) return outcome('unchecked', seen);
  const excess = `${seen.saw} are in use on ${device.uuid} without a process; before the agent it was ${seen.before}`;
  const until = since + memoryWait;
  if (now < until) return outcome('wait', { ...seen, wait: { message: `${excess}.`, until } });
  // The tool does not list all of a desktop's memory per process, so it is not a fault.
  if (holders !== null && holders.residents.count > 0) return outcome('unchecked', seen);
  const message = `${excess}. They are still in use after ${memoryWait / 1000} s.`;
  const hint = hintFor('reset', device.uuid, device.parent);
  return failed({ code: 'memory-held', message, remedy: 'look', hint }, seen);
}

function computeMode({ uuid, computeMode: mode }: Device, { baseline }: ProofInput): Outcome {
  return compare(mode, baseline.computeMode, (now, before) => {
    if (now === before) return null;
    const message = `The compute mode of ${uuid} was ${before} and is ${now}.`;
    const hint = `Type "nvidia-smi -i ${uuid} -c ${before.toUpperCase()}" as root.`;
    return { code: 'compute-mode', message, remedy: 'look', hint };
  });
}

function persistence({ uuid, persistence: mode }: Device, { baseline }: ProofInput): Outcome {
  // `doctor` recommends to turn it on, so that is not a fault.
  return compare(mode, baseline.persistence, (now, before) => {
    if (now || !before) return null;
    const message = `The persistence mode of ${uuid} was on and is off.`;
    return { code: 'persistence-mode', message, remedy: 'look', hint: `Type "nvidia-smi -i ${uuid} -pm 1" as root.` };
  });
}

function settings({ uuid, parent, settings: set }: Device, { baseline }: ProofInput): Outcome {
  return compare(set, baseline.settings, (now, before) => {
    if (now === before) return null;
    const message = `Clocks and power limit of ${uuid} were set to ${before} and are ${now}.`;
    const gpu = parent ?? uuid;
    const hint = `Type "nvidia-smi -i ${gpu} -rac" and "nvidia-smi -i ${gpu} -pl WATTS" as root.`;
    return { code: 'settings', message, remedy: 'look', hint };
  });
}

function mig(device: Device, { baseline }: ProofInput): Outcome {
  return compare(device.mig, baseline.mig, (now, before) => layoutFault(device, now, before), showMig);
}

type Mig = NonNullable<Device['mig']>;

function layoutFault({ uuid }: Device, now: Mig, before: Mig): Fault | null {
  const fault = (message: string): Fault => ({
    code: 'mig-layout',
    message,
    remedy: 'look',
    hint: 'Restore the MIG layout, or accept the device as it is with "onejob gpus clear".',
  });
  if ('mode' in now !== 'mode' in before) return fault(`${uuid} was ${showMig(before)} and is ${showMig(now)}.`);
  if ('mode' in now && 'mode' in before) {
    if (now.mode !== before.mode) return fault(`MIG of ${uuid} was ${before.mode} and is ${now.mode}.`);
    const isNew = now.pending !== null && now.pending !== before.pending;
    return isNew ? fault(`MIG of ${uuid} is ${now.mode} and will be ${now.pending} after the next reset.`) : null;
  }
  // The UUID stands for the placement; ids may change when a layout is created again.
  if ('mode' in now || 'mode' in before || now.profile === null || before.profile === null) return null;
  if (now.profile === before.profile || sameProfile(now.profile, before.profile)) return null;
  return fault(`${uuid} was a ${before.profile} and is a ${now.profile}.`);
}

function showMig(value: Mig): string {
  return 'mode' in value ? `MIG ${value.mode}` : `MIG instance ${value.profile ?? 'of unknown profile'}`;
}

function eccMode({ uuid, parent, ecc }: Device, { baseline }: ProofInput): Outcome {
  type Ecc = NonNullable<Device['ecc']>;
  const word = (on: boolean) => (on ? 'on' : 'off');
  const show = ({ current, pending }: Ecc) => `${word(current)}, then ${word(pending)}`;
  const judge = ({ current, pending }: Ecc, before: Ecc): Fault | null => {
    if (current === pending || (before.current === current && before.pending === pending)) return null;
    const message = `ECC of ${uuid} is ${word(current)} and will be ${word(pending)} after the next reset.`;
    return { code: 'ecc-mode-pending', message, remedy: 'reset', hint: hintFor('reset', uuid, parent) };
  };
  return compare(ecc, baseline.ecc, judge, show);
}

function eccErrors({ uuid, parent, health: { uncorrectedErrors } }: Device, { baseline, boot }: ProofInput): Outcome {
  // They are counted from when the driver was loaded.
  const before = baseline.uncorrectedErrors !== null && wasRebooted(baseline.boot, boot) ? 0 : baseline.uncorrectedErrors;
  return compare(uncorrectedErrors, before, (now, then) => {
    if (now <= then) return null;
    const message = `${now - then} uncorrected memory error${now - then === 1 ? '' : 's'} on ${uuid} since the agent started.`;
    return { code: 'ecc-errors', message, remedy: 'reset', hint: hintFor('reset', uuid, parent) };
  });
}

/** The kernel log's lines about a device since its baseline. */
function kernelLog(device: Device | null, { baseline, kernel, boot }: ProofInput): Outcome {
  if (!kernel.readable) return outcome('unchecked', { saw: 'kernel log not readable' });
  const place = pciPlace(device?.pciId ?? baseline.pciId ?? '');
  if (place === null) return outcome('unchecked', { saw: 'no PCI address' });
  const mark = wasRebooted(baseline.boot, boot) ? { seq: -1, at: 0 } : baseline.mark;
  const own = device?.mig ?? baseline.mig;
  const events = kernel.events.filter((one) => one.pciId === place && isAfter(one, mark) && !isNeighbours(one, own));
  const faults = events.flatMap((event) => eventFault(event, device, baseline) ?? []);
  const saw = `${events.length} ${events.length === 1 ? 'event' : 'events'}${kernel.lost ? ', and some were overwritten' : ''}`;
  return outcome(faults.length > 0 ? 'failed' : 'ok', { saw, faults, log: events.map((event) => event.text) });
}

/** Whether an error concerns only another MIG instance. One that needs a reset concerns all of them. */
function isNeighbours(event: KernelEvent, own: Device['mig']): boolean {
  if (event.gpuInstance === null || own === null || 'mode' in own || own.gpuInstance === null) return false;
  const { grade } = gradeXid(event.xid ?? -1);
  return event.gpuInstance !== own.gpuInstance && (grade === 'application' || grade === 'info' || grade === 'unknown');
}

function eventFault(event: KernelEvent, device: Device | null, { uuid, parent }: Baseline): Fault | null {
  const fault = (code: string, what: string, remedy: Fault['remedy']): Fault => {
    const message = `The driver reported for ${uuid} since the agent started: ${what}.`;
    return { code, message, remedy, hint: hintFor(remedy, uuid, parent) };
  };
  if (event.kind === 'fallen-off') return fault('fallen-off', 'it has fallen off the bus', 'reboot');
  if (event.kind === 'rm-init') return fault('rm-init', 'it could not be initialised', 'reboot');
  if (event.kind === 'reset-needed') return fault('reset-needed', 'it needs a reset', 'reset');
  if (event.kind !== 'xid' || event.xid === null) return null;
  const { grade, meaning } = gradeXid(event.xid);
  const what = `Xid ${event.xid}, ${meaning}`;
  // 154 only refers to the recovery action, which drivers that print 154 report elsewhere.
  const isUntold = event.xid === 154 && device?.health.recoveryAction === null && !/\(None\)[^()]*$/.test(event.text);
  if (isUntold) return fault('xid', what, 'reset');
  if (grade === 'application' || grade === 'info') return null;
  const remedy = ({ reset: 'reset', restart: 'reboot', hardware: 'replace', unknown: 'look' } as const)[grade];
  return fault('xid', what, remedy);
}

function recoveryAction({ uuid, parent, health: { recoveryAction: action } }: Device): Outcome {
  if (action === null) return outcome('unchecked');
  if (/^none$/i.test(action.trim())) return outcome('ok', { saw: action });
  const remedy = /reboot/i.test(action) ? 'reboot' : 'reset';
  const message = `The driver asks for "${action}" to recover ${uuid}.`;
  const hint = hintFor(remedy, uuid, parent);
  return failed({ code: 'recovery-action', message, remedy, hint }, { saw: action });
}

/** Another driver is not a fault: one that does not match its library shows as such, and standbys are created again (S11). */
function driver(_: Device, { inventory, baseline }: ProofInput): Outcome {
  return compare(inventory.driver, baseline.driver, () => null);
}

function nodes(_: Device, { missingNodes, baseline }: ProofInput): Outcome {
  if (missingNodes.length === 0) return outcome('ok');
  const message = `${missingNodes.join(', ')} of ${baseline.uuid} ${missingNodes.length === 1 ? 'is' : 'are'} missing.`;
  const hint = 'Type "nvidia-modprobe -u" and "nvidia-smi -L" as root, which create them.';
  return failed({ code: 'node-missing', message, remedy: 'look', hint }, { saw: `without ${missingNodes.join(', ')}` });
}

/** What a person can do. A MIG instance is reset with its GPU, `parent`. */
function hintFor(remedy: Fault['remedy'], uuid: string, parent: string | null): string {
  const clear = `"onejob gpus clear ${uuid}"`;
  if (remedy === 'reboot') return 'Reboot the host.';
  if (remedy === 'replace') return `Contact the vendor's support; when it is repaired, type ${clear}.`;
  const gpu = parent ?? uuid;
  if (!gpu.startsWith('GPU-')) return `Reset it when nothing uses it, or reboot the host; then type ${clear}.`;
  return `When nothing uses it, type "nvidia-smi --gpu-reset -i ${gpu}" as root, or reboot the host; then type ${clear}.`;
}

function wasRebooted(before: string | null, now: string | null): boolean {
  return before !== null && now !== null && before !== now;
}
