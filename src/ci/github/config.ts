/** What the config holds of a service of type `github`. */
import type { Listen } from '../../http/address.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';
import type { AgentPackageConfig } from '../../schema/service-keys.ts';

export interface GithubServiceConfig {
  readonly name: string;
  readonly type: 'github';
  /** Without a slash at its end. */
  readonly url: string;
  readonly credential: GithubCredential;
  /** Runner group of its agents. */
  readonly group: string;
  readonly mode: 'jit' | 'scale-set';
  /** null: onejob only polls. */
  readonly webhook: { readonly listen: Listen; readonly secret: SecretReference } | null;
  /** The Engine that jobs may use; null: none. */
  readonly docker: { readonly socket: string; readonly folder: string } | null;
  readonly forks: 'refuse' | 'run';
  readonly public: 'refuse' | 'run';
  /** ms between two looks at the list of runners. */
  readonly pollEvery: number;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly agentPackage: AgentPackageConfig;
  /** Folder of this host with the runner; null: images have it. */
  readonly mountedRunner: string | null;
}

export type GithubCredential =
  | { readonly kind: 'token'; readonly token: SecretReference }
  /** `installation`; null: that of the account in question. */
  | { readonly kind: 'app'; readonly id: number; readonly privateKey: SecretReference; readonly installation: number | null };
