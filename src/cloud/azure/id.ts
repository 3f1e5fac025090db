/** Resource ids. Azure compares them without regard to case, and spells them differently from list to list. */

const provider = String.raw`^/subscriptions/[0-9a-f-]{36}/resourceGroups/[^/\s?#]+/providers/`;
export const subnetId = new RegExp(String.raw`${provider}Microsoft\.Network/virtualNetworks/[\w.-]+/subnets/[\w.-]+$`, 'i');
export const securityGroupId = new RegExp(String.raw`${provider}Microsoft\.Network/networkSecurityGroups/[\w.-]+$`, 'i');
/** An image of one's own, or of a gallery with or without its version. */
export const imageId = new RegExp(
  String.raw`${provider}Microsoft\.Compute/(images/[\w.-]+|galleries/[\w.-]+/images/[\w.-]+(/versions/[\w.-]+)?)$`,
  'i',
);

/** Types of resources that belong to a machine, as they are spelled in ids. */
export const resourceTypes = {
  machine: 'Microsoft.Compute/virtualMachines',
  disk: 'Microsoft.Compute/disks',
  interface: 'Microsoft.Network/networkInterfaces',
  address: 'Microsoft.Network/publicIPAddresses',
} as const;
export type ResourceKind = keyof typeof resourceTypes;

export interface Resource {
  readonly kind: ResourceKind;
  readonly subscription: string;
  readonly group: string;
  readonly name: string;
}

export const groupPath = (subscription: string, group: string): string => `/subscriptions/${subscription}/resourceGroups/${group}`;

export const resourcePath = ({ kind, subscription, group, name }: Resource): string =>
  `${groupPath(subscription, group)}/providers/${resourceTypes[kind]}/${name}`;

/** The parts of an id, in lower case; null for a type that is not one of a machine. */
export function parseResource(id: string): Resource | null {
  const found = /^\/subscriptions\/([^/]+)\/resourcegroups\/([^/]+)\/providers\/([^/]+\/[^/]+)\/([^/]+)$/.exec(id.toLowerCase());
  const [, subscription = '', group = '', type = '', name = ''] = found ?? [];
  const kind = (Object.keys(resourceTypes) as ResourceKind[]).find((one) => resourceTypes[one].toLowerCase() === type);
  return kind === undefined ? null : { kind, subscription, group, name };
}

/** Subscription and name of a group's id, in lower case; null for any other id. */
export function parseGroup(id: string): { readonly subscription: string; readonly group: string } | null {
  const [, subscription, group] = /^\/subscriptions\/([^/]+)\/resourcegroups\/([^/]+)$/.exec(id.toLowerCase()) ?? [];
  return subscription === undefined || group === undefined ? null : { subscription, group };
}
