/**
 * Which images a job may name. A name says where an image comes from only if nobody else can put another one there: those that onejob
 * gives to its own images, and ids, name whatever is on this host, such as the files of somebody else's held job.
 */

import { isOwnName, plainName } from '../../base/image-reference.ts';

/** Why a job may not run in that image, as a clause, or null. */
export function jobImageProblem(reference: string): string | null {
  if (isOwnName(reference)) return 'only images that onejob makes for itself have such a name';
  if (/^(sha256:)?[0-9a-f]{4,64}$/.test(plainName(reference)))
    return 'it is the id of an image on this host, and may be of somebody else';
  return null;
}
