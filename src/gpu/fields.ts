/**
 * Reads what vendors' tools print, by tables that say where each field is and what kind of value it has: numbers as texts, units
 * anywhere, many spellings of "unknown", warnings before the JSON.
 */
import { jsonOf } from '../system/json.ts';
import { normalPci } from './pci.ts';

/** A JSON object whose contents are not known. */
export type Fields = Readonly<Record<string, unknown>>;

/** What kind of value a field has: null for any other value, and for a spelling of "unknown". */
type Kind<T> = (value: unknown) => T | null;

/** Finds a field in an output. */
type Field<T> = (output: unknown) => T | null;

/** The first of these paths (`asic/market_name`) whose value is of the kind. */
export function field<T>(kind: Kind<T>, ...paths: readonly string[]): Field<T> {
  const ways = paths.map((path) => path.split('/'));
  return (output) => {
    for (const way of ways) {
      const value = kind(at(output, ...way));
      if (value !== null) return value;
    }
    return null;
  };
}

/** All fields of a table; null for a missing one. */
export function readFields<T extends object>(table: { readonly [K in keyof T]: Field<T[K]> }, output: unknown) {
  const entries = Object.entries<Field<unknown>>(table).map(([name, read]) => [name, read(output)]);
  return Object.fromEntries(entries) as { [K in keyof T]: T[K] | null };
}

/** Spellings of "unknown" seen in recordings of rocm-smi, amd-smi and xpu-smi. */
const nothing = /^(n\/?a|none|unknown|not supported|not available|unsupported|null|-)?$/i;

/** The text, trimmed; null for a spelling of "unknown". Numbers count as texts. */
export function textOf(value: unknown): string | null {
  if (typeof value === 'number' && Number.isFinite(value)) return String(value);
  if (typeof value !== 'string') return null;
  const text = value.trim();
  return nothing.test(text) ? null : text;
}

/** A number from 0, as number or text, without a unit; null for anything else. */
export function readNumber(value: unknown): number | null {
  const text = textOf(value);
  if (text === null || !/^\d+(\.\d+)?$/.test(text)) return null;
  const number = Number(text);
  return Number.isSafeInteger(Math.trunc(number)) ? number : null;
}

/** A whole number from 0 to `most`, as number or text. */
export function countOf(value: unknown, most = Number.MAX_SAFE_INTEGER): number | null {
  const number = readNumber(value);
  return number !== null && Number.isInteger(number) && number <= most ? number : null;
}

/** The tools print MB and KB for powers of two: an MI210 of 64 GiB has "65520 MB", since the firmware uses 16 MiB. */
const bytesIn: Readonly<Record<string, number>> = { b: 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 };

/** 16 TiB: more than any card has; anything above it was misread. */
const mostMiB = 2 ** 24;

/** `"65520 MB"`, `{ value: 65520, unit: "MB" }`, or a bare number in `unit`, in whole MiB; null for anything else. */
export function mebibytes(value: unknown, unit = 'MiB'): number | null {
  if (isFields(value)) return mebibytes(value.value, textOf(value.unit) ?? unit);
  const [, number, own] = /^(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)$/i.exec(textOf(value) ?? '') ?? [];
  const amount = readNumber(number);
  const bytes = bytesIn[(own || unit).charAt(0).toLowerCase()];
  if (amount === null || bytes === undefined) return null;
  const whole = Math.floor((amount * bytes) / 2 ** 20);
  return whole <= mostMiB ? whole : null;
}

/** Kinds of values. `mib`: an amount of memory, in `unit` unless it says more. */
export const kind = {
  text: textOf,
  count: countOf,
  mib:
    (unit: string) =>
    (value: unknown): number | null =>
      mebibytes(value, unit),
  pci: (value: unknown): string | null => normalPci(textOf(value) ?? ''),
  /** Whether it is `enabled`; null without a word. */
  enabled(value: unknown): boolean | null {
    const text = textOf(value);
    return text === null ? null : /^enabled$/i.test(text);
  },
};

/** `known`, completed with values from `more` where it has null. */
export function filled<T extends object>(known: T, more: T): T {
  return { ...more, ...Object.fromEntries(Object.entries(known).filter(([, value]) => value !== null)) };
}

export function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The value at the end of a path through objects; undefined when there is none. */
export function at(value: unknown, ...way: readonly string[]): unknown {
  return way.reduce((here, key) => (isFields(here) && Object.hasOwn(here, key) ? here[key] : undefined), value);
}

/** The beginning of a line that is JSON, and not a warning such as `[WARN] …` or `{gpu}`. */
const beginning = /^[ \t]*(?:\{(?=\s*["}]|\s*$)|\[(?=\s*[[{"\]]|\s*$))/gm;

/**
 * All JSON objects and arrays that begin a line, with any text between them. `torn`: one began and did not end, or is not JSON.
 * Takes linear time.
 */
export function jsonIn(text: string): { values: unknown[]; torn: boolean } {
  const values: unknown[] = [];
  let torn = false;
  let from = 0;
  for (const { index } of text.matchAll(beginning)) {
    if (index < from) continue;
    const end = endOf(text, index);
    if (end === null) return { values, torn: true };
    const value = jsonOf(text.slice(index, end));
    if (value === undefined) torn = true;
    else values.push(value);
    from = end;
  }
  return { values, torn };
}

/** The place after the bracket that closes the one at `from`; null when it is not closed. */
function endOf(text: string, from: number): number | null {
  let depth = 0;
  let quoted = false;
  for (let at = from; at < text.length; at += 1) {
    const letter = text[at];
    if (quoted) {
      if (letter === '\\') at += 1;
      else if (letter === '"') quoted = false;
    } else if (letter === '"') quoted = true;
    else if (letter === '{' || letter === '[') depth += 1;
    else if (letter === '}' || letter === ']') {
      depth -= 1;
      if (depth === 0) return at + 1;
    }
  }
  return null;
}
