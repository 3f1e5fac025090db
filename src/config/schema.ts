/** How a config file is written, as schemas of its maps. */
import type { z } from 'zod';
import type { Written } from './key.ts';
import { deviceKeys, diskKeys, imageKeys, poolKeys, secretsKeys, topKeys, trustKeys, unsafeKeys } from './keys.ts';
import { strict } from './kinds.ts';
import { word } from './values.ts';

/** Names of pools and services. */
export function nameProblem(name: string): string | null {
  if (word.test(name)) return null;
  return 'a name is 1 to 32 letters, digits, "-" or "_", and begins with a letter or a digit';
}

export const poolFile = strict(poolKeys);
export const topFile = strict(topKeys);

/** Keys of the maps inside a pool or the top level. */
export const nestedKeys: Readonly<Record<string, z.ZodObject>> = {
  devices: strict(deviceKeys),
  image: strict(imageKeys),
  trust: strict(trustKeys),
  unsafe: strict(unsafeKeys),
  secrets: strict(secretsKeys),
  disk: strict(diskKeys),
};

export type TopFile = Written<typeof topKeys>;
/** One pool, or `defaults`, as written: with the values understood. */
export type WrittenPool = Written<typeof poolKeys>;
