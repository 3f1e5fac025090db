/** Whether a device is one that a pool asks for. Pure. An unknown property of a device never satisfies a condition. */

import { type Parsed, parseSize } from '../base/units.ts';
import type { Device } from '../gpu/inventory.ts';
import { isInMigMode, profileOf, satisfiesProfile } from '../gpu/mig.ts';
import type { DeviceRequest } from './config.ts';

/** A comparison with a number of the same unit. */
type Condition = (value: number) => boolean;

const relations = {
  '>=': (value: number, limit: number) => value >= limit,
  '<=': (value: number, limit: number) => value <= limit,
  '>': (value: number, limit: number) => value > limit,
  '<': (value: number, limit: number) => value < limit,
  '=': (value: number, limit: number) => value === limit,
};
type Relation = keyof typeof relations;

/** `>=40GiB`, `<24GB` or `40GiB`, as a condition on bytes. */
export function memoryCondition(written: string): Parsed<Condition> {
  const { relation, rest } = split(written);
  const size = parseSize(rest);
  return size.ok ? { ok: true, value: (bytes) => relations[relation](bytes, size.value) } : size;
}

/** `>=8.0`, `<9` or `7.5`, as a condition on `major * 1000 + minor`: 10.0 is above 9.0. See `computeNumber`. */
export function computeCondition(written: string): Parsed<Condition> {
  const { relation, rest } = split(written);
  const limit = computeNumber(rest);
  if (limit === null) return { ok: false, why: `${JSON.stringify(written)} is not a condition such as ">=8.0"` };
  return { ok: true, value: (has) => relations[relation](has, limit) };
}

/** A compute capability such as `8.6` as a number that can be compared; null if invalid. */
function computeNumber(text: string): number | null {
  const found = /^(\d{1,3})(?:\.(\d{1,2}))?$/.exec(text.trim());
  return found === null ? null : Number(found[1]) * 1000 + Number(found[2] ?? 0);
}

function split(written: string): { relation: Relation; rest: string } {
  const found = /^\s*(>=|<=|>|<|=)?\s*(.*)$/s.exec(written);
  return { relation: (found?.[1] as Relation | undefined) ?? '>=', rest: found?.[2]?.trim() ?? '' };
}

/** Whether a pool may lease devices of NVIDIA's. */
export function mayBeNvidia({ count, vendor }: Pick<DeviceRequest, 'count' | 'vendor'>): boolean {
  return count !== 0 && (vendor ?? 'nvidia') === 'nvidia';
}

/** Whether a device is one of those asked for, regardless of leases. */
export function fits(device: Device, request: DeviceRequest): boolean {
  return whyNot(device, request) === null;
}

/** Why a device is not one of those asked for, as the end of a sentence about it; null when it is. */
export function whyNot(device: Device, request: DeviceRequest): string | null {
  return (
    whyNotKind(device, request) ??
    whyNotNamed(device, request) ??
    whyNotMemory(device, request.memory) ??
    whyNotCompute(device, request.compute) ??
    whyNotDisplay(device, request.display) ??
    whyNotShared(device, request.share)
  );
}

function whyNotKind(device: Device, { mig, uuids }: DeviceRequest): string | null {
  if (device.kind === 'gpu') {
    if (mig !== null && mig !== false) return 'is a whole card, but MIG instances are requested';
    return isInMigMode(device) ? 'is in MIG mode, so it cannot be given whole' : null;
  }
  // An instance may be named without "mig: true".
  if (mig === null) return isNamedIn(uuids, device.uuid) ? null : 'is a MIG instance, but whole cards are requested';
  if (mig === false) return 'is a MIG instance, but whole cards are requested';
  if (mig === true) return null;
  const profile = profileOf(device);
  if (profile === null) return `is a MIG instance of unknown profile, but ${mig} is requested`;
  return satisfiesProfile(profile, mig) ? null : `is a ${profile}, but ${mig} is requested`;
}

function whyNotShared({ computeMode }: Device, share: number): string | null {
  if (share === 1 || !/^exclusive/i.test(computeMode ?? '')) return null;
  return `lets only one process compute (compute mode ${computeMode}), but several agents would use it ("share: ${share}")`;
}

function whyNotNamed(device: Device, request: DeviceRequest): string | null {
  const { vendor, model } = device;
  if (request.uuids.length > 0 && !isMeant(device, request.uuids)) return 'is not named in "uuid"';
  if (request.vendor !== null && vendor !== request.vendor) return `is from ${vendor}, but ${request.vendor} is requested`;
  if (request.model === null || matchesModel(model, request.model)) return null;
  return `is a ${model}, but ${JSON.stringify(request.model)} is requested`;
}

/** Whether one of the UUIDs is the device's. A card's UUID stands for its instances too. */
export function isMeant({ uuid, parent }: Device, uuids: readonly string[]): boolean {
  return isNamedIn(uuids, uuid) || (parent !== null && isNamedIn(uuids, parent));
}

/** UUIDs differ in case between tools. */
export function isNamedIn(uuids: readonly string[], uuid: string): boolean {
  return uuids.some((one) => one.toLowerCase() === uuid.toLowerCase());
}

/**
 * Whether a model's name contains these whole words, in this order and next to each other, in any case. "RTX 5000" matches
 * "Quadro RTX 5000" and "NVIDIA RTX 5000 Ada Generation", but not "RTX PRO 5000", and "A10" does not match "A100".
 */
export function matchesModel(model: string, asked: string): boolean {
  const [has, wants] = [words(model), words(asked)];
  return wants.length > 0 && has.some((_, at) => wants.every((word, n) => has[at + n] === word));
}

function words(text: string): string[] {
  return text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
}

function whyNotMemory({ memoryMiB }: Device, asked: string | null): string | null {
  if (asked === null) return null;
  const parsed = memoryCondition(asked);
  if (!parsed.ok) return `cannot be compared with the requested memory: ${parsed.why}`;
  if (memoryMiB === null) return `has unknown memory, but ${JSON.stringify(asked)} is requested`;
  if (parsed.value(memoryMiB * 2 ** 20)) return null;
  const has = `has ${memoryMiB} MiB (${Number((memoryMiB / 1024).toFixed(2))} GiB) of memory, but ${JSON.stringify(asked)} is requested`;
  // Vendors count in decimal units: a card of 24 GB has a little less than 24 GiB.
  const decimal = asked.replace(/([KMGT])iB/, '$1B');
  const sold = decimal === asked ? null : memoryCondition(decimal);
  return sold?.ok === true && sold.value(memoryMiB * 2 ** 20) ? `${has}; ${JSON.stringify(decimal)} would fit` : has;
}

function whyNotCompute({ computeCapability }: Device, asked: string | null): string | null {
  if (asked === null) return null;
  const parsed = computeCondition(asked);
  if (!parsed.ok) return `cannot be compared with the requested compute capability: ${parsed.why}`;
  const has = computeCapability === null ? null : computeNumber(computeCapability);
  if (has === null) return `has an unknown compute capability, but ${JSON.stringify(asked)} is requested`;
  return parsed.value(has) ? null : `has compute capability ${computeCapability}, but ${JSON.stringify(asked)} is requested`;
}

function whyNotDisplay({ display, processes }: Device, asked: DeviceRequest['display']): string | null {
  if (asked === 'allow') return null;
  const draws = processes?.some(({ type }) => type === 'G' || type === 'C+G') ?? false;
  if (display === true || draws) return 'drives a display, which "display: refuse" excludes';
  return display === null ? 'may drive a display (unknown), which "display: refuse" excludes' : null;
}
