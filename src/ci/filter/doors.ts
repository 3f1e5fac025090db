/**
 * Where the filter listens: a file that the manager writes, and the filter reads. A file that is missing, or has no address, means that
 * nobody needs the filter. The port stays the same as long as a sandbox may use it, and afterwards too if possible.
 */
import { once } from 'node:events';
import fs from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt, codeOf } from '../../base/errors.ts';
import { type Listen, parseListen, parseNamed } from '../../http/address.ts';
import { writeWhole } from '../../system/files.ts';

const listenConfig = z.object({
  /** Of onejob: a filter of another version hands its listeners over to `program`. */
  version: z.string(),
  /** Program and arguments that start this onejob. */
  program: z.array(z.string()).default([]),
  port: z.int().min(1).max(65_535),
  /** With a port of its own where the config says one, such as `10.0.0.1:7443`, or `onejob:7443`: a name that leads to this host. */
  addresses: z.array(z.string()),
  /** Those of them at which sandboxes on other hosts call: with TLS. */
  secure: z.array(z.string()).default([]),
});
export type ListenConfig = Readonly<z.output<typeof listenConfig>>;

/** Where an address of the file is. */
export function placeOf(address: string, { port }: Pick<ListenConfig, 'port'>): Listen {
  return parseListen(address) ?? parseNamed(address) ?? { host: address, port };
}

/** null: the file is missing or invalid. */
export function readListenConfig(dir: string): ListenConfig | null {
  return attempt(() => listenConfig.parse(JSON.parse(fs.readFileSync(join(dir, 'doors.json'), 'utf8'))));
}

/**
 * The file is never incomplete, and on disk once this returns: sandboxes on other hosts outlive a power cut of this one, and call the
 * port that they were told. @throws errors of the file system
 */
export function writeListenConfig(dir: string, value: ListenConfig): void {
  writeWhole(join(dir, 'doors.json'), JSON.stringify(value), { over: true, mode: 0o600 });
}

/** Ends the filter, because nobody needs one. */
export function endFilter(stateDir: string): void {
  const dir = join(stateDir, 'filter');
  const now = readListenConfig(dir);
  if (now !== null && now.addresses.length > 0) writeListenConfig(dir, { ...now, addresses: [], secure: [] });
}

/** What decides about ports. The defaults are this host's; tests give others. */
export interface PortParts {
  /** The first port that every user may take. */
  readonly unprivileged?: number;
  /** Ports that programs of this host are known for. */
  readonly services?: ReadonlySet<number>;
}

/**
 * Privileged ports that the filter may have. Outside of it are those of the oldest services, and those to which `fetch` connects never.
 */
const [lowest, highest] = [640, 988];

/**
 * The port for a filter that nobody uses yet: `kept`, if it is still free and as safe as a new one would be. Under root one that only
 * root may take, so that no other user can have it at an address where the filter does not listen. Else any that is free now.
 */
export async function choosePort(
  kept: number | null,
  { unprivileged = unprivilegedFrom(), services = knownServices() }: PortParts = {},
): Promise<number> {
  const privileged = Array.from({ length: Math.max(0, Math.min(highest + 1, unprivileged) - lowest) }, (_, at) => lowest + at);
  const safe = privileged.filter((port) => !services.has(port)).map((port) => ({ port, at: Math.random() }));
  const inTurn = safe.toSorted((a, b) => a.at - b.at).map(({ port }) => port);
  const isKeptSafe = kept !== null && kept < unprivileged;
  for (const port of isKeptSafe ? [kept, ...inTurn] : inTurn) {
    const free = await isFree(port);
    if (free === true) return port;
    if (free === 'denied') break;
  }
  if (kept !== null && (await isFree(kept)) === true) return kept;
  return freePort(0);
}

async function isFree(port: number): Promise<boolean | 'denied'> {
  try {
    await freePort(port);
    return true;
  } catch (error) {
    return ['EACCES', 'EPERM'].includes(codeOf(error)) ? 'denied' : false;
  }
}

/** At every address, so that no listener has it at any. @throws errors of the system */
async function freePort(port: number): Promise<number> {
  await using server = createServer().listen(port, '0.0.0.0');
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

function unprivilegedFrom(): number {
  return Number(attempt(() => fs.readFileSync('/proc/sys/net/ipv4/ip_unprivileged_port_start', 'utf8')) ?? 1024);
}

function knownServices(): ReadonlySet<number> {
  const text = attempt(() => fs.readFileSync('/etc/services', 'utf8')) ?? '';
  return new Set([...text.matchAll(/^[^#\s]+\s+(\d+)\/tcp/gm)].map(([, port]) => Number(port)));
}
