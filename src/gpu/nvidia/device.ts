/** One NVIDIA GPU, or one of its MIG instances, from its readings. Invalid numbers are left out, with a finding. */
import { architectureOf } from '../architectures.ts';
import { countOf, mebibytes } from '../fields.ts';
import { clip, finding, plain } from '../finding.ts';
import { type Device, type GpuFinding, type GpuMig, type GpuProcess, type Health, unknownGpu } from '../inventory.ts';
import { mayBeOn } from '../mig.ts';
import { normalPci } from '../pci.ts';
import { kernelLog, resetHint } from './failures.ts';
import fields from './fields.json' with { type: 'json' };
import type { Facts, GpuField, GpuReading, MigReading, ProcessReading } from './reading.ts';
import { isUnread, isUsualUuid, nvidiaText } from './values.ts';

/** The kernel numbers processes up to 2^22, other systems further. */
const mostPid = 2 ** 31 - 1;
const idOf = (text: string | null) => countOf(text, 65_535);

/** `uuid` is certain; anything else may be missing. */
export function gpuDevice(reading: GpuReading, uuid: string) {
  const { facts } = reading;
  const findings: GpuFinding[] = [];
  const warn = (code: string, message: string, hint: string | null = null) =>
    findings.push(finding('warning', code, uuid, message, hint));
  const odd = oddIn(uuid, findings);
  const read = readerOf(facts, odd);

  const pciId = read('pciId', 'PCI address', normalPci);
  const memoryMiB = read('memoryTotal', 'memory', mebibytes) || null;
  const memoryUsedMiB = usedOf(read('memoryUsed', 'used memory', mebibytes), memoryMiB, odd);
  const model = plainName(facts.model);
  if (model === null && (facts.model !== undefined || reading.depth === 'state')) {
    warn('no-model', `${uuid}: the tool does not report its model, so no condition on a model matches it.`);
  } else if (/^(?:NVIDIA )?Graphics Device$/i.test(model ?? '')) {
    const message = `${uuid} is reported only as "${model}": the driver is older than the card.`;
    warn('model-unknown', message, 'Install a newer driver.');
  } else if (/\(nvgpu\)|\b(?:Orin|Thor|Xavier|Tegra)\b/i.test(model ?? '')) {
    const message = `${uuid} is the GPU of a Jetson (${model}), and nvidia-smi reports almost nothing about it.`;
    warn('jetson', message, 'Its containers need the runtime "nvidia" or CDI, and images made for its Jetson Linux.');
  }
  if (!isUsualUuid(uuid))
    warn('odd-uuid', `${uuid} is not a complete UUID: it is masked or made up, so onejob cannot grant anything by it.`);
  const { health, findings: complaints } = judgeDevice(reading, uuid);
  const mig = migOf(reading);
  if (mig !== null && mig.pending !== null) {
    const message = `${uuid}: MIG is ${mig.mode}, but will be ${mig.pending} after its next reset.`;
    warn('mig-pending', message, 'Reset it while nothing uses it, or undo the change (nvidia-smi -mig).');
  }
  const ecc = eccOf(facts);
  if (ecc !== null && ecc.current !== ecc.pending) {
    const words = (on: boolean) => (on ? 'on' : 'off');
    warn('ecc-pending', `${uuid}: ECC is ${words(ecc.current)}, but will be ${words(ecc.pending)} after its next reset.`);
  }
  const device: Device = {
    ...unknownGpu('nvidia', uuid, model ?? 'unknown'),
    index: read('index', 'index', idOf),
    minor: read('minor', 'minor number', idOf),
    pciId,
    memoryMiB,
    memoryUsedMiB,
    ...architectureOf(model ?? '', plainName(facts.architecture)),
    mig,
    health,
    persistence: switchOf(facts.persistence),
    ecc,
    computeMode: plainName(facts.computeMode),
    settings: settingsOf(facts),
    display: switchOf(facts.displayActive),
    processes: processesOf(reading.processes, odd),
  };
  return { device, findings: [...complaints, ...findings] };
}

function settingsOf({ graphicsClock, memoryClock, powerLimit }: GpuReading['facts']): string | null {
  const number = (text: string | undefined) => /^(\d+)(?:\.0*)?\s*(?:MHz|W)$/.exec(nvidiaText(text) ?? '')?.[1] ?? null;
  const [graphics, memory, watts] = [number(graphicsClock), number(memoryClock), number(powerLimit)];
  const parts = [graphics !== null && memory !== null ? `${graphics}/${memory} MHz` : null, watts === null ? null : `${watts} W`];
  return parts.filter((part) => part !== null).join(', ') || null;
}

