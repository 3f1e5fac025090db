/**
 * Mail for a machine as its `userData`, which its metadata service shows, and which may change while it runs (Azure, "User Data for
 * Azure Virtual Machine"). The machine boots from `customData`, which stays as it is.
 */
import type { Made } from '../../ports/cloud.ts';
import type { Arm, ArmCall } from './arm.ts';
import { parseResource } from './id.ts';

/** @throws CloudError */
export async function deliverByUserData(
  arm: Pick<Arm, 'ask' | 'refuse'>,
  { id }: Pick<Made, 'id'>,
  text: string,
  signal: AbortSignal,
): Promise<void> {
  const call: ArmCall = {
    method: 'PATCH',
    path: id,
    version: 'compute',
    needs: 'deliver',
    doing: `send mail to machine ${parseResource(id)?.name ?? ''}`,
    body: { properties: { userData: Buffer.from(text).toString('base64') } },
  };
  const answer = await arm.ask(call, signal);
  if (!answer.ok) throw arm.refuse(call, answer);
}
