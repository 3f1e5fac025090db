/** What machines boot from: an AMI, or a public parameter of SSM that names one. */
import { z } from 'zod';
import { CloudError, type CloudImage } from '../../ports/cloud.ts';
import { createHeld, type Lease } from '../kit/held.ts';
import type { Calls } from './calls.ts';
import { itemsAt, textAt } from './xml.ts';

/** NVIDIA's driver, Docker and the container toolkit, by AWS. */
export const usualImage: CloudImage = {
  from: '/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id',
  has: 'everything',
};

export interface Ami {
  readonly id: string;
  readonly name: string;
  /** Of the boot disk; one with another name would be a second disk. */
  readonly device: string;
  /** GiB that the boot disk has at least. */
  readonly disk: number;
}

const parameter = z.object({ Parameter: z.object({ Value: z.string().regex(/^ami-[0-9a-f]{8,17}$/) }) });

/** ms for which the id that a parameter named is used again. */
const fresh = 10 * 60_000;

export function createImages(calls: Calls, region: string, now: () => number) {
  const held = createHeld<Ami>(now);

  async function idOf(from: string, signal: AbortSignal): Promise<string> {
    if (from.startsWith('ami-')) return from;
    const doing = `find image ${from}`;
    if (!from.startsWith('/')) {
      const message = `Cannot ${doing}: an image of AWS is "ami-…", or a parameter of SSM that begins with "/".`;
      throw new CloudError('E_CLOUD_REQUEST', message, { hint: `Write for example from: ${usualImage.from}` });
    }
    const answer = await calls.json('ssm', 'AmazonSSM.GetParameter', { Name: from }, { doing, region }, signal);
    const found = parameter.safeParse(answer);
    if (found.success) return found.data.Parameter.Value;
    throw new CloudError('E_CLOUD_REQUEST', `Cannot ${doing}: the parameter contains no id of an image.`);
  }

  async function look(from: string, signal: AbortSignal): Promise<Lease<Ami>> {
    const id = await idOf(from, signal);
    const call = { doing: `look at image ${id}`, region };
    const [image] = itemsAt(await calls.ec2('DescribeImages', { ImageId: [id] }, call, signal), 'imagesSet');
    const device = textAt(image, 'rootDeviceName');
    if (device === null) throw new CloudError('E_CLOUD_REQUEST', `Cannot use image ${id}: there is no such image in ${region}.`);
    const disk = itemsAt(image, 'blockDeviceMapping').find((one) => textAt(one, 'deviceName') === device);
    const value = { id, name: textAt(image, 'name') ?? id, device, disk: Number(textAt(disk, 'ebs/volumeSize') ?? 0) };
    return { value, until: now() + fresh };
  }

  /** @throws CloudError */
  return ({ from }: CloudImage, signal: AbortSignal): Promise<Ami> => held.get(from, (shared) => look(from, shared), signal);
}

export type Images = ReturnType<typeof createImages>;
