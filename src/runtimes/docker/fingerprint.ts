/** What a standby was made from, as one short word (S11). */
import { createHash } from 'node:crypto';
import type { Recipe } from '../runtime.ts';
import type { Image } from './image.ts';

/** Of recipe, image and boot. The order of keys does not matter. */
export function fingerprintOf({ pull: _, ...recipe }: Recipe, image: Image, bootId: string | null): string {
  const sorted = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(sorted);
    if (typeof value !== 'object' || value === null) return value;
    const entries = Object.entries(value).map(([key, item]) => [key, sorted(item)] as const);
    return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
  };
  return createHash('sha256')
    .update(JSON.stringify(sorted({ recipe, image: image.id, bootId })))
    .digest('hex')
    .slice(0, 32);
}
