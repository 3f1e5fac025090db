/** Azure Pipelines as a type of service: what config holds of one. How it is written is `schema.ts`. */
import type { AgentPackageConfig } from '../../config/config.ts';
import { type Keys, mapIn, numberIn, packageIn, secretIn } from '../../config/service-keys.ts';
import type { SecretReference } from '../../secrets/reference.ts';
import type { ServiceType } from '../service-type.ts';
import { checkAzure, checkAzurePool } from './check.ts';

export interface AzureServiceConfig {
  readonly name: string;
  readonly type: 'azure-pipelines';
  /** Of the organisation or collection, without a slash at its end. */
  readonly url: string;
  readonly credential: AzureCredential;
  /**
   * Who makes an agent known to the service: `manager`, onejob itself, so that no credential enters a sandbox. `in-agent`:
   * the agent's own `config.sh`. `image`: the image's own start script. `auto`: `manager` for an image with an agent, else `image`.
   */
  readonly registration: 'manager' | 'in-agent' | 'image' | 'auto';
  /** ms between two looks at the service. */
  readonly pollEvery: number;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly agentPackage: AgentPackageConfig;
}

export type AzureCredential =
  | { readonly kind: 'pat'; readonly token: SecretReference }
  /** An Entra application. `authority`: where its tokens are made, without a slash at its end. */
  | {
      readonly kind: 'principal';
      readonly tenant: string;
      readonly client: string;
      readonly secret: SecretReference;
      readonly authority: string;
    };

export const azureDefaults = { registration: 'manager', poll: 10_000, boot_timeout: 180_000 } as const;
export const usualAuthority = 'https://login.microsoftonline.com';

/** A file cannot say `auto`: only the drop-in does. */
const registrations = ['manager', 'in-agent', 'image', 'auto'] as const;

export const azurePipelines: ServiceType<AzureServiceConfig> = {
  type: 'azure-pipelines',
  title: 'Azure Pipelines',
  agent: 'in-image',
  poolKeys: [],
  defaults: azureDefaults,
  init: {
    asks: 'organisation, token and pool',
    options: [
      ['--url <url>', 'address of the organisation or collection'],
      ['--pool <name>', 'the agent pool there'],
    ],
    token: { what: 'the personal access token', file: 'azure.pat' },
    example: '--url https://dev.azure.com/acme --pool gpu',
    hint: 'The token needs the scope "Agent Pools (Read & manage)", and whoever it belongs to the role Administrator in the pool.',
    run: async (...given) => (await import('./init.ts')).initAzure(...given),
  },
  schema: async () => (await import('./schema.ts')).schema,
  resolve(name, keys) {
    const credential = resolveCredential(keys);
    if (typeof keys.url !== 'string' || credential === null) return null;
    return {
      name,
      type: 'azure-pipelines',
      url: keys.url,
      credential,
      registration: registrations.find((one) => one === keys.registration) ?? azureDefaults.registration,
      pollEvery: numberIn(keys.poll, azureDefaults.poll),
      bootTimeout: numberIn(keys.boot_timeout, azureDefaults.boot_timeout),
      agentPackage: packageIn(keys.agent),
    };
  },
  secrets: ({ credential }) => [credential.kind === 'pat' ? ['token', credential.token] : ['principal.secret', credential.secret]],
  check: checkAzure,
  checkPool: checkAzurePool,
};

function resolveCredential(keys: Keys): AzureCredential | null {
  const token = secretIn(keys.token);
  if (token !== null) return { kind: 'pat', token };
  const { tenant, client, secret: written, authority = usualAuthority } = mapIn(keys.principal);
  const secret = secretIn(written);
  if (typeof tenant !== 'string' || typeof client !== 'string' || typeof authority !== 'string' || secret === null) return null;
  return { kind: 'principal', tenant, client, secret, authority };
}
