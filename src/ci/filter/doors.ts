/**
 * Where the filter listens: one port on the addresses at which sandboxes of untrusted jobs call in. A file says it, which the manager
 * writes and the filter reads; no file means that nobody needs it.
 */
import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import type http from 'node:http';
import { join } from 'node:path';
import { z } from 'zod';
import { type Clock, sleep } from '../../core/clock.ts';
import type { Log } from '../../log.ts';

const doors = z.object({
  /** Of onejob: a filter of another one ends. */
  version: z.string(),
  port: z.int().min(1).max(65_535),
  addresses: z.array(z.string()),
});
export type Doors = Readonly<z.infer<typeof doors>>;

/** null: there is none, or it cannot be read. */
export function readDoors(dir: string): Doors | null {
  try {
    return doors.parse(JSON.parse(readFileSync(join(dir, 'doors.json'), 'utf8')));
  } catch {
    return null;
  }
}

/** A file is whole or not there, whoever is killed meanwhile. @throws what the disk says */
export function writeDoors(dir: string, value: Doors | null): void {
  const path = join(dir, 'doors.json');
  if (value === null) {
    rmSync(path, { force: true });
    return;
  }
  writeFileSync(`${path}.new`, JSON.stringify(value), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

/** ms between two looks at the file, and at addresses that this host does not have yet. */
const lookAgain = 500;

/**
 * Listens as the file says, until it says nothing any more, or is another version's; then resolves. It also does where every port is
 * another program's: that is mostly a filter, and the manager starts this one again where it is none.
 */
export async function keepDoors(
  dir: string,
  parts: {
    readonly version: string;
    readonly server: () => http.Server;
    readonly clock: Clock;
    readonly log: Log;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { version, clock, log, signal } = parts;
  const open = new Map<string, http.Server>();
  const said = new Set<string>();
  const taken = new Set<string>();

  function listen(address: string, port: number): void {
    const server = parts.server();
    open.set(address, server);
    server.on('error', (error: NodeJS.ErrnoException) => {
      open.delete(address);
      if (error.code === 'EADDRINUSE') taken.add(address);
      if (!said.has(address)) log.warn('filter does not listen yet', { address, port, reason: error.message });
      said.add(address);
    });
    server.listen({ host: address, port, exclusive: true });
  }

  for (let now = readDoors(dir); now !== null && now.version === version && !signal.aborted; now = readDoors(dir)) {
    if (now.addresses.length > 0 && now.addresses.every((address) => taken.has(address))) return;
    for (const address of now.addresses) if (!open.has(address)) listen(address, now.port);
    await sleep(clock, lookAgain, signal);
  }
}
