/** Whether a job may get an NVIDIA GPU. An unreadable value is "unknown", not "fine"; a missing one (`N/A`) is neither. */
import { clip, finding } from '../finding.ts';
import type { GpuFinding, Health } from '../inventory.ts';
import { kernelLog, resetHint } from './failures.ts';
import fields from './fields.json' with { type: 'json' };
import type { GpuField, GpuReading } from './reading.ts';
import { isUnread, said, wholeNumber } from './values.ts';

interface Complaint {
  readonly code: string;
  /** The end of a sentence that begins with the GPU's name. */
  readonly words: string;
  readonly hint: string;
}

const replace = 'Have it replaced; onejob will not use it.';
const fabric =
  'Start nvidia-fabricmanager, in exactly the version of the driver ("systemctl restart nvidia-fabricmanager"); without it CUDA fails with error 802.';

/** `subject`: its UUID, or its PCI address where it has none. */
export function judge(reading: GpuReading, subject: string): { readonly health: Health; readonly findings: readonly GpuFinding[] } {
  const complaints = complaintsOf(reading, subject);
  const open = complaints.length > 0 ? [] : openQuestions(reading);
  const uncorrectedErrors = uncorrected(reading);
  const findings = complaints.map(({ code, words, hint }) => finding('error', code, subject, `${subject} ${words}.`, hint));
  const unread = open.filter((each) => each.reported);
  if (unread.length > 0) {
    const words = unread.map((each) => each.words).join(', ');
    const message = `${subject}: ${words}. onejob does not know whether it works.`;
    findings.push(finding('error', 'gpu-unknown', subject, message, kernelLog));
  }
  if (uncorrectedErrors !== null && uncorrectedErrors > 0) {
    const errors = uncorrectedErrors === 1 ? '1 uncorrected memory error' : `${uncorrectedErrors} uncorrected memory errors`;
    const message = `${subject} had ${errors} since its driver was loaded.`;
    findings.push(finding('warning', 'ecc-uncorrected', subject, message, `${kernelLog} A reset clears the count.`));
  }
  const action = said(reading.facts.recoveryAction);
  const health: Health = {
    state: complaints.length > 0 ? 'failed' : open.length > 0 ? 'unknown' : 'ok',
    reasons: [...complaints, ...open].map((each) => each.words),
    uncorrectedErrors,
    recoveryAction: action === null ? null : clip(action),
  };
  return { health, findings };
}

function complaintsOf(reading: GpuReading, subject: string): Complaint[] {
  const { facts, trouble } = reading;
  const yes = (field: GpuField) => /^(yes|true)$/i.test(said(facts[field]) ?? '');
  const other = (field: GpuField, ...fine: readonly string[]) => {
    const value = said(facts[field]);
    return value === null || fine.includes(value.toLowerCase()) ? null : clip(value);
  };
  const reset = resetHint(subject);
  const found: Complaint[] = [];
  const add = (when: boolean, code: string, words: string, hint: string) => {
    if (when && !found.some((each) => each.words === words)) found.push({ code, words, hint });
  };
  const lost = `Reboot the machine, or power-cycle it if the problem returns. ${kernelLog}`;
  add(trouble === 'lost', 'gpu-lost', 'is lost: it has fallen off the bus', lost);
  add(trouble === 'reset', 'reset-required', 'cannot be used before it is reset', reset);
  const action = other('recoveryAction', 'none');
  const recover = /reboot/i.test(action ?? '') ? lost : reset;
  add(action !== null, 'recovery-action', `needs "${action}", according to its driver`, recover);
  add(yes('resetRequired') || yes('drainRecommended'), 'reset-required', 'has to be reset, according to its driver', reset);
  add(yes('remapFailure'), 'row-remap-failed', 'has a broken row of memory that it could not replace', replace);
  add(yes('unrepairable'), 'memory-unrepairable', 'has memory that cannot be repaired', replace);
  add(yes('sramThreshold'), 'sram-errors', 'had more SRAM errors than are acceptable', replace);
  add(yes('remapPending'), 'row-remap-pending', 'waits for a reset to replace a broken row of memory', reset);
  const isRetiring = yes('retirementPending') || yes('blacklistPending');
  add(isRetiring, 'page-retirement-pending', 'waits for a reset to retire a broken page of memory', reset);
  add(yes('channelRepair') || yes('tpcRepair'), 'repair-pending', 'waits for a reset to repair itself', reset);
  const state = other('fabricState', 'completed');
  add(state !== null, 'fabric', `is not part of the NVLink fabric yet (${state})`, fabric);
  const status = other('fabricStatus', 'success');
  add(state === null && status !== null, 'fabric', `could not join the NVLink fabric (${status})`, fabric);
  const wrong = other('fabricConfig', 'none', 'false');
  add(wrong !== null, 'fabric', `is wrongly configured in the NVLink fabric (${wrong})`, fabric);
  const unhealthy = yes('fabricRoute') || other('fabricSummary', 'healthy', 'limited capacity') !== null;
  add(unhealthy, 'fabric', 'has an unhealthy route in the NVLink fabric', `Check the log of the fabric manager. ${kernelLog}`);
  return found;
}

/** Why a card without complaints cannot be called healthy; `reported` where a person should look. */
function openQuestions({ facts, depth }: GpuReading): { readonly words: string; readonly reported: boolean }[] {
  const unread = Object.entries(fields.vital).flatMap(([field, words]) => (isUnread(facts[field as GpuField]) ? [words] : []));
  const failed = [...new Set(unread)].map((words) => ({ words: `its ${words} cannot be read`, reported: true }));
  if (failed.length > 0) return failed;
  if (depth === 'name') return [{ words: 'only its name was read', reported: false }];
  const alive = [facts.memoryTotal, facts.temperature, facts.performanceState].some((value) => said(value) !== null);
  return alive ? [] : [{ words: 'the tool reports nothing about its state', reported: false }];
}

function uncorrected({ facts }: GpuReading): number | null {
  const count = (field: GpuField) => wholeNumber(said(facts[field]) ?? '', Number.MAX_SAFE_INTEGER);
  const total = count('uncorrectedTotal');
  if (total !== null) return total;
  const parts = (['uncorrectedDram', 'uncorrectedSram', 'uncorrectedParity', 'uncorrectedSecded'] as const).map(count);
  const known = parts.filter((part) => part !== null);
  return known.length === 0 ? null : known.reduce((sum, part) => sum + part, 0);
}
