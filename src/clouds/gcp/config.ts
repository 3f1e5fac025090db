/** What the config holds of a cloud of type `gcp`. */
import type { SecretReference } from '../../schema/secret-reference.ts';

/** How onejob signs in. */
export type GcpCredential =
  | { readonly kind: 'key'; readonly key: SecretReference }
  | { readonly kind: 'command'; readonly command: readonly string[] }
  | { readonly kind: 'metadata' }
  /** As Google's own tools do. */
  | { readonly kind: 'usual' };

export interface GcpConfig {
  readonly name: string;
  readonly type: 'gcp';
  readonly project: string;
  readonly region: string;
  /** null: all that have the type. */
  readonly zones: readonly string[] | null;
  readonly credential: GcpCredential;
  /** Path of the subnetwork below a version of the API. */
  readonly subnetwork: string;
  readonly hasExternalAddress: boolean;
  readonly deathDate: 'cloud' | 'manager-only';
  /** Without a slash at its end. */
  readonly endpoint: string;
}
