/** Whether an address belongs to this host, as far as this process' network shows. */
import { createServer, isIP } from 'node:net';

/**
 * Whether somebody could listen at the address `host` on this host. False for names other than `localhost`. An interface that
 * is down is not listed, and its address is ours all the same, so this tries rather than looks.
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
