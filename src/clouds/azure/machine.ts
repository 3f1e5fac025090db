/** Creates one machine: first a resource group of its own, so that nothing of it can be left behind, then the machine in it. */
import { generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';
import { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import { CloudError, type CloudErrorCode, type Made, type Order } from '../../ports/cloud.ts';
import { tagsOf } from '../kit/things.ts';
import type { Arm, ArmCall } from './arm.ts';
import type { AzureConfig } from './config.ts';
import { armRefusal, saidOf } from './errors.ts';
import { groupPath, imageId, resourcePath } from './id.ts';
import { permissions } from './permissions.ts';
import { diskTypeOf } from './sizes.ts';

/** ms until a machine that Azure still makes is given up. */
const patience = 600_000;
/** Looks in a row that may fail: a machine that costs minutes to make is not given up for one lost answer. */
const mostFailures = 3;
/** ms between two looks if Azure asks for no other time, and the least and the most. */
const [usualWait, leastWait, mostWait] = [10_000, 1_000, 60_000];
/** Bytes of `customData` before its encoding (Azure, custom data and cloud-init). */
const longestUserData = 65_535;

type ImageReference = { readonly id: string } | Readonly<Record<'publisher' | 'offer' | 'sku' | 'version', string>>;

/** `publisher:offer:sku:version`, or a resource id. @throws CloudError E_CLOUD_REQUEST */
export function imageReference(from: string): ImageReference {
  if (imageId.test(from)) return { id: from };
  const [publisher, offer, sku, version, ...more] = from.split(':');
  if ([publisher, offer, sku, version].every((part) => part !== undefined && /^[\w.-]+$/.test(part)) && more.length === 0)
    return { publisher, offer, sku, version } as ImageReference;
  const hint =
    'Write PUBLISHER:OFFER:SKU:VERSION, such as Canonical:ubuntu-24_04-lts:server:latest, or the resource id of an image.';
  throw new CloudError('E_CLOUD_REQUEST', `"${from}" is not an image of Azure.`, { hint });
}

/** The body of the one request that makes the machine, its disk, its interface and its address. Pure. */
export function machineBody(order: Order, config: AzureConfig, sshKey: string) {
  const { run, offer, disk, image, userData } = order;
  const tags = tagsOf(order);
  const address = {
    name: run,
    sku: { name: 'Standard' },
    tags,
    properties: { deleteOption: 'Delete', publicIPAllocationMethod: 'Static' },
  };
  const subnet = { subnet: { id: config.subnet }, ...(config.publicIp && { publicIPAddressConfiguration: address }) };
  const network = {
    name: run,
    tags,
    properties: {
      deleteOption: 'Delete',
      primary: true,
      ...(config.securityGroup !== null && { networkSecurityGroup: { id: config.securityGroup } }),
      ipConfigurations: [{ name: run, properties: subnet }],
    },
  };
  return {
    location: config.location,
    tags,
    ...(offer.zone !== null && { zones: [offer.zone] }),
    properties: {
      hardwareProfile: { vmSize: offer.type },
      storageProfile: {
        imageReference: imageReference(image.from),
        osDisk: {
          name: run,
          createOption: 'FromImage',
          deleteOption: 'Delete',
          diskSizeGB: disk,
          managedDisk: { storageAccountType: diskTypeOf(offer.type) },
        },
      },
      osProfile: {
        computerName: run,
        adminUsername: 'azureuser',
        // Not `userData`: the metadata service gives that to everything on the machine (Azure, custom data and cloud-init).
        customData: Buffer.from(userData).toString('base64'),
        linuxConfiguration: {
          disablePasswordAuthentication: true,
          provisionVMAgent: true,
          ssh: { publicKeys: [{ path: '/home/azureuser/.ssh/authorized_keys', keyData: sshKey }] },
        },
      },
      networkProfile: { networkApiVersion: '2022-11-01', networkInterfaceConfigurations: [network] },
      // In a storage account of Azure's own: it needs none of ours, and no key.
      diagnosticsProfile: { bootDiagnostics: { enabled: true } },
      ...(offer.spot && { priority: 'Spot', evictionPolicy: 'Delete', billingProfile: { maxPrice: -1 } }),
    },
  };
}

const generate = promisify(generateKeyPair);

/**
 * A public key whose private half nobody has. Azure makes no Linux machine without a password or a key, and onejob never signs in
 * with either.
 */
export async function throwAwayKey(): Promise<string> {
  const { publicKey } = await generate('rsa', { modulusLength: 2048 });
  const { n = '', e = '' } = publicKey.export({ format: 'jwk' });
  // RFC 4253, 6.6: each part has its length in front; a number whose first bit is set gets a zero byte.
  const part = (bytes: Buffer): Buffer => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    return Buffer.concat([length, bytes]);
  };
  const number = (text: string): Buffer => {
    const bytes = Buffer.from(text, 'base64url');
    return part((bytes[0] ?? 0) >= 0x80 ? Buffer.concat([Buffer.of(0), bytes]) : bytes);
  };
  return `ssh-rsa ${Buffer.concat([part(Buffer.from('ssh-rsa')), number(e), number(n)]).toString('base64')}`;
}

/** An operation, or a resource in its place. */
const progress = z.object({
  status: z.string().optional(),
  error: z.unknown().optional(),
  properties: z.object({ provisioningState: z.string().optional() }).optional(),
});

export interface Making {
  readonly config: AzureConfig;
  readonly arm: Arm;
  readonly clock: Clock;
  /** A public key as `authorized_keys` has it. */
  sshKey(): Promise<string>;
}

/** @throws CloudError; it is ambiguous only after the request for the machine itself */
export async function createMachine({ config, arm, clock, sshKey }: Making, order: Order, signal: AbortSignal): Promise<Made> {
  const { subscription, location } = config;
  const { run, offer } = order;
  const size = Buffer.byteLength(order.userData);
  if (size > longestUserData) {
    const message = `Cannot create a ${offer.type}: its cloud-init text has ${size} bytes, and Azure takes ${longestUserData}.`;
    throw new CloudError('E_CLOUD_REQUEST', message, { hint: 'Shorten what the config adds to it.' });
  }
  const body = machineBody(order, config, await sshKey());
  const group: ArmCall = {
    method: 'PUT',
    path: groupPath(subscription, run),
    version: 'resources',
    needs: 'makeGroup',
    body: { location, tags: tagsOf(order) },
    doing: `make resource group ${run} in ${location}`,
  };
  await arm.carryOut(group, signal);

  const id = resourcePath({ kind: 'machine', subscription, group: run, name: run });
  const call: ArmCall = {
    method: 'PUT',
    path: id,
    version: 'compute',
    needs: 'makeMachine',
    body,
    makesMachine: true,
    doing: `create a ${offer.spot ? 'spot ' : ''}${offer.type} in ${location}${offer.zone === null ? '' : `, zone ${offer.zone}`}`,
  };
  const accepted = await arm.carryOut(call, signal);

  const follow: ArmCall = {
    method: 'GET',
    needs: 'followMachine',
    doing: call.doing,
    makesMachine: true,
    ...(accepted.headers.has('Azure-AsyncOperation')
      ? { path: accepted.headers.get('Azure-AsyncOperation') ?? '' }
      : { path: id, version: 'compute' }),
  };
  const deadline = clock.now() + patience;
  let failures = 0;
  for (let wait = accepted.wait; ; ) {
    await sleep(clock, Math.min(Math.max(wait ?? usualWait, leastWait), mostWait), signal);
    signal.throwIfAborted();
    const look = await lookAt(arm, follow, signal);
    if ('error' in look) {
      failures += 1;
      if (failures >= mostFailures || !look.error.retry) throw unsure(look.error);
      continue;
    }
    failures = 0;
    wait = look.wait;
    if (look.state === 'succeeded') return { id, place: location, zone: offer.zone };
    if (look.state === 'failed' || look.state === 'canceled')
      throw armRefusal({ doing: call.doing, said: look.said, status: null, makesMachine: true, needs: permissions.makeMachine });
    if (clock.now() < deadline) continue;
    const message = `Cannot ${call.doing}: Azure still makes it after ${patience / 60_000} minutes ("${look.state}").`;
    throw new CloudError('E_CLOUD_ANSWER', message, { isAmbiguous: true, retry: true });
  }
}

/** One look at an operation. */
async function lookAt(arm: Arm, call: ArmCall, signal: AbortSignal) {
  try {
    const answer = await arm.carryOut(call, signal);
    const { status, properties, error } = arm.bodyAs(progress, call, answer);
    return { state: (status ?? properties?.provisioningState ?? '').toLowerCase(), said: saidOf(error, null), wait: answer.wait };
  } catch (error) {
    signal.throwIfAborted();
    if (error instanceof OnejobError) return { error };
    throw error;
  }
}

/** Azure has taken the request, so whatever went wrong since then, the machine may be there. */
function unsure(error: OnejobError): CloudError {
  const { code, message, hint, retry } = error;
  const kind = code.startsWith('E_CLOUD_') ? (code as CloudErrorCode) : 'E_CLOUD_CREDENTIAL';
  const reason = error instanceof CloudError ? error.reason : null;
  return new CloudError(kind, message, { hint, retry, reason, isAmbiguous: true });
}
