/**
 * Mail for a machine as tags of its instance, which its metadata service shows. A tag has at most 256 characters, an instance 50 tags
 * (EC2 user guide, "Tag restrictions"), so the text is cut; the first tag says into how many pieces, and their checksum. Tags that a
 * longer mail has left stay, and count no more.
 */
import { createHash } from 'node:crypto';
import { CloudError, type Made } from '../../ports/cloud.ts';
import type { AwsApiCall, AwsCalls } from './calls.ts';

const longestValue = 256;
/** With those of tags.ts, and a few of somebody else. */
const mostPieces = 40;

/** @throws CloudError E_CLOUD_REQUEST if it is too long */
export async function deliverByTags(
  calls: AwsCalls,
  { id, place }: Pick<Made, 'id' | 'place'>,
  text: string,
  signal: AbortSignal,
): Promise<void> {
  const pieces = text.match(new RegExp(`.{1,${longestValue}}`, 'gs')) ?? [];
  if (pieces.length > mostPieces) {
    const message = `Cannot send machine ${id} its config: it has ${text.length} characters, and tags take ${mostPieces * longestValue}.`;
    throw new CloudError('E_CLOUD_REQUEST', message, {
      hint: 'Name fewer services in the pools of the host, or use "join.listen".',
    });
  }
  const sum = createHash('sha256').update(text).digest('hex');
  const tags = [{ Key: 'onejob-mail', Value: `${pieces.length} ${sum}` }];
  for (const [at, Value] of pieces.entries()) tags.push({ Key: `onejob-mail-${at + 1}`, Value });
  const call: AwsApiCall = { doing: `send mail to machine ${id}`, region: place };
  await calls.ec2('CreateTags', { ResourceId: [id], Tag: tags }, call, signal);
}
