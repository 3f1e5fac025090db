/** What the config holds of a cloud of type `aws`. */
import type { SecretReference } from '../../schema/secret-reference.ts';

export type AwsCredentialSource =
  /** The usual variables, else the profile that `AWS_PROFILE` names, else `default`. */
  | { readonly kind: 'usual' }
  | { readonly kind: 'profile'; readonly profile: string }
  | { readonly kind: 'keys'; readonly id: string; readonly secret: SecretReference; readonly session: SecretReference | null }
  | { readonly kind: 'command'; readonly command: readonly string[] }
  /** The role of the machine that onejob runs on. */
  | { readonly kind: 'metadata' };

export interface AwsConfig {
  readonly name: string;
  readonly type: 'aws';
  readonly region: string;
  /** Where a sweep looks in addition to `region`; null: in all that are turned on. */
  readonly regions: readonly string[] | null;
  readonly credentials: AwsCredentialSource;
  /** null: those of the default network. */
  readonly subnets: readonly string[] | null;
  /** null: the default one of the network. */
  readonly securityGroup: string | null;
  /** null only with `manager-only`, or in a config that a check refuses. */
  readonly schedulerRole: string | null;
  readonly deathDate: 'cloud' | 'manager-only';
  /** Without a slash at its end; null: AWS's own. */
  readonly endpoint: string | null;
}