/** One instance of `gpu`. It shares the GPU's health: when the GPU fails, all of its instances fail. */
export function migDevice(reading: MigReading, uuid: string, gpu: Device, isSeen: boolean) {
  const findings: GpuFinding[] = [];
  const odd = oddIn(uuid, findings);
  const read = readerOf(reading, odd);
  const gpuInstance = read('gpuInstance', 'GPU instance', idOf);
  const computeInstance = read('computeInstance', 'compute instance', idOf);
  const total = read('memoryTotal', 'memory', mebibytes) || null;
  const memoryMiB = total !== null && gpu.memoryMiB !== null && total > gpu.memoryMiB ? null : total;
  if (memoryMiB !== total) odd('memory', `${total} MiB, more than its GPU has`);
  const unknown = gpu.health.state === 'ok' && !isSeen;
  const device: Device = {
    ...gpu,
    kind: 'mig',
    uuid,
    parent: gpu.uuid,
    index: read('index', 'index', idOf),
    memoryMiB,
    memoryUsedMiB: usedOf(read('memoryUsed', 'used memory', mebibytes), memoryMiB, odd),
    mig: { profile: plainName(reading.profile), gpuInstance, computeInstance },
    health: {
      ...gpu.health,
      ...(unknown ? { state: 'unknown', reasons: ['only its name was read'] } : {}),
      uncorrectedErrors: read('uncorrected', 'count of ECC errors', countOf),
    },
    processes:
      gpuInstance === null ? null : (gpu.processes?.filter((one) => mayBeOn(one, { gpuInstance, computeInstance })) ?? null),
  };
  return { device, findings };
}

type Odd = (what: string, text: string) => void;

/** Adds a finding about an invalid value. */
function oddIn(uuid: string, findings: GpuFinding[]): Odd {
  return (what, text) =>
    findings.push(finding('warning', 'odd-value', uuid, `${uuid}: its ${what} reads "${clip(text)}", which is invalid.`));
}

/** Reads a field as a number: null when it is missing, and with a finding when it is invalid. */
function readerOf<F extends string>(facts: Facts<F>, odd: Odd) {
  return <T>(field: F, what: string, parse: (text: string) => T | null): T | null => {
    const text = nvidiaText(facts[field]);
    if (text === null) return null;
    const value = parse(text);
    if (value === null) odd(what, text);
    return value;
  };
}

function usedOf(used: number | null, total: number | null, odd: Odd): number | null {
  if (used === null || total === null || used <= total) return used;
  odd('used memory', `${used} MiB of ${total} MiB`);
  return null;
}

function switchOf(text: string | undefined): boolean | null {
  const value = nvidiaText(text)?.toLowerCase();
  if (value === 'enabled' || value === 'on') return true;
  return value === 'disabled' || value === 'off' ? false : null;
}

function modeOf(text: string | undefined): GpuMig['mode'] | null {
  const on = switchOf(text);
  return on === null ? null : on ? 'enabled' : 'disabled';
}

function migOf({ facts, instances }: GpuReading): GpuMig | null {
  const mode = modeOf(facts.migCurrent) ?? (instances.length > 0 ? 'enabled' : null);
  const pending = modeOf(facts.migPending);
  return mode === null ? null : { mode, pending: pending === mode ? null : pending };
}

function eccOf(facts: GpuReading['facts']): Device['ecc'] {
  const current = switchOf(facts.eccCurrent);
  return current === null ? null : { current, pending: switchOf(facts.eccPending) ?? current };
}

function processesOf(readings: readonly ProcessReading[] | null, odd: Odd): readonly GpuProcess[] | null {
  if (readings === null) return null;
  const processes = readings.map(processOf);
  const wrong = processes.indexOf(null);
  // An unknown process is there: that is not an empty list.
  if (wrong >= 0) odd("process' number", readings[wrong]?.pid ?? '');
  return wrong >= 0 ? null : processes.filter((process) => process !== null);
}

function processOf(reading: ProcessReading): GpuProcess | null {
  const pid = countOf(nvidiaText(reading.pid), mostPid);
  if (pid === null || pid === 0) return null;
  const type = nvidiaText(reading.type);
  return {
    pid,
    name: plainName(reading.name),
    type: (['C', 'G', 'C+G', 'M+C'] as const).find((each) => each === type) ?? null,
    memoryMiB: mebibytes(nvidiaText(reading.memory)),
    gpuInstance: idOf(nvidiaText(reading.gpuInstance)),
    computeInstance: idOf(nvidiaText(reading.computeInstance)),
  };
}

function plainName(text: string | undefined): string | null {
  const name = plain(nvidiaText(text) ?? '').trim();
  return name === '' ? null : name.slice(0, 200);
}

const replace = 'Have it replaced; onejob will not use it.';
const fabric =
  'Start nvidia-fabricmanager, in exactly the version of the driver ("systemctl restart nvidia-fabricmanager"); without it CUDA fails with error 802.';

/**
 * Whether a job may get it. An unreadable value is "unknown", not "fine"; a missing one (`N/A`) is neither. `subject`: its UUID, or
 * its PCI address where it has none.
 */
export function judgeDevice(
  reading: GpuReading,
  subject: string,
): { readonly health: Health; readonly findings: readonly GpuFinding[] } {
  const complaints = complaintsOf(reading, subject);
  const open = complaints.length > 0 ? [] : openQuestions(reading);
  const uncorrectedErrors = uncorrected(reading);
  const findings = [
    ...complaints.map(({ code, words, hint }) => finding('error', code, subject, `${subject} ${words}.`, hint)),
    ...limits(reading, subject),
  ];
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
  const action = nvidiaText(reading.facts.recoveryAction);
  const health: Health = {
    state: complaints.length > 0 ? 'failed' : open.length > 0 ? 'unknown' : 'ok',
    reasons: [...complaints, ...open].map((each) => each.words),
    uncorrectedErrors,
    recoveryAction: action === null ? null : clip(action),
  };
  return { health, findings };
}

