/**
 * From a folder of Compose files to one config per host. What comes out is held against the rules of the config at once, as `config check`
 * would: what they would refuse is said here already.
 */

import type { Environment } from '../config/environment.ts';
import type { Agent, Remark } from './agent.ts';
import { claimsOf } from './devices.ts';
import { inOrder, readFleet } from './fleet.ts';
import { hostConfig } from './host-config.ts';
import { groupHosts, type Host, type HostRule } from './hosts.ts';
import { repaired } from './repair.ts';

export interface ImportedAgent {
  readonly name: string;
  readonly file: string;
  readonly line: number;
  readonly pool: string;
  /** Devices as its Compose file named them: UUIDs, or words for what has none. */
  readonly devices: readonly string[];
}

export interface ImportedHost {
  readonly name: string;
  readonly because: string;
  readonly agents: readonly ImportedAgent[];
  /** The whole file. */
  readonly config: string;
}

export interface Imported {
  /** Compose files that were found. */
  readonly files: number;
  readonly hosts: readonly ImportedHost[];
  readonly remarks: readonly Remark[];
}

/** `root`: absolute path of the folder. Never throws for what is in it. */
export async function importCompose(root: string, rules: readonly HostRule[], env: Environment): Promise<Imported> {
  const fleet = readFleet(root);
  const remarks = [...fleet.remarks];
  const hosts: ImportedHost[] = [];
  for (const host of groupHosts(fleet.agents, rules)) {
    const values = hostConfig(host, (one) => remarks.push(one));
    const { text: config, refused } = await repaired(values, headOf(host), env);
    const agents = values.pools.flatMap(({ name: pool, agents: of }) =>
      of.map((agent) => ({ name: agent.name, file: agent.file, line: agent.line, pool, devices: shown(agent) })),
    );
    hosts.push({ name: host.name, because: host.because, agents, config });
    for (const { pool, message } of refused) {
      const first = agents.find((agent) => agent.pool === pool);
      remarks.push({ file: first?.file ?? `${host.name}.yml`, line: first?.line ?? null, level: 'warning', message });
    }
  }
  remarks.push(...sameNames(hosts), ...idle(rules, hosts));
  return { files: fleet.files, hosts, remarks: inOrder(remarks) };
}

function shown({ devices }: Agent): readonly string[] {
  if (devices.by === 'uuid') return devices.uuids;
  return devices.by === 'count' ? [`${devices.count} of ${devices.vendor}`] : claimsOf(devices);
}

function headOf({ name, agents }: Host): string[] {
  const count = agents.length === 1 ? 'one agent' : `${agents.length} agents`;
  const tokens = [...new Set(agents.flatMap(({ tokenFile }) => tokenFile ?? []))];
  const old = tokens.length === 0 ? 'where it is now' : tokens.join(', ');
  const hasFolders = agents.some(
    ({ keys: { caches } }) => Array.isArray(caches) && caches.some((line) => String(line).startsWith('/')),
  );
  const keys = agents.some(({ hasSecretsKey }) => hasSecretsKey);
  return [
    `${name}: ${count}, from Compose files by "onejob import compose".`,
    ...sharedHeading(agents),
    `Before "onejob up": put the token, alone, into the file below (mode 600), and remove it from ${old}.`,
    ...(hasFolders
      ? [`Make the folders of "caches" that are not there yet (mkdir -p): onejob makes only those that have a name.`]
      : []),
    ...(keys ? ['Put the private key for encrypted variables beside it (mode 600), and remove it from the image.'] : []),
  ];
}

/** What people wrote above the services, where most agents of the host say the same. */
function sharedHeading(agents: readonly Agent[]): string[] {
  const count = new Map<string, number>();
  for (const { heading } of agents) if (heading !== null) count.set(heading, (count.get(heading) ?? 0) + 1);
  const [best] = [...count].toSorted(([, one], [, other]) => other - one);
  return best === undefined || best[1] * 2 <= agents.length ? [] : best[0].split('\n').slice(0, 8);
}

/** A service that sees one name on two hosts cannot tell its agents apart. */
function sameNames(hosts: readonly ImportedHost[]): Remark[] {
  const taken = new Map<string, string>();
  return hosts.flatMap(({ name: host, agents }) =>
    agents.flatMap(({ name, file, line }): Remark[] => {
      const other = taken.get(name);
      taken.set(name, host);
      if (other === undefined || other === host) return [];
      return [
        {
          file,
          line,
          level: 'warning',
          message: `the name ${name} is that of an agent of ${other} too: the service shows both as one`,
        },
      ];
    }),
  );
}

function idle(rules: readonly HostRule[], hosts: readonly ImportedHost[]): Remark[] {
  return rules
    .filter(
      ({ name, glob }) =>
        !hosts.some(
          (host) => host.because.startsWith('--host ') && host.because.includes(`${name}=`) && host.because.includes(glob),
        ),
    )
    .map(({ name, glob }) => ({ file: '--host', line: null, level: 'warning', message: `${name}=${glob} fits no agent` }));
}
