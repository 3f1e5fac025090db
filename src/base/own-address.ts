/** Whether an address belongs to this host, as far as this process' network shows. */
import { createServer, isIP } from 'node:net';

/**
 * Whether a server could listen at the address `host` on this host. False for names other than `localhost`. It tries to listen,
 * because an interface that is down is not listed, although its address is ours.
 */
export async function isOwnAddress(host: string): Promise<boolean> {
  if (host === 'localhost') return true;
  if (isIP(host) === 0) return false;
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', () => resolve(false));
    server.listen(0, host, () => server.close(() => resolve(true)));
  });
}
