/** A stand-in's door: opened on the port it had before, and closed with whoever is in it. */
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

export async function listening(server: Server, host: string, port: number): Promise<void> {
  if (server.listening) return;
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

export async function closed(server: Server): Promise<void> {
  if (!server.listening) return;
  const done = new Promise<void>((resolve) => server.close(() => resolve()));
  server.closeAllConnections();
  await done;
}

export function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

/** For URLs: an IPv6 address in brackets. */
export function inUrl(host: string): string {
  return host.includes(':') ? `[${host}]` : host;
}

/** Where others reach what listens on `host`. */
export function publicOf(host: string): string {
  return host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host;
}
