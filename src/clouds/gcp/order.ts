/** The body of `instances.insert`: one machine, all of it with our labels. Numbers of 64 bits are text (discovery document). */
import { CloudError, type Order } from '../../ports/cloud.ts';
import { tagsOf } from '../kit/things.ts';
import type { GcpConfig } from './config.ts';
import { imageOf } from './image.ts';
import { diskTypeOf, usableType } from './machine-type.ts';

/** Seconds; Google takes 30 s to 120 days (guide "Limit the run time of a VM"). */
export const shortestLife = 30;
export const longestLife = 120 * 86_400;

/** `now`: seconds since the epoch by the cloud's clock. @throws CloudError E_CLOUD_REQUEST */
export function instanceOf(order: Order, zone: string, config: GcpConfig, now: number) {
  const { offer, image, userData, disk } = order;
  const type = usableType(offer.type, 'create a machine');
  const { attached } = type;
  const labels = tagsOf(order);
  const below = `projects/${config.project}/zones/${zone}`;
  return {
    name: order.run,
    description: `Made by onejob for host ${order.host}.`,
    machineType: `${below}/machineTypes/${type.machine}`,
    labels,
    disks: [
      {
        boot: true,
        autoDelete: true,
        initializeParams: {
          sourceImage: imageOf(image).path,
          diskSizeGb: String(disk),
          diskType: `${below}/diskTypes/${diskTypeOf(type)}`,
          labels,
        },
      },
    ],
    ...(attached !== null && {
      guestAccelerators: [{ acceleratorType: `${below}/acceleratorTypes/${attached.type}`, acceleratorCount: attached.count }],
    }),
    networkInterfaces: [
      {
        subnetwork: config.subnetwork,
        ...(config.hasExternalAddress && { accessConfigs: [{ type: 'ONE_TO_ONE_NAT', name: 'External NAT' }] }),
      },
    ],
    scheduling: schedulingOf(order, config, now),
    metadata: {
      items: [
        { key: 'user-data', value: userData },
        { key: 'block-project-ssh-keys', value: 'TRUE' },
      ],
    },
    // No service account: there is nothing on the machine that a job could take.
    serviceAccounts: [],
    // A complete image may have a driver that its maker did not sign, which Secure Boot would not load.
    shieldedInstanceConfig: { enableSecureBoot: image.has !== 'everything', enableVtpm: true, enableIntegrityMonitoring: true },
  };
}

function schedulingOf({ offer, expires }: Order, { deathDate }: GcpConfig, now: number) {
  const life = Math.ceil(expires - now);
  if (deathDate === 'cloud' && (life < shortestLife || life > longestLife))
    throw new CloudError('E_CLOUD_REQUEST', `Cannot create a machine that ends in ${life} s: Google takes 30 s to 120 days.`, {
      hint: 'Change "lifetime" of the host.',
    });
  return {
    provisioningModel: offer.spot ? 'SPOT' : 'STANDARD',
    // GPUs cannot move to another computer. Nothing starts again by itself: its end would be forgotten.
    onHostMaintenance: 'TERMINATE',
    automaticRestart: false,
    ...((deathDate === 'cloud' || offer.spot) && { instanceTerminationAction: 'DELETE' }),
    ...(deathDate === 'cloud' && { maxRunDuration: { seconds: String(life) } }),
  };
}
