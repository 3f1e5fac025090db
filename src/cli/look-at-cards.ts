/** One look at the cards of this host, without a daemon. */
import { join } from 'node:path';
import type { Inventory } from '../gpu/inventory.ts';
import { createProbe } from '../gpu/probe.ts';
import type { Session } from './session.ts';

export async function lookAtCards({ context }: Session): Promise<Inventory> {
  const { path, hostRoot: root } = context.environment;
  using probe = createProbe({ path, ...(root !== null && { sys: join(root, 'sys'), proc: join(root, 'proc') }) });
  return await probe.look();
}
