/** What the config holds of a cloud of type `azure`. */
import type { CloudImage } from '../../ports/cloud.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';

export type AzureCredentialSource =
  /** An Entra application. */
  | { readonly kind: 'application'; readonly tenant: string; readonly client: string; readonly secret: SecretReference }
  /** A program that prints an access token; null: `az`. */
  | { readonly kind: 'command'; readonly command: readonly string[] | null }
  /** The managed identity of the machine that onejob runs on; `client`: of several. */
  | { readonly kind: 'metadata'; readonly client: string | null };

export interface AzureConfig {
  readonly name: string;
  readonly type: 'azure';
  readonly subscription: string;
  readonly location: string;
  readonly credentials: AzureCredentialSource;
  /** Its resource id. */
  readonly subnet: string;
  /** Its resource id; null: none, apart from the subnet's own. */
  readonly securityGroup: string | null;
  readonly publicIp: boolean;
  readonly deathDate: 'cloud' | 'manager-only';
  /** Of Azure Resource Manager, without a slash at its end. */
  readonly endpoint: string;
  /** Where Entra makes its tokens, without a slash at its end. */
  readonly loginEndpoint: string;
}

export const publicEndpoint = 'https://management.azure.com';

/** Azure Resource Manager in clouds of states. */
const otherAzures: readonly string[] = ['https://management.usgovcloudapi.net', 'https://management.chinacloudapi.cn'];

/** What tokens are for: also behind another address, such as a private endpoint, Azure Resource Manager is called like this. */
export function audienceOf({ endpoint }: Pick<AzureConfig, 'endpoint'>): string {
  return otherAzures.includes(endpoint) ? endpoint : publicEndpoint;
}

/** Whether the endpoint is Microsoft's own. */
export function isAzureItself({ endpoint }: Pick<AzureConfig, 'endpoint'>): boolean {
  return endpoint === publicEndpoint || otherAzures.includes(endpoint);
}

/** Plain Ubuntu: Microsoft's own way to a driver for GPU sizes is Canonical's signed one, after a reboot. */
export const usualImage: CloudImage = { from: 'Canonical:ubuntu-24_04-lts:server:latest', has: 'nothing' };
