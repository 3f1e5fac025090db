/** The kinds of values a config key can hold, each with a message that says what to write instead. */
import { z } from 'zod';
import { describeKind } from './kind.ts';
import type { Parsed } from './units.ts';
import { parseDuration, parseShare, parseSize } from './units.ts';

/** What `docs/configuration.md` says about a key. */
export interface About {
  /** What it does; sentences. */
  readonly description: string;
  /** A value as one would write it in YAML. */
  readonly example: string;
  /** What holds when it is not written; an empty text for nothing. */
  readonly shown?: string;
}

/** Names of pools and services. */
export const word = /^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$/;
export const oneLine = /^[^\p{Cc}]+$/u;

/** A zod type from a function that understands one value. */
export function value<T>(parse: (found: unknown) => Parsed<T>) {
  return z.unknown().transform((found, context): T => {
    const parsed = found === null ? no('is empty; give it a value or remove the key') : parse(found);
    if (parsed.ok) return parsed.value;
    context.addIssue({ code: 'custom', message: parsed.why });
    return z.NEVER;
  });
}

/** A key that may be left out, with its line for the docs page. */
export function key<T extends z.ZodType>(type: T, kind: string, about: About) {
  return type.optional().meta({ title: kind, description: about.description, examples: [about.example], shown: about.shown ?? '' });
}

export function no(why: string): { readonly ok: false; readonly why: string } {
  return { ok: false, why };
}

export function yes<T>(found: T): { readonly ok: true; readonly value: T } {
  return { ok: true, value: found };
}

export function text(what: string, good: RegExp = oneLine) {
  return value((found) => {
    const written = typeof found === 'number' ? String(found) : found;
    if (typeof written !== 'string') return no(`expected ${what}, found ${describeKind(found)}`);
    return good.test(written) ? yes(written) : no(`${quote(written)} is not ${what}`);
  });
}

export function integer(least: number, most: number) {
  return value((found) => {
    if (typeof found !== 'number' || !Number.isInteger(found)) return no(`expected a whole number, found ${describeValue(found)}`);
    return found < least || found > most ? no(`must be from ${least} to ${most}, found ${found}`) : yes(found);
  });
}

export function integerOr<const W extends string>(word: W, least: number, most: number) {
  return value((found): Parsed<number | W> => {
    if (found === word) return yes(word);
    if (typeof found !== 'number' || !Number.isInteger(found))
      return no(`expected a whole number or "${word}", found ${describeValue(found)}`);
    return found < least || found > most ? no(`must be from ${least} to ${most}, or "${word}", found ${found}`) : yes(found);
  });
}

export function numeric(least: number, most: number) {
  return value((found) => {
    if (typeof found !== 'number' || Number.isNaN(found)) return no(`expected a number, found ${describeValue(found)}`);
    return found < least || found > most ? no(`must be from ${least} to ${most}, found ${found}`) : yes(found);
  });
}

export const yesNo = value((found) =>
  typeof found === 'boolean' ? yes(found) : no(`expected true or false, found ${describeValue(found)}`),
);

export function oneOf<const T extends readonly string[]>(words: T) {
  return value((found): Parsed<T[number]> => {
    const word = words.find((one) => one === found);
    return word === undefined ? no(`expected ${listed(words)}, found ${describeValue(found)}`) : yes(word);
  });
}

function measured(what: string, parse: (written: string) => Parsed<number>, least: number, leastText: string) {
  return value((found) => {
    if (typeof found !== 'string' && typeof found !== 'number') return no(`expected ${what}, found ${describeKind(found)}`);
    const parsed = parse(String(found));
    if (parsed.ok && parsed.value < least) return no(`must be at least ${leastText}, found ${quote(String(found))}`);
    return parsed;
  });
}

/** ms */
export function duration(least = 0, leastText = '0s') {
  return measured('a duration such as "10m"', parseDuration, least, leastText);
}

/** bytes */
export function size(least = 0, leastText = '0B') {
  return measured('a size such as "24GiB"', parseSize, least, leastText);
}

/** 0 to 1 */
export const share = measured('a percentage such as "10%"', parseShare, 0, '0%');

/** The same, or `none`, which takes back what `defaults` says; null. */
export function orNone<T>(type: z.ZodType<T>) {
  return z.unknown().transform((found, context): T | null => {
    if (found === 'none') return null;
    const parsed = type.safeParse(found);
    if (parsed.success) return parsed.data;
    for (const issue of parsed.error.issues) context.addIssue({ code: 'custom', message: issue.message });
    return z.NEVER;
  });
}

/** Chooses the type by what kind of value is there, so that a problem inside a map is reported at its own key. */
export function either<A, B>(isFirst: (found: unknown) => boolean, first: z.ZodType<A>, second: z.ZodType<B>) {
  return z.unknown().transform((found, context): A | B => {
    const parsed = (isFirst(found) ? first : second).safeParse(found, { reportInput: true });
    if (parsed.success) return parsed.data;
    for (const issue of parsed.error.issues) context.issues.push({ ...issue, input: found } as z.core.$ZodRawIssue);
    return z.NEVER;
  });
}

export function isMap(found: unknown): found is Record<string, unknown> {
  return typeof found === 'object' && found !== null && !Array.isArray(found);
}

export function listed(words: readonly string[]): string {
  const quoted = words.map((word) => `"${word}"`);
  return quoted.length < 2 ? quoted.join('') : `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`;
}

function describeValue(found: unknown): string {
  return typeof found === 'string'
    ? quote(found)
    : typeof found === 'number' || typeof found === 'boolean'
      ? String(found)
      : describeKind(found);
}

function quote(written: string): string {
  return JSON.stringify(written.length > 60 ? `${written.slice(0, 57)}…` : written);
}
