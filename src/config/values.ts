/** Kinds of values of config keys, each with a message that says what to write instead. */
import { z } from 'zod';
import type { Mount } from '../runtimes/runtime.ts';
import type { SecretReference } from '../secrets/reference.ts';
import { listed } from './problem.ts';
import { type Parsed, parseDuration, parseShare, parseSize } from './units.ts';
import { parseVolume, pathProblem } from './volumes.ts';

/** Names of pools and services. */
export const word = /^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$/;
export const oneLine = /^[^\p{Cc}]+$/u;

/** A zod type from a function that parses one value. `title`: its kind, as the docs page says it. */
export function value<T>(parse: (found: unknown) => Parsed<T>, title = 'text') {
  const type = z.unknown().transform((found, context): T => {
    const parsed = found === null ? no('is empty; give it a value or remove the key') : parse(found);
    if (parsed.ok) return parsed.value;
    context.addIssue({ code: 'custom', message: parsed.why });
    return z.NEVER;
  });
  return type.meta({ title });
}

/** The kind of the values of a type, as the docs page says it. */
export function kindOf(type: z.ZodType): string {
  return type.meta()?.title ?? (type instanceof z.ZodArray ? 'list' : 'map');
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

/** A whole number, or one of these words. */
export function integer<const W extends string = never>(least: number, most: number, ...words: readonly W[]) {
  const or = words.map((word) => ` or "${word}"`).join('');
  return value(
    (found): Parsed<number | W> => {
      const word = words.find((one) => one === found);
      if (word !== undefined) return yes(word);
      if (typeof found !== 'number' || !Number.isInteger(found))
        return no(`expected a whole number${or}, found ${describeValue(found)}`);
      const range = `${least} to ${most}${or === '' ? '' : `,${or}`}`;
      return found < least || found > most ? no(`must be from ${range}, found ${found}`) : yes(found);
    },
    listed(['number', ...words.map(code)], 'or'),
  );
}

export function numeric(least: number, most: number) {
  return value((found) => {
    if (typeof found !== 'number' || Number.isNaN(found)) return no(`expected a number, found ${describeValue(found)}`);
    return found < least || found > most ? no(`must be from ${least} to ${most}, found ${found}`) : yes(found);
  }, 'number');
}

export const yesNo = value(
  (found) => (typeof found === 'boolean' ? yes(found) : no(`expected true or false, found ${describeValue(found)}`)),
  'true or false',
);

export function oneOf<const T extends readonly string[]>(words: T) {
  return value(
    (found): Parsed<T[number]> => {
      const word = words.find((one) => one === found);
      if (word !== undefined) return yes(word);
      const quoted = words.map((one) => `"${one}"`);
      return no(`expected ${listed(quoted, 'or')}, found ${describeValue(found)}`);
    },
    listed(words.map(code), 'or'),
  );
}

function measured(kind: string, example: string, parse: (written: string) => Parsed<number>, least: number, leastText: string) {
  return value((found) => {
    if (typeof found !== 'string' && typeof found !== 'number')
      return no(`expected a ${kind} such as "${example}", found ${describeKind(found)}`);
    const parsed = parse(String(found));
    if (parsed.ok && parsed.value < least) return no(`must be at least ${leastText}, found ${quote(String(found))}`);
    return parsed;
  }, kind);
}

/** ms */
export function duration(least = 0, leastText = '0s') {
  return measured('duration', '10m', parseDuration, least, leastText);
}

/** bytes */
export function size(least = 0, leastText = '0B') {
  return measured('size', '24GiB', parseSize, least, leastText);
}

/** 0 to 1 */
export const share = measured('percentage', '10%', parseShare, 0, '0%');

/** The same, or `none`, which overrides `defaults`; null. */
export function orNone<T>(type: z.ZodType<T>) {
  const none = value(() => yes(null));
  return either((found) => found === 'none', none, type).meta({ title: listed([kindOf(type), code('none')], 'or') });
}

/** Chooses the type by the kind of the value, so that a problem inside a map is reported at its own key. */
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

function code(word: string): string {
  return `\`${word}\``;
}

function describeValue(found: unknown): string {
  if (typeof found === 'string') return quote(found);
  return typeof found === 'number' || typeof found === 'boolean' ? String(found) : describeKind(found);
}

function quote(written: string): string {
  return JSON.stringify(written.length > 60 ? `${written.slice(0, 57)}…` : written);
}

export const absolute = value((found) => {
  if (typeof found !== 'string') return no(`expected an absolute path, found ${describeKind(found)}`);
  const why = pathProblem(found);
  return why === null ? yes(found) : no(why);
}, 'path');

/** A secret by reference. The value may be the secret itself by mistake, so it is never shown. */
export const secretReference = z.unknown().transform((found, context): SecretReference => {
  const fail = (message: string, path: string[] = []): never => {
    context.addIssue({ code: 'custom', message, path });
    return z.NEVER;
  };
  const how = 'name the place of the secret, not its value: { file: /path } or { env: NAME }';
  if (!isMap(found)) return fail(`${how}; found ${describeKind(found)}`);
  const known = ['file', 'env', 'expires'];
  const strange = Object.keys(found).find((name) => !known.includes(name));
  if (strange !== undefined) return fail(`unknown key; ${how}, and its last day with expires: YYYY-MM-DD`, [strange]);
  const { file, env, expires = null } = found;
  if ((file === undefined) === (env === undefined))
    return fail(file === undefined ? how : `give either file or env, not both; ${how}`);
  const end = expires === null ? null : lastMoment(expires);
  if (end !== null && Number.isNaN(end)) return fail('expected a day such as 2027-05-01', ['expires']);
  if (file !== undefined) {
    if (typeof file !== 'string') return fail(`expected an absolute path, found ${describeKind(file)}`, ['file']);
    const why = pathProblem(file);
    return why === null ? { kind: 'file', path: file, expires: end } : fail(why.replace(/, found .*$/, ''), ['file']);
  }
  if (typeof env === 'string' && /^[A-Za-z_][A-Za-z0-9_]*$/.test(env)) return { kind: 'env', variable: env, expires: end };
  return fail('expected the name of an environment variable', ['env']);
});

/** The end of a day, UTC, in ms since the epoch; NaN for an invalid day. */
function lastMoment(found: unknown): number {
  const day = z.iso.date().safeParse(found);
  return day.success ? Date.parse(`${day.data}T23:59:59.999Z`) : Number.NaN;
}

const limit = value((found) => {
  if (found === 'unlimited' || found === -1) return yes(-1);
  if (typeof found === 'number' && Number.isSafeInteger(found) && found >= 0) return yes(found);
  return no('expected a whole number from 0, or "unlimited"');
});

export const ulimit = either(
  isMap,
  z.strictObject({ soft: limit, hard: limit }),
  limit.transform((both) => ({ soft: both, hard: both })),
);

export function volume(as: 'volume' | 'cache') {
  return value<Mount>((found) => {
    if (typeof found === 'string') return parseVolume(found, as);
    return no(`expected HOST:CONTAINER[:VARIABLE][:ro|rw] as text, found ${describeKind(found)}`);
  });
}

export const checksum = value((found) => {
  if (typeof found === 'string' && /^[0-9a-f]{64}$/i.test(found)) return yes(found.toLowerCase());
  return no('expected a SHA-256 checksum: 64 digits 0 to 9 and a to f');
});

/** The kind of a value, in words of YAML. */
export function describeKind(found: unknown): string {
  if (found === null || found === undefined) return 'nothing';
  if (Array.isArray(found)) return 'a list';
  const kinds: Partial<Record<string, string>> = { object: 'a map', string: 'text', number: 'a number', boolean: 'true or false' };
  return kinds[typeof found] ?? 'something else';
}
