/** Which name servers the Engine's containers ask: Docker hands on those of its host, or those of its own config. */
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { z } from 'zod';

const daemonConfig = z.object({ dns: z.array(z.string()).optional() });

/** IPv4 addresses; those of the host's own loopback are left out, because Docker asks them from the host. */
export async function nameserversOfHost(): Promise<string[]> {
  const [resolv, resolved, daemon] = await Promise.all(
    // The second is where systemd-resolved writes what stands behind its 127.0.0.53.
    ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf', '/etc/docker/daemon.json'].map((path) =>
      readFile(path, 'utf8').catch(() => ''),
    ),
  );
  const found = [...serversIn(resolv ?? ''), ...serversIn(resolved ?? ''), ...serversOfDaemon(daemon ?? '')];
  return [...new Set(found)].filter((address) => isIPv4(address) && !address.startsWith('127.')).sort();
}

export function serversIn(resolvConf: string): string[] {
  return [...resolvConf.matchAll(/^\s*nameserver\s+(\S+)/gm)].map(([, address = '']) => address);
}

export function serversOfDaemon(text: string): string[] {
  try {
    return daemonConfig.parse(JSON.parse(text)).dns ?? [];
  } catch {
    // No such file, or one that the Engine would not start with.
    return [];
  }
}
