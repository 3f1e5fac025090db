/** Resources as the API shows them. */
import { createHash } from 'node:crypto';
import type { Address, Disk, Machine } from './machines.ts';

const base = 'https://www.googleapis.com/compute/v1/projects';
/** Of metadata: a change needs that of what it replaces. */
export const fingerprintOf = (metadata: Machine['metadata']): string =>
  createHash('sha256').update(JSON.stringify(metadata)).digest('base64').slice(0, 12);
const time = (ms: number): string => new Date(ms).toISOString();

export function instanceView(project: string, { wanted, ...machine }: Machine) {
  const zone = `${base}/${project}/zones/${machine.zone}`;
  const { accelerator, isSpot, maxRun, onEnd } = wanted;
  const { metadata } = machine;
  return {
    kind: 'compute#instance',
    id: machine.id,
    name: machine.name,
    zone,
    selfLink: `${zone}/instances/${machine.name}`,
    status: machine.status,
    creationTimestamp: time(machine.created),
    labels: machine.labels,
    labelFingerprint: 'Zm9v',
    machineType: `${zone}/machineTypes/${wanted.machineType}`,
    ...(accelerator === null
      ? {}
      : {
          guestAccelerators: [
            { acceleratorType: `${zone}/acceleratorTypes/${accelerator.type}`, acceleratorCount: accelerator.count },
          ],
        }),
    disks: [
      {
        kind: 'compute#attachedDisk',
        type: 'PERSISTENT',
        mode: 'READ_WRITE',
        boot: true,
        index: 0,
        autoDelete: wanted.autoDelete,
        diskSizeGb: String(wanted.diskGb),
        source: `${zone}/disks/${machine.name}`,
      },
    ],
    metadata: {
      kind: 'compute#metadata',
      fingerprint: fingerprintOf(metadata),
      items: Object.entries(metadata).map(([key, value]) => ({ key, value })),
    },
    scheduling: {
      provisioningModel: isSpot ? 'SPOT' : 'STANDARD',
      preemptible: isSpot,
      onHostMaintenance: 'TERMINATE',
      automaticRestart: false,
      ...(onEnd === null ? {} : { instanceTerminationAction: onEnd }),
      ...(maxRun === null ? {} : { maxRunDuration: { seconds: String(maxRun) } }),
    },
    networkInterfaces: [
      {
        name: 'nic0',
        network: `${base}/${project}/global/networks/default`,
        networkIP: '10.128.0.7',
        ...(wanted.hasAddress ? { accessConfigs: [{ type: 'ONE_TO_ONE_NAT', name: 'External NAT', natIP: '203.0.113.7' }] } : {}),
      },
    ],
    resourceStatus: {
      scheduling: machine.endsAt === null ? {} : { terminationTimestamp: time(machine.endsAt) },
    },
  };
}

export function diskView(project: string, { zone, user, ...disk }: Disk) {
  const below = `${base}/${project}/zones/${zone}`;
  return {
    kind: 'compute#disk',
    id: disk.id,
    name: disk.name,
    zone: below,
    selfLink: `${below}/disks/${disk.name}`,
    status: 'READY',
    sizeGb: String(disk.sizeGb),
    labels: disk.labels,
    creationTimestamp: time(disk.created),
    ...(user === null ? {} : { users: [`${below}/instances/${user}`] }),
  };
}

export function addressView(project: string, { region, user, ...address }: Address) {
  const below = `${base}/${project}/regions/${region}`;
  return {
    kind: 'compute#address',
    id: address.id,
    name: address.name,
    region: below,
    address: '203.0.113.9',
    status: user === null ? 'RESERVED' : 'IN_USE',
    addressType: 'EXTERNAL',
    labels: address.labels,
    selfLink: `${below}/addresses/${address.name}`,
  };
}

/** An operation, which ends at a time. */
export interface Operation {
  readonly id: string;
  readonly name: string;
  /** `zones/us-central1-a` */
  readonly scope: string;
  readonly type: 'insert' | 'delete' | 'setMetadata';
  readonly target: string;
  readonly targetId: string;
  readonly requestId: string | null;
  readonly begun: number;
  readonly ends: number;
  readonly error: { readonly status: number; readonly errors: readonly unknown[] } | null;
}

export function operationView(project: string, operation: Operation, now: number) {
  const { scope, begun, ends, error } = operation;
  const below = `${base}/${project}/${scope}`;
  const [kind] = scope.split('/');
  const isDone = now >= ends;
  return {
    kind: 'compute#operation',
    id: operation.id,
    name: operation.name,
    operationType: operation.type,
    [kind === 'zones' ? 'zone' : 'region']: below,
    selfLink: `${below}/operations/${operation.name}`,
    targetLink: `${below}/${operation.target}`,
    targetId: operation.targetId,
    user: 'onejob@example.com',
    ...(operation.requestId === null ? {} : { clientOperationId: operation.requestId }),
    status: isDone ? 'DONE' : now === begun ? 'PENDING' : 'RUNNING',
    progress: isDone ? 100 : 0,
    insertTime: time(begun),
    startTime: time(begun),
    ...(isDone ? { endTime: time(ends) } : {}),
    ...(isDone && error !== null
      ? { httpErrorStatusCode: error.status, httpErrorMessage: 'FAILED', error: { errors: error.errors } }
      : {}),
  };
}