const license =
  'Check the client of the license ("systemctl status nvidia-gridd", and its log) and the license server; then type "onejob gpus".';

/** What keeps some programs from a card that works. */
function limits({ facts }: GpuReading, subject: string): GpuFinding[] {
  const findings: GpuFinding[] = [];
  const mode = nvidiaText(facts.computeMode);
  if (mode !== null && /^exclusive/i.test(mode)) {
    const message = `${subject} lets only one process compute at a time (compute mode ${clip(mode)}): a second process of a job fails.`;
    const hint = `Unless MPS needs it, type "nvidia-smi -i ${subject} -c DEFAULT" as root.`;
    findings.push(finding('warning', 'compute-exclusive', subject, message, hint));
  }
  if (licenceOf(facts) === 'grace') {
    const message = `${subject} is a vGPU without a license: 20 minutes after its start it becomes so slow that no program can use it.`;
    findings.push(finding('warning', 'vgpu-unlicensed', subject, message, license));
  }
  return findings;
}

/** Only a vGPU needs one to compute. `grace`: it has none, and is still fast. */
function licenceOf(facts: GpuReading['facts']): 'grace' | 'none' | null {
  const status = nvidiaText(facts.licence);
  if (status === null || !/^unlicensed/i.test(status) || !/^vgpu$/i.test(nvidiaText(facts.virtualization) ?? '')) return null;
  return /unrestricted/i.test(status) ? 'grace' : 'none';
}

/** `words`: the end of a sentence that begins with the GPU's name. */
function complaintsOf(reading: GpuReading, subject: string) {
  const { facts, trouble } = reading;
  const yes = (field: GpuField) => /^(yes|true)$/i.test(nvidiaText(facts[field]) ?? '');
  const other = (field: GpuField, ...fine: readonly string[]) => {
    const value = nvidiaText(facts[field]);
    return value === null || fine.includes(value.toLowerCase()) ? null : clip(value);
  };
  const reset = resetHint(subject);
  const complaints: { readonly code: string; readonly words: string; readonly hint: string }[] = [];
  const add = (when: boolean, code: string, words: string, hint: string) => {
    if (when && !complaints.some((each) => each.words === words)) complaints.push({ code, words, hint });
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
  const allow = `Type "nvidia-smi -i ${subject} -c DEFAULT" as root.`;
  const isProhibited = /^prohibited$/i.test(nvidiaText(facts.computeMode) ?? '');
  add(isProhibited, 'compute-prohibited', 'lets no program compute (compute mode Prohibited)', allow);
  add(licenceOf(facts) === 'none', 'vgpu-unlicensed', 'is a vGPU without a license, so no program can use it', license);
  const state = other('fabricState', 'completed');
  add(state !== null, 'fabric', `is not part of the NVLink fabric yet (${state})`, fabric);
  const status = other('fabricStatus', 'success');
  add(state === null && status !== null, 'fabric', `could not join the NVLink fabric (${status})`, fabric);
  const wrong = other('fabricConfig', 'none', 'false');
  add(wrong !== null, 'fabric', `is wrongly configured in the NVLink fabric (${wrong})`, fabric);
  const unhealthy = yes('fabricRoute') || other('fabricSummary', 'healthy', 'limited capacity') !== null;
  add(unhealthy, 'fabric', 'has an unhealthy route in the NVLink fabric', `Check the log of the fabric manager. ${kernelLog}`);
  return complaints;
}

/** Why a card without complaints cannot be called healthy; `reported` where a person should look. */
function openQuestions({ facts, depth }: GpuReading): { readonly words: string; readonly reported: boolean }[] {
  const unread = Object.entries(fields.vital).flatMap(([field, words]) => (isUnread(facts[field as GpuField]) ? [words] : []));
  const failed = [...new Set(unread)].map((words) => ({ words: `its ${words} cannot be read`, reported: true }));
  if (failed.length > 0) return failed;
  if (depth === 'name') return [{ words: 'only its name was read', reported: false }];
  const alive = [facts.memoryTotal, facts.temperature, facts.performanceState].some((value) => nvidiaText(value) !== null);
  return alive ? [] : [{ words: 'the tool reports nothing about its state', reported: false }];
}

function uncorrected({ facts }: GpuReading): number | null {
  const count = (field: GpuField) => countOf(nvidiaText(facts[field]));
  const total = count('uncorrectedTotal');
  if (total !== null) return total;
  const parts = (['uncorrectedDram', 'uncorrectedSram', 'uncorrectedParity', 'uncorrectedSecded'] as const).map(count);
  const known = parts.filter((part) => part !== null);
  return known.length === 0 ? null : known.reduce((sum, part) => sum + part, 0);
}
