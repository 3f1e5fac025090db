/**
 * What each call needs, by Google's reference of the call and "Required permissions" of the guides to it. A role of exactly these is
 * `deploy/cloud/gcp-role.yaml`.
 */
export const needs = {
  /** Labels of the boot disk, metadata and an external address have permissions of their own. */
  insert: [
    ...['compute.instances.create', 'compute.instances.setLabels', 'compute.instances.setMetadata'],
    ...['compute.disks.create', 'compute.disks.setLabels', 'compute.images.useReadOnly', 'compute.subnetworks.use'],
  ],
  externalAddress: ['compute.subnetworks.useExternalIp'],
  operation: ['compute.zoneOperations.get'],
  instance: ['compute.instances.get'],
  setMetadata: ['compute.instances.setMetadata'],
  instances: ['compute.instances.list'],
  disks: ['compute.disks.list'],
  addresses: ['compute.addresses.list'],
  deleteInstance: ['compute.instances.delete'],
  deleteDisk: ['compute.disks.delete'],
  deleteAddress: ['compute.addresses.delete'],
  console: ['compute.instances.getSerialPortOutput'],
  machineTypes: ['compute.machineTypes.list'],
  acceleratorTypes: ['compute.acceleratorTypes.list'],
  region: ['compute.regions.get'],
  project: ['compute.projects.get'],
  image: ['compute.images.get'],
  family: ['compute.images.getFromFamily'],
  subnetwork: ['compute.subnetworks.get'],
  /** Anyone may ask what he may do. */
  permissions: [],
} as const satisfies Record<string, readonly string[]>;

/** All of them, sorted. */
export const permissions: readonly string[] = [...new Set<string>(Object.values(needs).flat())].sort();
