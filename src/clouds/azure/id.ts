/** Resource ids. Azure compares them without regard to case, and spells them differently from list to list. */

const provider = String.raw`^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/\s?#]+/providers/`;
export const subnetId = new RegExp(String.raw`${provider}Microsoft\.Network/virtualNetworks/[\w.-]+/subnets/[\w.-]+$`, 'i');
export const securityGroupId = new RegExp(String.raw`${provider}Microsoft\.Network/networkSecurityGroups/[\w.-]+$`, 'i');
/** An image of one's own, or of a gallery with or without its version. */
export const imageId = new RegExp(
  String.raw`${provider}Microsoft\.Compute/(images/[\w.-]+|galleries/[\w.-]+/images/[\w.-]+(/versions/[\w.-]+)?)$`,
  'i',
);

/** What belongs to a machine: its type as it is spelled in ids, its version of the API, and what reading and removing it needs. */
export const resources = {
  machine: { type: 'Microsoft.Compute/virtualMachines', version: 'compute', read: 'listMachines', remove: 'removeMachine' },
  disk: { type: 'Microsoft.Compute/disks', version: 'disks', read: 'readDisk', remove: 'removeDisk' },
  interface: { type: 'Microsoft.Network/networkInterfaces', version: 'network', read: 'readInterface', remove: 'removeInterface' },
  address: { type: 'Microsoft.Network/publicIPAddresses', version: 'network', read: 'readAddress', remove: 'removeAddress' },
} as const;
export type ResourceKind = keyof typeof resources;

export interface Resource {
  readonly kind: ResourceKind;
  readonly subscription: string;
  readonly group: string;
  readonly name: string;
}

export const groupPath = (subscription: string, group: string): string => `/subscriptions/${subscription}/resourceGroups/${group}`;

export const resourcePath = ({ kind, subscription, group, name }: Resource): string =>
  `${groupPath(subscription, group)}/providers/${resources[kind].type}/${name}`;

/** The parts of an id, in lower case; null for a type that is not one of a machine. */
export function parseResource(id: string): Resource | null {
  const found = /^\/subscriptions\/([^/]+)\/resourcegroups\/([^/]+)\/providers\/([^/]+\/[^/]+)\/([^/]+)$/.exec(id.toLowerCase());
  const [, subscription = '', group = '', type = '', name = ''] = found ?? [];
  const kind = (Object.keys(resources) as ResourceKind[]).find((one) => resources[one].type.toLowerCase() === type);
  return kind === undefined ? null : { kind, subscription, group, name };
}

/** Subscription and name of a group's id, in lower case; null for any other id. */
export function parseGroup(id: string): { readonly subscription: string; readonly group: string } | null {
  const [, subscription, group] = /^\/subscriptions\/([^/]+)\/resourcegroups\/([^/]+)$/.exec(id.toLowerCase()) ?? [];
  return subscription === undefined || group === undefined ? null : { subscription, group };
}
