/** A server on this host's loopback, such as a forge next to its GPUs. */
import { hasCode } from '../../base/errors.ts';
import { isLoopback } from '../../http/address.ts';
import type { AgentContext } from '../../ports/ci-service.ts';

/**
 * Lets an agent reach the server of its service, if that is on the loopback of this host: a sandbox with a network of its own reaches
 * only the ports of it that are opened there. Where there is no way, such as from a container, the agent says so itself.
 */
export async function openLoopback(url: string, context: Pick<AgentContext, 'hostAddress'>, signal: AbortSignal): Promise<void> {
  const { hostname, port, protocol } = new URL(url);
  if (!isLoopback(hostname.replace(/^\[(.*)\]$/, '$1'))) return;
  const usual = protocol === 'https:' ? 443 : 80;
  await context.hostAddress(port === '' ? usual : Number(port), signal).catch((error: unknown) => {
    signal.throwIfAborted();
    if (!hasCode(error, 'E_NO_DOOR')) throw error;
  });
}
