/**
 * Which agents are of one host. Pure. Whoever wrote the folders knew, and nothing in them says it outright, so the grouping is shown to
 * people, who can overrule it with `--host NAME=GLOB`.
 */
import { posix } from 'node:path';
import { glob } from '../glob.ts';
import { type Agent, byNumber } from './agent.ts';
import { claimsOf } from './devices.ts';

export interface HostRule {
  readonly name: string;
  readonly glob: string;
}

export interface Host {
  readonly name: string;
  readonly agents: readonly Agent[];
  /** Why these, as the end of "… agents: …". */
  readonly because: string;
}

/** In the order of their names; agents in the order of theirs. */
export function groupHosts(agents: readonly Agent[], rules: readonly HostRule[] = []): Host[] {
  const chosen = rules.map(({ name, glob }) => ({ name, glob, isMatch: matcher(glob) }));
  const fixed = new Map<string, { agents: Agent[]; globs: Set<string> }>();
  const open: Agent[] = [];
  for (const agent of agents) {
    const rule = chosen.find(({ isMatch }) => isMatch(agent));
    if (rule === undefined) open.push(agent);
    else {
      const entry = fixed.get(rule.name) ?? { agents: [], globs: new Set() };
      entry.agents.push(agent);
      entry.globs.add(rule.glob);
      fixed.set(rule.name, entry);
    }
  }
  const hosts: Host[] = [...fixed].map(([name, { agents: of, globs }]) => ({
    name,
    agents: of,
    because: `--host ${name}=${[...globs].join(' ')}`,
  }));
  for (const [name, of] of byFolder(open)) hosts.push(...split(name, of));
  return named(hosts)
    .map((host) => ({
      ...host,
      agents: host.agents.toSorted((one, other) => byNumber(one.name, other.name) || byNumber(one.file, other.file)),
    }))
    .sort((one, other) => byNumber(one.name, other.name));
}

function matcher(pattern: string): (agent: Agent) => boolean {
  const isMatch = glob(pattern);
  return ({ folder, name, hostname }) => [folder, posix.basename(folder), name, hostname ?? name].some((text) => isMatch(text));
}

/** Folders that only hold what is in them. */
const containers = new Set(
  'agents agent hosts host machines nodes runners fleet buildkite ci compose docker services . deploy infra'.split(' '),
);

/** `gpuci.7` and `gpuci-7` are of `gpuci`; `gpuci1` is a host of its own. */
function prefixOf(name: string): string {
  const prefix = name.replace(/[._-]+\d+$/, '');
  return prefix === '' ? name : prefix;
}

function byFolder(agents: readonly Agent[]): Map<string, Agent[]> {
  const perFile = new Map<string, number>();
  for (const { file } of agents) perFile.set(file, (perFile.get(file) ?? 0) + 1);
  const names = new Map<string, Agent[]>();
  const put = (name: string, agent: Agent) => names.set(name, [...(names.get(name) ?? []), agent]);
  const shared = new Map<string, number>();
  for (const { hostname, name } of agents)
    if (hostname !== null && hostname !== name) shared.set(hostname, (shared.get(hostname) ?? 0) + 1);
  const isAlone = ({ file }: Agent) => perFile.get(file) === 1;
  const single = new Set(agents.filter(isAlone).map(({ folder }) => prefixOf(posix.basename(folder))));
  for (const agent of agents) {
    const { folder, hostname, name } = agent;
    const parts = folder.split('/').filter((part) => !containers.has(part.toLowerCase()));
    const leaf = parts.at(-1);
    if (hostname !== null && hostname !== name && (shared.get(hostname) ?? 0) > 1) put(hostname, agent);
    else if (!isAlone(agent)) {
      // Several agents of one file start on one host, so its folder is that host's, unless it is one of many of them.
      if (leaf === undefined) put(prefixOf(hostname ?? name), agent);
      else put(single.has(prefixOf(leaf)) ? prefixOf(leaf) : parts.join('.'), agent);
    } else if (parts.length > 1) put(parts.slice(0, -1).join('.'), agent);
    else put(prefixOf(leaf ?? name), agent);
  }
  return together(names);
}

