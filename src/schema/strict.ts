/** Makes schemas of tables of keys. */
import type { z } from 'zod';
import type { Described, Told } from './about.ts';
import * as values from './kinds.ts';

/** A key, as `key.ts` declares it, for a reader who does not know what its values are. */
interface Declared {
  type(kinds: never): z.ZodType;
  readonly default: unknown;
  readonly told: Told;
}

/** All kinds of values, also maps. */
export type Kinds = typeof values & { readonly strict: typeof strict };

/** The schema of a map. */
export function strict<S extends Readonly<Record<string, Declared>>>(keys: S) {
  const kinds: Kinds = { ...values, strict };
  const shape = Object.entries(keys).map(([name, { type: make, default: usual, told }]) => {
    const type = make(kinds as never);
    const [kind, about] = told.length === 1 ? [values.kindOf(type), told[0]] : told;
    return [name, Object.assign(type.optional(), { about: { ...about, kind, default: usual } satisfies Described })];
  });
  return values.mapOf(Object.fromEntries(shape) as { [K in keyof S]: z.ZodOptional<ReturnType<S[K]['type']>> });
}
