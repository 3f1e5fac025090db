/** Azure as a type of cloud: what the config holds of one. How it is written is `schema.ts`. */

import { complete, type WrittenKeys } from '../../schema/key.ts';
import type { CloudType } from '../cloud-type.ts';
import type { AzureConfig, AzureCredentialSource } from './config.ts';
import { allPermissions } from './permissions.ts';
import { azureCredentialKeys, azureKeys } from './schema.ts';
import { sizeProblem } from './sizes.ts';

export const azure: CloudType<AzureConfig> = {
  type: 'azure',
  title: 'Azure',
  keys: azureKeys,
  maps: { credentials: azureCredentialKeys },
  needs: ['subscription', 'location', 'subnet'],
  // A deallocation can be scheduled 14 days ahead; creating takes a while.
  longestLifetime: (14 * 24 - 1) * 3_600_000,
  cheapType: 'Standard_NC4as_T4_v3',
  typeProblem: sizeProblem,
  resolve(name, written) {
    const { subscription, location, subnet, security_group: securityGroup = null, ...rest } = complete(azureKeys, written);
    const credentials = resolveCredential(written as WrittenKeys<typeof azureKeys>);
    if (subscription === undefined || location === undefined || subnet === undefined || credentials === null) return null;
    return {
      name,
      type: 'azure',
      subscription: subscription.toLowerCase(),
      location,
      credentials,
      subnet,
      securityGroup,
      publicIp: rest.public_ip,
      deathDate: rest.death_date,
      endpoint: rest.endpoint,
      loginEndpoint: rest.login_endpoint,
    };
  },
  secrets: ({ credentials }) => (credentials.kind === 'application' ? [['credentials.secret', credentials.secret]] : []),
  permissions: allPermissions,
  open: async (cloud, parts) => (await import('./azure.ts')).createAzure(cloud, parts),
};

function resolveCredential({ credentials }: WrittenKeys<typeof azureKeys>): AzureCredentialSource | null {
  const { tenant, client, secret, command, metadata } = credentials ?? {};
  if (metadata === true) return { kind: 'metadata', client: client ?? null };
  if (tenant !== undefined && client !== undefined && secret !== undefined) return { kind: 'application', tenant, client, secret };
  return tenant === undefined && secret === undefined ? { kind: 'command', command: command ?? null } : null;
}
