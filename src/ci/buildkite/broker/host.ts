/** What an agent says of the host it is on, in the service's words. */
import { createHmac } from 'node:crypto';

const arches: Readonly<Record<string, string>> = { x64: 'amd64', ia32: '386' };

/** As Go names it. @param arch as Node names it */
export function agentArch(arch: string): string {
  return arches[arch] ?? arch;
}

/**
 * The same for every agent of this host, and not the host's own id: that is a secret of its kind (machine-id(5)). Empty where
 * the host has none.
 */
export function machineId(read: (path: string) => string): string {
  for (const path of ['/etc/machine-id', '/var/lib/dbus/machine-id']) {
    try {
      const id = read(path).trim();
      if (id !== '') return createHmac('sha256', id).update('buildkite-agent').digest('hex');
    } catch {
      // Containers and small systems have none.
    }
  }
  return '';
}
