/** Types of the import: Compose services, devices, remarks. And helpers to read values of Compose files. */

import { formatSize } from '../../src/base/units.ts';
import { masked } from '../../src/ci/kit/masked.ts';
import type { Path } from '../../src/schema/problem.ts';

/** Something that a person should know, with its place. */
export interface Remark {
  /** Relative to the folder that was read. */
  readonly file: string;
  /** From 1; null for a whole file or folder. */
  readonly line: number | null;
  /** `warning`: not carried over, or may differ. `note`: works in another way from now on. */
  readonly level: 'warning' | 'note';
  readonly message: string;
}

/** One service of a Compose file, with functions to report remarks about it. */
export interface Service {
  /** Its Compose file, relative to the folder that was read. */
  readonly file: string;
  readonly key: string;
  /** Whether it is the only service of its file. */
  readonly isOnly: boolean;
  /** Including what it extends, with variables filled in. */
  readonly written: Readonly<Record<string, unknown>>;
  /** Variables of `environment` that cannot be written down without one of the shell that starts Compose, and its name. */
  readonly unset: ReadonlyMap<string, string>;
  /** `volumes` at the top of the file. */
  readonly volumes: unknown;
  /** Absolute path of the folder that was read. */
  readonly root: string;
  /** Text of a file, by its path relative to that folder; null if it does not exist. */
  read(path: string): string | null;
  /** Line of a path below the service, from 1. */
  line(path: Path): number;
  remark(remark: Remark): void;
  warn(path: Path, message: string): void;
  note(path: Path, message: string): void;
}

export type Vendor = 'nvidia' | 'amd' | 'intel';

/** Devices as an agent's Compose file names them. */
export interface DeviceClaim {
  readonly by: 'none' | 'uuid' | 'index' | 'all' | 'count';
  readonly vendor: Vendor;
  readonly count: number;
  /** UUIDs, or numbers on the host (`GPU:INSTANCE` for MIG); else empty. */
  readonly names: readonly string[];
  /** Beyond computing: graphics, video, display. */
  readonly capabilities: readonly string[];
}

export const noComposeDevices: DeviceClaim = { by: 'none', vendor: 'nvidia', count: 0, names: [], capabilities: [] };

/** A value that can stand in a config. */
export type Plain = string | number | boolean | readonly Plain[] | { readonly [key: string]: Plain };
export type PlainMap = { readonly [key: string]: Plain };

export function isMap(found: unknown): found is Record<string, unknown> {
  return typeof found === 'object' && found !== null && !Array.isArray(found);
}

export function isPlainMap(value: Plain | undefined): value is PlainMap {
  return typeof value === 'object' && !Array.isArray(value);
}

/** Keys whose value is not null and not an empty text, list or map. */
export function filled(keys: Readonly<Record<string, Plain | null>>): PlainMap {
  const isEmpty = (value: Plain) => value === '' || (typeof value === 'object' && Object.keys(value).length === 0);
  return Object.fromEntries(
    Object.entries(keys).flatMap(([key, value]) => (value === null || isEmpty(value) ? [] : [[key, value]])),
  );
}

/** Texts in the order in which people count: 2 before 10. */
export const byNumber = (one: string, other: string): number =>
  collator.compare(one, other) || (one < other ? -1 : one > other ? 1 : 0);

const collator = new Intl.Collator('en', { numeric: true });

/** A value in a map of maps; undefined if a part of the path does not exist. */
export function insideContainer(found: unknown, ...path: readonly string[]): unknown {
  return path.reduce((one, key) => (isMap(one) ? one[key] : undefined), found);
}

/** A scalar as Compose would pass it on; null for other values. */
export function textOf(found: unknown): string | null {
  if (typeof found === 'string') return found;
  return typeof found === 'number' || typeof found === 'boolean' || typeof found === 'bigint' ? String(found) : null;
}

/** A boolean as Compose reads it, also from a text; false for other values. */
export function isTrue(found: unknown): boolean {
  return /^(true|yes|y|on|1)$/i.test(textOf(found)?.trim() ?? '');
}

export function listOf(found: unknown): readonly unknown[] {
  return found === undefined || found === null ? [] : Array.isArray(found) ? found : [found];
}

/** The scalars of a list, or a single one. */
export function textsOf(found: unknown): readonly string[] {
  return listOf(found).flatMap((item) => textOf(item) ?? []);
}

/** `KEY: value` or `- KEY=value`; null for a key without a value, which Compose takes from the shell. */
export function pairsOf(found: unknown): readonly { key: string; value: string | null; at: string | number }[] {
  if (isMap(found)) return Object.entries(found).map(([key, value]) => ({ key, value: textOf(value), at: key }));
  return listOf(found).flatMap((item, at) => {
    const text = textOf(item);
    if (text === null) return [];
    const cut = text.indexOf('=');
    return [{ key: (cut < 0 ? text : text.slice(0, cut)).trim(), value: cut < 0 ? null : text.slice(cut + 1), at }];
  });
}

/** Words of a command as a shell would see them: quotes and backslashes, nothing else. */
export function wordsOf(found: unknown): readonly string[] {
  if (Array.isArray(found)) return textsOf(found);
  return [...(textOf(found) ?? '').matchAll(/(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/gs)].map(([word]) =>
    word.replaceAll(
      /"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)/gs,
      (_, double?: string, single?: string, escaped?: string) =>
        single ?? escaped ?? (double ?? '').replaceAll(/\\(["\\$`])/g, '$1'),
    ),
  );
}

/** A size of Compose (`24g`, `512mb`, bytes) as the config writes it; null if invalid. */
export function composeSize(found: unknown): string | null {
  const [, digits, unit = ''] = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i.exec(textOf(found)?.trim() ?? '') ?? [];
  return digits === undefined ? null : formatSize(Math.round(Number(digits) * 1024 ** ' kmgt'.indexOf(unit.toLowerCase() || ' ')));
}

export function composeNumber(found: unknown): number | null {
  const text = textOf(found)?.trim() ?? '';
  return /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : null;
}

/** A text as a name of at most `most` letters: other letters become hyphens, except at the start. */
export function nameFrom(text: string, most: number, others: RegExp = /[^A-Za-z0-9_-]+/g): string {
  return text
    .replaceAll(others, '-')
    .replace(/^[-_.]+/, '')
    .slice(0, most);
}

/** The name, or its first `most` letters with the first number from 2 that is not taken. */
export function unusedName(name: string, isTaken: (name: string) => boolean, most = name.length): string {
  let unused = name;
  for (let n = 2; isTaken(unused); n++) unused = `${name.slice(0, most)}-${n}`;
  return unused;
}

/** Whether a variable or flag of this name may contain a secret. */
export function soundsSecret(variable: string): boolean {
  const word = /(^|[_-])(TOKEN|SECRETS?|PASS(WORD|WD|PHRASE)?|(?<=[_-])PWD|CREDENTIALS?|PAT)([_-]|$)/i;
  return word.test(variable) || /(^|[_-])(API|ACCESS|PRIVATE|SECRET|SIGNING|DEPLOY)[_-]?KEY([_-]|$)/i.test(variable);
}

/** Whether a value looks like a password, a token or a private key. */
export function looksSecret(value: string): boolean {
  return masked(value) !== value || /-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(value);
}