/**
 * `gpu0`, `gpu1`, … without a separator: one host when each agent names devices of its own and no two the same, which nobody does who
 * has a host for each agent.
 */
function together(names: ReadonlyMap<string, Agent[]>): Map<string, Agent[]> {
  const stems = new Map<string, string[]>();
  for (const name of names.keys()) {
    const stem = name.replace(/\d+$/, '');
    if (stem !== name && stem !== '') stems.set(stem, [...(stems.get(stem) ?? []), name]);
  }
  const result = new Map(names);
  for (const [stem, members] of stems) {
    const agents = members.flatMap((name) => names.get(name) ?? []);
    const claims = agents.map(({ devices }) => claimsOf(devices));
    const all = claims.flat();
    const isOne =
      members.length > 1 &&
      !names.has(stem) &&
      !members.some((name) => (names.get(name)?.length ?? 0) > 1) &&
      claims.every((one) => one.length > 0) &&
      agents.every(({ devices }) => devices.by === 'uuid' || devices.by === 'index') &&
      new Set(all).size === all.length;
    if (!isOne) continue;
    for (const name of members) result.delete(name);
    result.set(stem.replace(/[._-]+$/, '') || stem, agents);
  }
  return result;
}

/** Two agents that name the same device under different host names are not of one host. */
function split(name: string, agents: readonly Agent[]): Host[] {
  const parts: Agent[][] = [];
  for (const agent of agents) {
    const part = parts.find((of) => !of.some((other) => areApart(agent, other)));
    if (part === undefined) parts.push([agent]);
    else part.push(agent);
  }
  if (parts.length === 1) return [{ name, agents, because: becauseOf(name, agents) }];
  return parts.map((of, at) => {
    const hostname = of.find((agent) => agent.hostname !== null)?.hostname ?? `${name}-${at + 1}`;
    const taken = [...new Set(of.flatMap(({ devices }) => claimsOf(devices)))].find((claim) =>
      parts.some((other) => other !== of && other.some(({ devices }) => claimsOf(devices).includes(claim))),
    );
    return {
      name: hostname,
      agents: of,
      because: `host name ${hostname}, since others of ${name} have ${taken ?? 'the same device'} too`,
    };
  });
}

function becauseOf(name: string, agents: readonly Agent[]): string {
  const [first] = agents;
  if (agents.length === 1 && first !== undefined) return `from ${first.folder}`;
  if (agents.every(({ file }) => file === first?.file)) return `all of ${first?.file}`;
  return agents.every(({ folder }) => folder.split('/').slice(0, -1).includes(name))
    ? `what is below ${name}`
    : `what begins with ${name}`;
}

function areApart(one: Agent, other: Agent): boolean {
  if (one.hostname === null || other.hostname === null || one.hostname === other.hostname || one.file === other.file) return false;
  const theirs = new Set(claimsOf(other.devices));
  const same = claimsOf(one.devices).filter((claim) => theirs.has(claim));
  // A UUID is of one card in the world; a number is of one on each host. So fixed names that only count agents do not speak against it.
  const isOneHost = prefixOf(one.hostname) === prefixOf(other.hostname);
  return same.length > 0 && !(isOneHost && one.devices.by === 'uuid');
}

/** Names of files: no two alike, whatever the case. */
function named(hosts: readonly Host[]): Host[] {
  const taken = new Set<string>();
  return hosts.map((host) => {
    const plain =
      host.name
        .replaceAll(/[^A-Za-z0-9_.-]+/g, '-')
        .replace(/^[-.]+/, '')
        .slice(0, 100) || 'host';
    let name = plain;
    for (let n = 2; taken.has(name.toLowerCase()); n++) name = `${plain}-${n}`;
    taken.add(name.toLowerCase());
    return { ...host, name };
  });
}
