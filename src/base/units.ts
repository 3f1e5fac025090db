/** Durations, sizes and shares as people write them, never without a unit. */

const durationUnits: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const sizeUnits: Readonly<Record<string, number>> = {
  B: 1,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
  kB: 1e3,
  MB: 1e6,
  GB: 1e9,
  TB: 1e12,
};

/** A value, or why it is invalid, as the end of a sentence about its key. */
export type Parsed<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly why: string };

export function no(why: string): { readonly ok: false; readonly why: string } {
  return { ok: false, why };
}

/** `500ms`, `10s`, `1h30m`, `2d` in ms. */
export function parseDuration(text: string): Parsed<number> {
  const compact = text.replaceAll(' ', '');
  if (/^-/.test(compact)) return no(`${JSON.stringify(text)} is negative`);
  if (/^\d+(\.\d+)?$/.test(compact)) {
    return no(`${JSON.stringify(text)} has no unit; write "${compact}s", "${compact}m", "${compact}h" or "${compact}d"`);
  }
  if (!/^(\d+(\.\d+)?(ms|s|m|h|d))+$/.test(compact)) {
    return no(`${JSON.stringify(text)} is not a duration; write for example "90s", "10m" or "1h30m" (ms, s, m, h, d)`);
  }
  let total = 0;
  for (const [, number, unit] of compact.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)) {
    total += Number(number) * (durationUnits[unit ?? ''] ?? Number.NaN);
  }
  if (total > 3650 * 86_400_000) return no(`${JSON.stringify(text)} is longer than ten years`);
  return { ok: true, value: Math.round(total) };
}

/** `24GiB`, `512MiB`, `64kB` in bytes. */
export function parseSize(text: string): Parsed<number> {
  const compact = text.replaceAll(' ', '');
  if (/^-/.test(compact)) return no(`${JSON.stringify(text)} is negative`);
  const found = /^(\d+(?:\.\d+)?)([A-Za-z]*)$/.exec(compact);
  if (found === null) return no(`${JSON.stringify(text)} is not a size; write for example "24GiB" (B, KiB, MiB, GiB, TiB)`);
  const [, number = '', unit = ''] = found;
  const factor = sizeUnits[unit];
  if (factor === undefined) {
    const letter = /^([kmgt])(i?b)?$/i.exec(unit)?.[1]?.toUpperCase() ?? 'M';
    const problem = unit === '' ? 'has no unit' : `has an unknown unit`;
    return no(`${JSON.stringify(text)} ${problem}; write for example "${number}${letter}iB" (B, KiB, MiB, GiB, TiB)`);
  }
  const bytes = Math.round(Number(number) * factor);
  if (!Number.isSafeInteger(bytes)) return no(`${JSON.stringify(text)} is too large`);
  return { ok: true, value: bytes };
}

/** `10%` as 0.1. */
export function parseShare(text: string): Parsed<number> {
  const found = /^(\d+(?:\.\d+)?) ?%$/.exec(text.trim());
  const share = Number(found?.[1]) / 100;
  if (found === null || share > 1) return no(`${JSON.stringify(text)} is not a share; write a percentage from "0%" to "100%"`);
  return { ok: true, value: share };
}

/** The shortest exact way to write it: 5400000 is `1h30m`. */
export function formatDuration(ms: number): string {
  let rest = ms;
  let text = '';
  for (const unit of ['d', 'h', 'm', 's', 'ms']) {
    const size = durationUnits[unit] ?? 1;
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) text += `${count}${unit}`;
  }
  return text === '' ? '0s' : text;
}

/** In the largest binary unit that divides it: 25769803776 is `24GiB`. */
export function formatSize(bytes: number): string {
  for (const unit of ['TiB', 'GiB', 'MiB', 'KiB']) {
    const size = sizeUnits[unit] ?? 1;
    if (bytes >= size && bytes % size === 0) return `${bytes / size}${unit}`;
  }
  return `${bytes}B`;
}

/** For people, with one decimal at most: `1.5 GiB`, `38 MiB`. */
export function formatBytes(bytes: number): string {
  const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = bytes;
  let at = 0;
  for (; value >= 1024 && at < names.length - 1; at += 1) value /= 1024;
  return `${Math.round(value * 10) / 10} ${names[at]}`;
}

export function formatShare(share: number): string {
  return `${Number((share * 100).toFixed(4))}%`;
}

/** `14:02`; with the date if that is not the day of `wall`. In the host's time zone. */
export function formatTime(at: number, wall: number): string {
  const [then, now] = [new Date(at), new Date(wall)];
  const two = (number: number) => String(number).padStart(2, '0');
  const time = `${two(then.getHours())}:${two(then.getMinutes())}`;
  if (then.toDateString() === now.toDateString()) return time;
  return `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())} ${time}`;
}
