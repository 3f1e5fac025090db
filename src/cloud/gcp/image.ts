/** Images as the config writes them: `projects/P/global/images/family/F`, `projects/P/global/images/I`, or short `P/F` for a family. */
import { CloudError, type CloudImage } from '../cloud.ts';

export interface ImageName {
  readonly project: string;
  readonly kind: 'family' | 'image';
  readonly name: string;
}

/**
 * Google's Ubuntu with a driver that Canonical signed, so that Secure Boot stays on. 580 is the oldest of its branches that is still
 * maintained: the 570 families are outdated, and 595 is younger than many CUDA images.
 */
export const usualImage: CloudImage = {
  from: 'ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-580',
  has: 'driver',
};

const project = '((?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,62})';
const name = '([a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)';
const family = new RegExp(`^(?:projects/${project}/global/images/family/${name}|${project}/${name})$`);
const image = new RegExp(`^projects/${project}/global/images/${name}$`);

/** null: not written as an image is. */
export function parseImage(from: string): ImageName | null {
  const [, long, ofLong, short, ofShort] = family.exec(from) ?? [];
  const [ofProject, ofFamily] = [long ?? short, ofLong ?? ofShort];
  if (ofProject !== undefined && ofFamily !== undefined) return { project: ofProject, kind: 'family', name: ofFamily };
  const [, owner, one] = image.exec(from) ?? [];
  return owner === undefined || one === undefined ? null : { project: owner, kind: 'image', name: one };
}

/** @throws CloudError E_CLOUD_REQUEST */
export function imageOf({ from }: CloudImage): ImageName {
  const found = parseImage(from);
  if (found !== null) return found;
  throw new CloudError(
    'E_CLOUD_REQUEST',
    `Cannot use image ${JSON.stringify(from)}: it is not written as an image of Google Cloud.`,
    {
      hint: 'Write PROJECT/FAMILY, projects/PROJECT/global/images/family/FAMILY, or projects/PROJECT/global/images/IMAGE.',
    },
  );
}

/** Its address below a version of the API. */
export function imagePath({ project: owner, kind, name: one }: ImageName): string {
  return `projects/${owner}/global/images/${kind === 'family' ? 'family/' : ''}${one}`;
}
