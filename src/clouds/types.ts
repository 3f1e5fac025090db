/** Every type of cloud that config can name. A new type is a folder here, and a line in this file. */
import { aws } from './aws/type.ts';
import { azure } from './azure/type.ts';
import type { CloudType } from './cloud-type.ts';
import { command } from './command/type.ts';
import { gcp } from './gcp/type.ts';

export const cloudTypes = [aws, gcp, azure, command] as const;

export type CloudConfig = NonNullable<ReturnType<(typeof cloudTypes)[number]['resolve']>>;

/** @throws RangeError for an unknown type */
export function cloudType(type: string): CloudType<CloudConfig> {
  const found = cloudTypes.find((one) => one.type === type);
  if (found === undefined) throw new RangeError(`unknown type of cloud: ${type}`);
  return found as unknown as CloudType<CloudConfig>;
}
