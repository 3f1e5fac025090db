/** Values as nvidia-smi prints them. Every spelling of "unknown" is null, which must never look like free, healthy or zero. */

/** Spellings of a missing value: those in recordings of drivers 352 to 610, and the texts of NVML's errors (nvml.h). */
const spellings = ['', 'n/a', 'unknown', 'not supported', 'not available', 'no data', 'err!', 'timeout', 'uninitialized'];
const nvmlTexts = ['unknown error', 'not found', 'function not found', 'invalid argument', 'insufficient permissions'];
const rareTexts = ['insufficient size', 'in use by another client', 'requested functionality has been deprecated'];
const nothing = new Set([...spellings, ...nvmlTexts, ...rareTexts, 'gpu is lost', 'gpu requires reset']);

/** What the tool prints instead of a value when the card itself has a problem. */
export type Trouble = 'lost' | 'reset';

/** Without the brackets that CSV puts around a missing value. */
function bare(text: string): string {
  const trimmed = text.trim();
  return (trimmed.startsWith('[') && trimmed.endsWith(']') ? trimmed.slice(1, -1) : trimmed).trim().toLowerCase();
}

/** The value, trimmed; null for a missing one. */
export function nvidiaText(text: string | null | undefined): string | null {
  return text === null || text === undefined || nothing.has(bare(text)) ? null : text.trim();
}

/** The problem that the card reported instead of a value; null when it is a value. */
export function troubleIn(text: string): Trouble | null {
  // Most values are short numbers, and there are thousands.
  if (text.length > 60 || !/lost|reset/i.test(text)) return null;
  const value = bare(text);
  if (value === 'gpu is lost') return 'lost';
  return value === 'gpu requires reset' || value === 'gpu reset required' ? 'reset' : null;
}

/** Whether the driver failed to read the value, which is not the same as a card without such a value. */
export function isUnread(text: string | undefined): boolean {
  return text !== undefined && /^(unknown error|err!|timeout)$/.test(bare(text));
}

/** A driver's version at the beginning of a text, such as `550.54.14`; driver 610 prints a remark after it. */
export function driverVersion(text: string | null | undefined): string | null {
  return /^\s*(\d{3,4}\.\d{1,4}(?:\.\d{1,4}){0,2})(?![\w.])/.exec(text ?? '')?.[1] ?? null;
}

/** `/proc/driver/nvidia/version`: `NVRM version: NVIDIA UNIX … Kernel Module [for x86_64]  550.54.14  …`. */
export function readProcVersion(text: string): string | null {
  const line = /^NVRM version:(.{0,400})$/m.exec(text)?.[1] ?? '';
  return driverVersion(/\s(\d{3,4}\.\d{1,4}(?:\.\d{1,4}){0,2})(?=\s|$)/.exec(line)?.[1]);
}

/** A CUDA version at the beginning of a text, such as `12.4`. */
export function cudaVersion(text: string | null | undefined): string | null {
  return /^\s*(\d{1,2}\.\d{1,2})(?!\d)/.exec(text ?? '')?.[1] ?? null;
}

const canonical = /^(?:GPU-|MIG-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;

/** Whether a UUID has the usual form; others are masked, made up or cut. */
export function isUsualUuid(uuid: string): boolean {
  return canonical.test(uuid) || oldMig.test(uuid);
}

/** A GPU's UUID; Jetsons print theirs without `GPU-`. null for anything else, such as `GPU-????????-…` of an unused card. */
export function gpuUuid(text: string | null | undefined): string | null {
  const uuid = nvidiaText(text);
  if (uuid === null || uuid.startsWith('MIG-')) return null;
  return canonical.test(uuid) || /^GPU-[\w*-]{2,64}$/.test(uuid) ? uuid : null;
}

/** Drivers 450 to 46x: the GPU's UUID, GPU instance, compute instance. */
const oldMig = /^MIG-GPU-[\w*-]{2,64}\/(\d{1,5})\/(\d{1,5})$/;

/** A MIG instance's UUID with its ids, which only the old form contains. */
export function migUuid(text: string | null | undefined) {
  const uuid = nvidiaText(text);
  if (uuid === null) return null;
  const [, gpuInstance = null, computeInstance = null] = oldMig.exec(uuid) ?? [];
  if (gpuInstance === null && !/^MIG-(?!GPU-)[\w*-]{2,64}$/.test(uuid)) return null;
  return { uuid, gpuInstance, computeInstance };
}
