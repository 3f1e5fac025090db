/** Google Cloud as a type of cloud: what config holds of one. How it is written is `schema.ts`. */
import { complete, type Written } from '../../config/key.ts';
import type { SecretReference } from '../../secrets/reference.ts';
import type { CloudType } from '../cloud-type.ts';
import { typeProblem } from './machine-type.ts';
import { permissions } from './permissions.ts';
import { credentialKeys, gcpKeys } from './schema.ts';

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

export const gcp: CloudType<GcpConfig> = {
  type: 'gcp',
  title: 'Google Cloud',
  keys: gcpKeys,
  maps: { credentials: credentialKeys },
  needs: ['project', 'region'],
  // The longest maxRunDuration.
  longestLifetime: 120 * 24 * 3_600_000,
  cheapType: 'n1-standard-4/nvidia-tesla-t4',
  typeProblem,
  resolve(name, written) {
    const { project, region, zones = null, credentials, network, subnetwork, ...rest } = complete(gcpKeys, written);
    if (project === undefined || region === undefined) return null;
    return {
      ...{ name, type: 'gcp', project, region, zones, credential: credentialOf(credentials) },
      subnetwork: subnetworkOf(subnetwork ?? network, project, region),
      ...{ hasExternalAddress: rest.external_ip, deathDate: rest.death_date, endpoint: rest.endpoint },
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

type WrittenCredential = { readonly [K in keyof Written<typeof credentialKeys>]?: Written<typeof credentialKeys>[K] | undefined };

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
