/** Groups agents by host. Pure. It is a guess from names and devices, which people see and can override with `--host NAME=GLOB`. */
import { posix } from 'node:path';
import { glob } from '../../src/base/glob.ts';
import type { HostRule } from '../../src/cli/compose-import.ts';
import { byNumber, unusedName } from './agent.ts';
import { claimsOf } from './devices.ts';
import type { Agent } from './service.ts';

export interface ComposeHost {
  readonly name: string;
  readonly agents: readonly Agent[];
  /** Why these, as the end of "… agents: …". */
  readonly because: string;
}

/** Hosts and their agents in the order of their names. `idle`: rules that match no agent. */
export function groupHosts(agents: readonly Agent[], rules: readonly HostRule[]): { hosts: ComposeHost[]; idle: HostRule[] } {
  const chosen = rules.map((rule) => ({ ...rule, isMatch: glob(rule.glob) }));
  const ruled = Map.groupBy(agents, ({ file, name, hostname }) => {
    const folder = posix.dirname(file);
    const texts = [folder, posix.basename(folder), name, hostname ?? name];
    return chosen.find(({ isMatch }) => texts.some((text) => isMatch(text)));
  });
  const used = [...ruled.keys()].filter((rule) => rule !== undefined);
  const hosts = [...Map.groupBy(used, ({ name }) => name)].map(([name, of]): ComposeHost => {
    const globs = new Set(of.map((rule) => rule.glob));
    return { name, agents: of.flatMap((rule) => ruled.get(rule) ?? []), because: `--host ${name}=${[...globs].join(' ')}` };
  });
  for (const [name, of] of byFolder(ruled.get(undefined) ?? [])) hosts.push(...split(name, of));
  const sorted = named(hosts).map((host) => ({
    ...host,
    agents: host.agents.toSorted((one, other) => byNumber(one.name, other.name) || byNumber(one.file, other.file)),
  }));
  return {
    hosts: sorted.sort((one, other) => byNumber(one.name, other.name)),
    idle: rules.filter((rule) => !used.some((one) => one.name === rule.name && one.glob === rule.glob)),
  };
}

/** Names of folders that say nothing about a host. */
const containers = new Set(
  'agents agent hosts host machines nodes runners fleet buildkite ci compose docker services . deploy infra'.split(' '),
);

/** Parts of its path. */
const folderOf = ({ file }: Agent) => posix.dirname(file).split('/');

/** `gpuci.7` and `gpuci-7` belong to `gpuci`; `gpuci1` is a separate host. */
function prefixOf(name: string): string {
  return name.replace(/[._-]+\d+$/, '') || name;
}

/** What the names of agents begin with, in whole words; without that, the prefix of the first. */
function commonOf(agents: readonly Agent[]): string {
  const [first = '', ...others] = agents.map(({ hostname, name }) => prefixOf(hostname ?? name)).sort(byNumber);
  const words = first.split(/(?<=[._-])/);
  const isShared = (prefix: string) => others.every((name) => name === prefix || name.startsWith(prefix));
  const most = words.map((_, at) => words.slice(0, at + 1).join('')).findLast(isShared) ?? first;
  return most.replace(/[._-]+$/, '') || first;
}

function byFolder(agents: readonly Agent[]): Map<string, Agent[]> {
  const perFile = Map.groupBy(agents, ({ file }) => file);
  const isAlone = ({ file }: Agent) => perFile.get(file)?.length === 1;
  const single = new Set(agents.filter(isAlone).map((agent) => prefixOf(folderOf(agent).at(-1) ?? '')));
  const own = ({ hostname, name }: Agent) => (hostname === name ? null : hostname);
  const perHostname = Map.groupBy(agents, own);
  const names = Map.groupBy(agents, (agent) => {
    const hostname = own(agent);
    const parts = folderOf(agent).filter((part) => !containers.has(part.toLowerCase()));
    const leaf = parts.at(-1);
    if (hostname !== null && (perHostname.get(hostname)?.length ?? 0) > 1) return hostname;
    if (isAlone(agent)) return parts.length > 1 ? parts.slice(0, -1).join('.') : prefixOf(leaf ?? agent.name);
    // Several agents of one file run on one host, so its folder belongs to that host, unless the host has many folders.
    if (leaf === undefined) return commonOf(perFile.get(agent.file) ?? [agent]);
    return single.has(prefixOf(leaf)) ? prefixOf(leaf) : parts.join('.');
  });
  // `gpu0`, `gpu1`, … are one host if each agent names different devices: with one host per agent nobody does that.
  for (const [stem, members] of Map.groupBy([...names], ([name]) => name.replace(/\d+$/, ''))) {
    const of = members.flatMap(([, few]) => few);
    const claims = of.flatMap(({ devices }) => claimsOf(devices));
    const isOne =
      stem !== '' &&
      members.length > 1 &&
      members.every(([name, few]) => name !== stem && few.length === 1) &&
      of.every(({ devices: { by } }) => by === 'uuid' || by === 'index') &&
      new Set(claims).size === claims.length;
    if (!isOne) continue;
    for (const [name] of members) names.delete(name);
    names.set(stem.replace(/[._-]+$/, '') || stem, of);
  }
  return names;
}

/** Two agents that name the same device under different host names run on different hosts. */
function split(name: string, agents: readonly Agent[]): ComposeHost[] {
  const parts: Agent[][] = [];
  for (const agent of agents) {
    const part = parts.find((of) => !of.some((other) => areApart(agent, other)));
    if (part === undefined) parts.push([agent]);
    else part.push(agent);
  }
  if (parts.length === 1) return [{ name, agents, because: becauseOf(name, agents) }];
  const claims = parts.map((of) => new Set(of.flatMap(({ devices }) => claimsOf(devices))));
  return parts.map((of, at) => {
    const hostname = of.find((agent) => agent.hostname !== null)?.hostname ?? `${name}-${at + 1}`;
    const taken = [...(claims[at] ?? [])].find((claim) => claims.some((other, place) => place !== at && other.has(claim)));
    return {
      name: hostname,
      agents: of,
      because: `host name ${hostname}, since others of ${name} have ${taken ?? 'the same device'} too`,
    };
  });
}

function becauseOf(name: string, agents: readonly Agent[]): string {
  const { file = '' } = agents[0] ?? {};
  if (agents.length === 1) return `from ${posix.dirname(file)}`;
  if (agents.every((agent) => agent.file === file)) return `all of ${file}`;
  const isBelow = agents.every((agent) => folderOf(agent).slice(0, -1).includes(name));
  return isBelow ? `what is below ${name}` : `what begins with ${name}`;
}

function areApart(one: Agent, other: Agent): boolean {
  if (one.hostname === null || other.hostname === null || one.hostname === other.hostname || one.file === other.file) return false;
  // A UUID is unique in the world, a number only on its host. So host names that only count agents do not matter then.
  if (prefixOf(one.hostname) === prefixOf(other.hostname) && one.devices.by === 'uuid') return false;
  return !new Set(claimsOf(one.devices)).isDisjointFrom(new Set(claimsOf(other.devices)));
}

/** Hosts with names for files, unique in any case. */
function named(hosts: readonly ComposeHost[]): ComposeHost[] {
  const taken = new Set<string>();
  return hosts.map((host) => {
    const letters = host.name.replaceAll(/[^A-Za-z0-9_.-]+/g, '-').replace(/^[-.]+/, '');
    const name = unusedName(letters.slice(0, 100) || 'host', (one) => taken.has(one.toLowerCase()));
    taken.add(name.toLowerCase());
    return { ...host, name };
  });
}
