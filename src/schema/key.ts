/**
 * How a key of the config is declared, once: type, default and documentation. This file and the tables made with it load no
 * library, so that the defaults are known quickly where there is no file: `strict` in `kinds.ts` makes schemas of tables.
 */

import type { z } from 'zod';
import type { Told } from './about.ts';
import type { Kinds } from './strict.ts';

interface Key<T extends z.ZodType = z.ZodType, D = unknown> {
  readonly type: (kinds: Kinds) => T;
  readonly default: D;
  readonly told: Told;
}

export type Keys = Readonly<Record<string, Key>>;

type Output<K> = K extends Key<infer T> ? z.output<T> : never;
type Fixed<V> = V extends [unknown, ...unknown[]] ? V : V extends (infer E)[] ? readonly E[] : V;

/** What is written of a map: what is absent is absent, not undefined. */
export type WrittenKeys<S extends Keys> = { [K in keyof S]?: Exclude<Output<S[K]>, undefined> };

/** All keys of a map, those that have a default with a value. */
export type Complete<S extends Keys> = {
  [K in keyof S]:
    | Fixed<Output<S[K]>>
    | (S[K] extends Key<z.ZodType, infer D> ? (undefined extends D ? undefined : Extract<D, null>) : never);
};

/** `usual`: the value when the file has none; null is `none`. */
export function key<T extends z.ZodType, const D extends z.output<T> | null | undefined>(
  type: (kinds: Kinds) => T,
  usual: D,
  ...told: Told
): Key<T, D> {
  return { type, default: usual, told };
}

/** A secret by reference. */
export function token(description: string) {
  const example = '{ file: /etc/onejob/token, expires: 2027-05-01 }';
  return key((v) => v.secretReference, undefined, 'secret', { description, example });
}

export function sha256(description: string, shown: string) {
  const example = '3f0c9be6b6a1c5d2e4f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e';
  return key((v) => v.checksum, undefined, 'checksum', { description, example, shown });
}

/** Defaults of the keys that have one, in their order. */
export function defaultsOf<S extends Keys>(keys: S, isInImages = false): Partial<Complete<S>> {
  const pairs = Object.entries(keys).map(([name, { default: usual, told }]) => {
    const { defaultInImages = usual } = told.length === 1 ? told[0] : told[1];
    return [name, isInImages ? defaultInImages : usual] as const;
  });
  return Object.fromEntries(pairs.filter(([, usual]) => usual !== undefined)) as Partial<Complete<S>>;
}

/** What holds: what is written, else the defaults. */
export function complete<S extends Keys>(
  keys: S,
  written: { [K in keyof S]?: Output<S[K]> | undefined } = {},
  isInImages = false,
): Complete<S> {
  return { ...defaultsOf(keys, isInImages), ...written } as Complete<S>;
}
