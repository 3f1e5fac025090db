/** The adapters of the clouds that a config names. */
import type { CloudParts } from '../clouds/kit/caller.ts';
import { cloudType, type CloudConfig as KnownCloud } from '../clouds/types.ts';
import type { Config } from '../config/config.ts';
import type { OwnedCloud } from './cloud-memory.ts';

/** By name. `usualOwner`: of those that name none. */
export async function openAdapters(
  clouds: Config['clouds'],
  parts: CloudParts,
  usualOwner: string,
): Promise<Map<string, OwnedCloud>> {
  const made = clouds.map(async (config): Promise<readonly [string, OwnedCloud]> => {
    const cloud = await cloudType(config.type).open(config as unknown as KnownCloud, parts);
    return [config.name, { cloud, owner: config.owner ?? usualOwner }];
  });
  return new Map(await Promise.all(made));
}
