/** Images as the config writes them: `projects/P/global/images/family/F`, `projects/P/global/images/I`, or short `P/F` for a family. */
import { CloudError, type CloudImage } from '../../ports/cloud.ts';

/**
 * Google's Ubuntu with a driver that Canonical signed, so that Secure Boot stays on. 580 is the oldest of its branches that is still
 * maintained: the 570 families are outdated, and 595 is younger than many CUDA images.
 */
export const usualImage: CloudImage = {
  from: 'ubuntu-os-accelerator-images/ubuntu-accelerator-2404-amd64-with-nvidia-580',
  has: 'driver',
};

const project = '(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{4,62}';
const name = '[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?';
const long = new RegExp(`^projects/${project}/global/images/(family/)?${name}$`);
const short = new RegExp(`^(${project})/(${name})$`);

/** Its path below a version of the API. A family stands for its newest image. @throws CloudError E_CLOUD_REQUEST */
export function imageOf({ from }: CloudImage): { readonly path: string; readonly isFamily: boolean } {
  const path = from.replace(short, 'projects/$1/global/images/family/$2');
  const found = long.exec(path);
  if (found !== null) return { path, isFamily: found[1] !== undefined };
  const message = `Cannot use image ${JSON.stringify(from)}: it is not written as an image of Google Cloud.`;
  throw new CloudError('E_CLOUD_REQUEST', message, {
    hint: 'Write PROJECT/FAMILY, projects/PROJECT/global/images/family/FAMILY, or projects/PROJECT/global/images/IMAGE.',
  });
}
