/**
 * How a key of the config is declared, once: type, default and documentation. This file and the tables made with it load no
 * library, so that the defaults are known quickly where there is no file: `strict` in `kinds.ts` makes schemas of tables.
 */
import type { z } from 'zod';
import type * as Kinds from './kinds.ts';

/** Everything about a key but the type of its values. */
export interface About<D = unknown> {
  /** What it does; sentences. */
  readonly description: string;
  /** A value as people write it in YAML. */
  readonly example: string;
  /** Its value when the file has none; null is `none`. */
  readonly default?: D;
  /** The same in pools of services whose agents are programs in an image. */
  readonly defaultInImages?: D;
  /** The default for the docs page, if it is not a plain value. */
  readonly shown?: string;
}

export interface Described extends About {
  /** Kind of its values, as the docs page says it. */
  readonly kind: string;
}

/** `kind`: of the values, if their type does not say it. */
export type Told<D = unknown> = readonly [about: About<D>] | readonly [kind: string, about: About<D>];

interface Key<T extends z.ZodType = z.ZodType, D = unknown> {
  readonly type: (kinds: typeof Kinds) => T;
  readonly told: Told<D>;
}

export type Keys = Readonly<Record<string, Key>>;

type Output<K> = K extends Key<infer T> ? z.output<T> : never;
type Fixed<V> = V extends [unknown, ...unknown[]] ? V : V extends (infer E)[] ? readonly E[] : V;

/** What is written of a map: what is absent is absent, not undefined. */
export type Written<S extends Keys> = { [K in keyof S]?: Exclude<Output<S[K]>, undefined> };

/** All keys of a map, those that have a default with a value. */
type Complete<S extends Keys> = {
  [K in keyof S]:
    | Fixed<Output<S[K]>>
    | (S[K] extends Key<z.ZodType, infer D> ? (undefined extends D ? undefined : Extract<D, null>) : never);
};

export function key<T extends z.ZodType, const D extends z.output<T> | null | undefined = undefined>(
  type: (kinds: typeof Kinds) => T,
  ...told: Told<D>
): Key<T, D> {
  return { type, told };
}

/** Defaults of the keys that have one, in their order. */
export function defaultsOf<S extends Keys>(keys: S, isInImages = false): Partial<Complete<S>> {
  const pairs = Object.entries(keys).map(([name, { told }]) => {
    const { default: usual, defaultInImages = usual } = told.length === 1 ? told[0] : told[1];
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
