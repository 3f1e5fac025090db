/**
 * What the adapter's calls need, in Azure's words. `deploy/cloud/azure-role.json` is the custom role made from it, and a test holds the
 * list to what the calls use.
 */

/** Of one call, and of what Azure does on its behalf, such as the interface of a machine. */
export const permissions = {
  self: ['Microsoft.Authorization/permissions/read', 'Microsoft.Resources/subscriptions/read'],
  providers: ['Microsoft.Resources/subscriptions/providers/read'],
  makeGroup: ['Microsoft.Resources/subscriptions/resourceGroups/write'],
  listGroups: ['Microsoft.Resources/subscriptions/resourceGroups/read'],
  removeGroup: ['Microsoft.Resources/subscriptions/resourceGroups/delete'],
  makeMachine: [
    'Microsoft.Compute/disks/write',
    'Microsoft.Compute/virtualMachines/write',
    'Microsoft.Network/networkInterfaces/join/action',
    'Microsoft.Network/networkInterfaces/write',
    'Microsoft.Network/networkSecurityGroups/join/action',
    'Microsoft.Network/publicIPAddresses/join/action',
    'Microsoft.Network/publicIPAddresses/write',
    'Microsoft.Network/virtualNetworks/subnets/join/action',
  ],
  /** Asks again until the machine is made. */
  followMachine: ['Microsoft.Compute/locations/operations/read'],
  ownImage: [
    'Microsoft.Compute/galleries/images/read',
    'Microsoft.Compute/galleries/images/versions/read',
    'Microsoft.Compute/images/read',
  ],
  listMachines: ['Microsoft.Compute/virtualMachines/read'],
  listResources: ['Microsoft.Resources/subscriptions/resources/read'],
  /** The tags of what is not in a group of its own. */
  readDisk: ['Microsoft.Compute/disks/read'],
  readInterface: ['Microsoft.Network/networkInterfaces/read'],
  readAddress: ['Microsoft.Network/publicIPAddresses/read'],
  removeMachine: ['Microsoft.Compute/virtualMachines/delete'],
  removeDisk: ['Microsoft.Compute/disks/delete'],
  removeInterface: ['Microsoft.Network/networkInterfaces/delete'],
  removeAddress: ['Microsoft.Network/publicIPAddresses/delete'],
  /** Azure deallocates in the name of who asked for it. */
  setEnd: [
    'Microsoft.Compute/virtualMachines/deallocate/action',
    'Microsoft.ComputeSchedule/locations/virtualMachinesSubmitDeallocate/action',
  ],
  readEnd: ['Microsoft.ComputeSchedule/locations/virtualMachinesGetOperationStatus/action'],
  console: ['Microsoft.Compute/virtualMachines/retrieveBootDiagnosticsData/action'],
  deliver: ['Microsoft.Compute/virtualMachines/write'],
  sizes: ['Microsoft.Compute/skus/read'],
  quotas: ['Microsoft.Compute/locations/usages/read'],
  publicImage: ['Microsoft.Compute/locations/publishers/artifacttypes/offers/skus/versions/read'],
  network: ['Microsoft.Network/virtualNetworks/read'],
  securityGroup: ['Microsoft.Network/networkSecurityGroups/read'],
} as const;
export type Doing = keyof typeof permissions;

/** All of them, sorted. */
export const allPermissions: readonly string[] = [...new Set(Object.values(permissions).flat())].sort();

/** Of a role, as `permissions` of Azure says it. */
export interface Granted {
  readonly actions: readonly string[];
  readonly notActions: readonly string[];
}

/** Whether one of the roles allows it: `*` stands for any text, case does not count (Azure RBAC, role definitions). */
export function allows(roles: readonly Granted[], permission: string): boolean {
  const covers = (pattern: string): boolean =>
    new RegExp(`^${pattern.replace(/[.+?^${}()|[\]\\]/g, '\\$&').replaceAll('*', '.*')}$`, 'i').test(permission);
  return roles.some(({ actions, notActions }) => actions.some(covers) && !notActions.some(covers));
}
