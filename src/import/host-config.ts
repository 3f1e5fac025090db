/** The agents of one host as the values of its config: pools, what they share as defaults, services. Pure. */
import { buildkite } from '../ci/buildkite/type.ts';
import type { Agent, PlainMap, Remark } from './agent.ts';
import { claimsOf, devicesKey } from './devices.ts';
import type { Host } from './hosts.ts';
import { isMap } from './plain.ts';
import { poolNames } from './pool-names.ts';
import { type Run, runsOf, slotNamesOf } from './runs.ts';
import { serviceNames } from './service-names.ts';
import { share } from './share.ts';

export interface HostConfig {
  readonly services: Readonly<Record<string, PlainMap>>;
  readonly secretsKey: string | null;
  /** Empty for a host of one pool. */
  readonly defaults: PlainMap;
  /** In the order of the file. */
  readonly pools: readonly { readonly name: string; readonly keys: PlainMap; readonly agents: readonly Agent[] }[];
}

/** Where files of a host stand once it is led by onejob. */
const secretsKeyFile = '/etc/onejob/secrets.private.key';

export function hostConfig(host: Host, remark: (remark: Remark) => void): HostConfig {
  const unique = uniqueNames(host, remark);
  const apart = claimedTwice(host.name, unique, remark);
  const runs = runsOf(unique, (agent) => apart.has(agent));
  const firsts = runs.flatMap(({ agents }) => agents[0] ?? []);
  const names = poolNames(firsts);
  const services = serviceNames(firsts);
  const pools = runs.map((run, at) => ({
    name: names[at] ?? `pool-${at + 1}`,
    agents: run.agents,
    keys: poolKeys(
      run,
      services.of.get(firsts[at] as Agent) ?? buildkite.type,
      run.agents.some((agent) => apart.has(agent)),
    ),
  }));
  for (const { agents } of pools) sayDevices(agents, remark);
  sayTrust(unique, remark);
  const shared = share(pools.map(({ keys }) => keys));
  return {
    services: services.services,
    secretsKey: unique.some(({ hasSecretsKey }) => hasSecretsKey) ? secretsKeyFile : null,
    defaults: shared.defaults,
    pools: pools.map((pool, at) => ({ ...pool, keys: shared.pools[at] ?? pool.keys })),
  };
}

function poolKeys({ agents, name, slots }: Run, service: string, isOff: boolean): PlainMap {
  const [first] = agents;
  if (first === undefined) return {};
  const devices = sharedBy(first, devicesKey(first.devices));
  const uuid = agents.flatMap(({ devices: { uuids } }) => uuids);
  return {
    name,
    service,
    agents: isOff ? 0 : slots,
    devices: isMap(devices) && uuid.length > 0 ? { ...(devices as PlainMap), uuid } : devices,
    ...first.keys,
    trust: { forks: 'run-without-secrets' },
  };
}

/** Whoever comes from hooks that opened secrets in all builds of the pipeline's own repository must hear what is otherwise. */
function sayTrust(agents: readonly Agent[], remark: (remark: Remark) => void): void {
  const [first] = agents;
  if (first === undefined) return;
  const note = (agent: Agent, message: string): void => remark({ ...at(agent), level: 'note', message });
  const how = 'run without secrets; "trust.tags" and "trust.triggered: trust" name those that are to have them';
  note(first, `builds of tags, and builds that another build triggered, ${how}`);
  note(first, 'jobs of forks, and others without secrets, have "network: internet": neither this host nor private networks');
  const cached = agents.find(({ keys: { caches } }) => caches !== undefined);
  if (cached === undefined) return;
  const named =
    '"trust: { caches: private }" gives them folders of their own for caches with a name, as "depot:/root/.julia" has one';
  note(cached, `jobs without secrets have no "caches": ${named}`);
}

/** Copies of one agent had the same devices, all at the same time. */
function sharedBy({ times, devices: { by } }: Agent, devices: ReturnType<typeof devicesKey>): ReturnType<typeof devicesKey> {
  return times > 1 && devices !== 0 && (by === 'uuid' || by === 'index') ? { ...devices, share: times } : devices;
}

function at({ file, line }: Agent): Pick<Remark, 'file' | 'line'> {
  return { file, line };
}

/** The config needs a name for each slot; a CI service shows two of one name as one that flickers. */
function uniqueNames({ agents }: Host, remark: (remark: Remark) => void): Agent[] {
  const taken = new Map<string, Agent>();
  return agents.map((agent) => {
    const other = slotNamesOf(agent).flatMap((name) => taken.get(name) ?? [])[0];
    let unique = agent;
    for (let n = 2; slotNamesOf(unique).some((name) => taken.has(name)); n++)
      unique = { ...agent, name: `${agent.name.slice(0, 54)}-${n}` };
    for (const name of slotNamesOf(unique)) taken.set(name, unique);
    if (other !== undefined) {
      const message = `the name ${agent.name} is that of ${other.file}:${other.line} too: this one becomes ${unique.name}`;
      remark({ ...at(agent), level: 'warning', message });
    }
    return unique;
  });
}

/** Agents whose device another of the host has already: they are written down, and not started. */
function claimedTwice(host: string, agents: readonly Agent[], remark: (remark: Remark) => void): ReadonlySet<Agent> {
  const apart = new Set<Agent>();
  const holders: Agent[] = [];
  for (const agent of agents) {
    const other = holders.find((holder) => overlap(holder, agent) !== null);
    if (other === undefined) {
      holders.push(agent);
      continue;
    }
    apart.add(agent);
    const what = `${overlap(other, agent)} of host ${host} is claimed twice, here and by ${other.name} (${other.file}:${other.line})`;
    remark({ ...at(agent), level: 'warning', message: `${what}: ${agent.name} gets "agents: 0" until you give it another device` });
  }
  return apart;
}

function overlap({ devices: one }: Agent, { devices: other }: Agent): string | null {
  const theirs = new Set(claimsOf(other));
  const same = claimsOf(one).find((claim) => theirs.has(claim));
  if (same !== undefined) return [...one.uuids, ...one.indexes].find((name) => name.toLowerCase() === same) ?? same;
  if (one.vendor !== other.vendor || one.by === 'none' || other.by === 'none') return null;
  return one.by === 'all' || other.by === 'all' ? `a GPU of ${one.vendor}` : null;
}

function sayDevices(agents: readonly Agent[], remark: (remark: Remark) => void): void {
  for (const agent of agents) {
    const { by, uuids, indexes, vendor, count } = agent.devices;
    if (by === 'index') {
      const message = `GPU ${indexes.join(', ')} is a number, which may mean another card after a boot: the config asks for any ${count === 1 ? 'one' : count} of ${vendor}; "onejob gpus" lists UUIDs for "uuid"`;
      remark({ ...at(agent), level: 'note', message });
    }
    if (uuids.length > 1 && uuids.some((uuid) => /^MIG-/i.test(uuid)))
      remark({ ...at(agent), level: 'warning', message: 'it names several MIG instances, and a process can use one of them only' });
  }
}
