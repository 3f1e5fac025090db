/**
 * Mail for a machine in the metadata of its instance. They are set as a whole, with the fingerprint of what they were before
 * (reference of `instances.setMetadata`), so what cloud-init reads is sent again with them.
 */
import type { Made } from '../../ports/cloud.ts';
import type { GcpCalls } from './calls.ts';
import { needs } from './permissions.ts';
import { operation, withMetadata } from './wire.ts';

/** A change of somebody else in between fails it, as a 412. @throws CloudError */
export async function deliverByMetadata(
  calls: Pick<GcpCalls, 'call'>,
  { id, place }: Pick<Made, 'id' | 'place'>,
  text: string,
  signal: AbortSignal,
): Promise<void> {
  const [path, doing] = [`zones/${place}/instances/${id}`, `send mail to ${id}`];
  const { metadata } = await calls.call(
    { path, query: { fields: 'metadata(fingerprint,items)' }, doing, needs: needs.instance },
    withMetadata,
    signal,
  );
  const items = [...metadata.items.filter(({ key }) => key !== 'onejob-mail'), { key: 'onejob-mail', value: text }];
  const body = { fingerprint: metadata.fingerprint, items };
  await calls.call({ method: 'POST', path: `${path}/setMetadata`, body, doing, needs: needs.setMetadata }, operation, signal);
}
