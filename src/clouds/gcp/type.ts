/** Google Cloud as a type of cloud: what config holds of one. How it is written is `schema.ts`. */

import { complete, type WrittenKeys } from '../../schema/key.ts';
import type { CloudType } from '../cloud-type.ts';
import type { GcpConfig, GcpCredential } from './config.ts';
import { typeProblem } from './machine-type.ts';
import { permissions } from './permissions.ts';
import { gcpCredentialKeys, gcpKeys } from './schema.ts';

export const gcp: CloudType<GcpConfig> = {
  type: 'gcp',
  title: 'Google Cloud',
  keys: gcpKeys,
  maps: { credentials: gcpCredentialKeys },
  needs: ['project', 'region'],
  // The longest maxRunDuration.
  longestLifetime: 120 * 24 * 3_600_000,
  cheapType: 'n1-standard-4/nvidia-tesla-t4',
  typeProblem,
  resolve(name, written) {
    const { project, region, zones = null, credentials, network, subnetwork, ...rest } = complete(gcpKeys, written);
    if (project === undefined || region === undefined) return null;
    return {
      name,
      type: 'gcp',
      project,
      region,
      zones,
      credential: credentialOf(credentials),
      subnetwork: subnetworkOf(subnetwork ?? network, project, region),
      hasExternalAddress: rest.external_ip,
      deathDate: rest.death_date,
      endpoint: rest.endpoint,
    };
  },
  problems: ({ region, zones, subnetwork }) => [
    ...(zones ?? []).flatMap((zone, at) =>
      zone.startsWith(`${region}-`)
        ? []
        : [[['zones', String(at)], `is ${zone}, which is not in ${region}, the "region"`] as const],
    ),
    ...(subnetwork.includes(`/regions/${region}/`)
      ? []
      : [[['subnetwork'], `is ${subnetwork}, which is not in ${region}, the "region"`] as const]),
  ],
  secrets: ({ credential }) => (credential.kind === 'key' ? [['credentials.file', credential.key]] : []),
  permissions,
  open: async (cloud, parts) => (await import('./cloud.ts')).openGcp(cloud, parts),
};

type WrittenCredential = {
  readonly [K in keyof WrittenKeys<typeof gcpCredentialKeys>]?: WrittenKeys<typeof gcpCredentialKeys>[K] | undefined;
};

function credentialOf({ file, command, metadata }: WrittenCredential = {}): GcpCredential {
  if (file !== undefined) return { kind: 'key', key: file };
  if (command !== undefined) return { kind: 'command', command };
  return { kind: metadata === true ? 'metadata' : 'usual' };
}

/** `written`: the name of a subnetwork or network, or its path. A network in auto mode has one subnetwork with its name in each region. */
function subnetworkOf(written: string, project: string, region: string): string {
  const name = written.includes('/') ? written : `projects/${project}/global/networks/${written}`;
  return name.replace('/global/networks/', `/regions/${region}/subnetworks/`);
}
