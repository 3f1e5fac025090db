/** A type of cloud, with what opens it. */
import type { CloudType as ConfigType } from '../config/cloud-type.ts';
import type { Cloud } from '../ports/cloud.ts';
import type { CloudParts } from './kit/caller.ts';

export interface CloudType<
  C extends { readonly type: string; readonly name: string } = { readonly type: string; readonly name: string },
> extends ConfigType<C> {
  /** What the adapter's calls need, in the cloud's words, sorted. `deploy/cloud/` has the policy made from it. */
  readonly permissions: readonly string[];
  /** Loads the adapter. */
  open(cloud: C, parts: CloudParts): Promise<Cloud>;
}
