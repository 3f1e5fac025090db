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

const form =
  /^(?:projects\/(?<owner>(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,62})\/global\/images\/(?<family>family\/)?|(?<short>(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,62})\/)(?<name>[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)$/;

/** @throws CloudError E_CLOUD_REQUEST */
export function imageOf({ from }: CloudImage): ImageName {
  const { owner, family, short, name = '' } = form.exec(from)?.groups ?? {};
  const project = owner ?? short;
  if (project !== undefined) return { project, kind: (family ?? short) === undefined ? 'image' : 'family', name };
  const message = `Cannot use image ${JSON.stringify(from)}: it is not written as an image of Google Cloud.`;
  throw new CloudError('E_CLOUD_REQUEST', message, {
    hint: 'Write PROJECT/FAMILY, projects/PROJECT/global/images/family/FAMILY, or projects/PROJECT/global/images/IMAGE.',
  });
}

/** Its address below a version of the API. */
export function imagePath({ project: owner, kind, name: one }: ImageName): string {
  return `projects/${owner}/global/images/${kind === 'family' ? 'family/' : ''}${one}`;
}
