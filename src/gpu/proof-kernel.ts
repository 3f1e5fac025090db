/** What the kernel log says of a device since its baseline, as a check of the clean-slot proof. */
import type { Device } from './inventory.ts';
import { isAfter, type KernelEvent, pciPlace } from './kernel-log.ts';
import { type Fault, type Finding, finding, hintFor, wasRebooted } from './proof-finding.ts';
import type { Baseline, ProofInput } from './proof-input.ts';
import { gradeXid } from './xid.ts';

export function kernelLog(device: Device | null, { baseline, kernel, boot }: ProofInput): Finding {
  if (!kernel.readable) return finding('kernelLog', 'unchecked', { saw: 'kernel log not readable' });
  const place = pciPlace(device?.pciId ?? baseline.pciId ?? '');
  if (place === null) return finding('kernelLog', 'unchecked', { saw: 'no PCI address' });
  const mark = wasRebooted(baseline.boot, boot) ? { seq: -1, at: 0 } : baseline.mark;
  const events = kernel.events.filter(
    (event) => event.pciId === place && isAfter(event, mark) && !isNeighbours(event, device?.mig ?? baseline.mig),
  );
  const faults = events.flatMap((event) => eventFault(event, device, baseline) ?? []);
  const saw = `${events.length} ${events.length === 1 ? 'event' : 'events'}${kernel.lost ? ', and some were overwritten' : ''}`;
  return finding('kernelLog', faults.length > 0 ? 'failed' : 'ok', { saw, faults, log: events.map((event) => event.text) });
}

/** Whether an error is only of another MIG instance. One that takes a reset takes it of all of them. */
function isNeighbours(event: KernelEvent, own: Device['mig']): boolean {
  if (event.gpuInstance === null || own === null || 'mode' in own || own.gpuInstance === null) return false;
  const { grade } = gradeXid(event.xid ?? -1);
  return event.gpuInstance !== own.gpuInstance && (grade === 'application' || grade === 'info' || grade === 'unknown');
}

function eventFault(event: KernelEvent, device: Device | null, { uuid, parent }: Baseline): Fault | null {
  const fault = (code: string, what: string, remedy: Fault['remedy']): Fault => {
    const message = `The driver reported of ${uuid} since the agent started: ${what}.`;
    return { code, message, remedy, hint: hintFor(remedy, uuid, parent) };
  };
  if (event.kind === 'fallen-off') return fault('fallen-off', 'it has fallen off the bus', 'reboot');
  if (event.kind === 'rm-init') return fault('rm-init', 'it could not be initialised', 'reboot');
  if (event.kind === 'reset-needed') return fault('reset-needed', 'it needs a reset', 'reset');
  if (event.kind !== 'xid' || event.xid === null) return null;
  const { grade, meaning } = gradeXid(event.xid);
  const what = `Xid ${event.xid}, ${meaning}`;
  // 154 only points to the recovery action, which drivers of its time tell elsewhere.
  const isUntold =
    event.xid === 154 && device !== null && device.health.recoveryAction === null && !/\(None\)[^()]*$/.test(event.text);
  if (isUntold) return fault('xid', what, 'reset');
  if (grade === 'application' || grade === 'info') return null;
  const remedy = ({ reset: 'reset', restart: 'reboot', hardware: 'replace', unknown: 'look' } as const)[grade];
  return fault('xid', what, remedy);
}
