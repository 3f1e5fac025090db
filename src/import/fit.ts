/** Held against the config's own schema, key by key: what it would refuse is left out and said, so that the rest can be loaded. */
import { poolFile } from '../config/schema.ts';
import type { Plain, PlainMap } from './agent.ts';
import { isMap } from './plain.ts';

const shapes: Readonly<
  Record<string, { safeParse(value: unknown): { success: boolean; error?: { issues: readonly { message: string }[] } } }>
> = poolFile.shape;

/** `tell`: what was left out, and why. */
export function fitKeys(keys: PlainMap, tell: (what: string, why: string) => void): PlainMap {
  const fitting = Object.entries(keys).flatMap(([key, value]): [string, Plain][] => {
    const left = fitValue(key, value, tell);
    return left === null ? [] : [[key, left]];
  });
  return Object.fromEntries(fitting);
}

function fitValue(key: string, value: Plain, tell: (what: string, why: string) => void): Plain | null {
  const why = whyNot(key, value);
  if (why === null) return value;
  if (Array.isArray(value)) {
    const good = value.filter((item: Plain) => {
      const wrong = whyNot(key, [item]);
      if (wrong !== null) tell(`${key}: ${JSON.stringify(item)}`, wrong);
      return wrong === null;
    });
    return good.length === 0 || whyNot(key, good) !== null ? null : good;
  }
  if (isMap(value) && ['env', 'ulimits', 'tmpfs', 'unsafe'].includes(key)) {
    const good = Object.entries(value as PlainMap).filter(([name, item]) => {
      const wrong = whyNot(key, { [name]: item });
      if (wrong !== null) tell(`${key}.${name}`, wrong);
      return wrong === null;
    });
    return good.length === 0 ? null : Object.fromEntries(good);
  }
  tell(key, why);
  return null;
}

function whyNot(key: string, value: Plain): string | null {
  // Digits in a variable's value are read as the text they are.
  const asRead =
    key === 'env' && isMap(value) ? Object.fromEntries(Object.entries(value).map(([name, one]) => [name, String(one)])) : value;
  const parsed = shapes[key]?.safeParse(asRead);
  if (parsed === undefined) return 'there is no such key';
  return parsed.success ? null : (parsed.error?.issues[0]?.message ?? 'it is not right');
}
