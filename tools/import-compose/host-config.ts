/** The config of one host, from its agents: pools, shared defaults, services. And its text, which is laid out for people. */
import { posix } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { parse } from 'yaml';
import { type DeviceClaim, isPlainMap, nameFrom, type Plain, type PlainMap, type Remark, unusedName } from './agent.ts';
import { claimsOf } from './devices.ts';
import type { ComposeHost } from './hosts.ts';
import type { Agent } from './service.ts';

/** The type of its services, and the usual name of one. */
const buildkite = 'buildkite';

export interface ComposePool {
  readonly name: string;
  readonly keys: PlainMap;
  /** In the order of its slots. */
  readonly agents: readonly Agent[];
}

export interface HostConfig {
  readonly services: Readonly<Record<string, PlainMap>>;
  readonly secretsKey: string | null;
  readonly defaults: PlainMap;
  /** In the order of the file. */
  readonly pools: readonly ComposePool[];
}

type Say = (level: Remark['level'], agent: Agent, message: string) => void;

/** Without defaults: each pool has all of its keys. */
export function hostConfig(host: ComposeHost, say: Say): HostConfig {
  const agents = uniqueNames(host.agents, say);
  const apart = claimedTwice(host.name, agents, say);
  const runs = runsOf(agents, apart);
  const { services, serviceOf } = servicesOf(agents);
  const taken = new Set<string>();
  const pools = runs.map(({ first, agents: of, counts: [count] }): ComposePool => {
    const copies = first.times > 1 ? `${stemOf(first.name)}-{1..}` : first.name;
    const template = of.length > 1 && count !== undefined ? `${count[0]}{${count[1]}..}${count[2]}` : copies;
    const words = poolWords(first);
    const name = words.find((word) => !taken.has(word)) ?? unusedName(words[0] ?? 'pool', (word) => taken.has(word), 28);
    taken.add(name);
    const devices = devicesKey(first);
    const uuid = of.flatMap((agent) => (agent.devices.by === 'uuid' ? agent.devices.names : []));
    const keys = {
      name: template,
      service: serviceOf(first),
      agents: apart.has(first) ? 0 : of.length * first.times,
      devices: isPlainMap(devices) && uuid.length > 0 ? { ...devices, uuid } : devices,
      ...first.keys,
      trust: { forks: 'run-without-secrets' },
    };
    return { name, keys, agents: of };
  });
  for (const agent of agents) sayDevices(agent, say);
  sayTrust(agents, say);
  const secretsKey = agents.some(({ hasSecretsKey }) => hasSecretsKey) ? '/etc/onejob/secrets.private.key' : null;
  return { services, secretsKey, defaults: {}, pools };
}

/** Each slot needs a unique name: a CI service shows two agents of one name as one that flickers. */
function uniqueNames(agents: readonly Agent[], say: Say): Agent[] {
  const taken = new Map<string, Agent>();
  return agents.map((agent) => {
    const isTaken = (name: string) => slotNamesOf(name, agent.times).some((one) => taken.has(one));
    const other = slotNamesOf(agent.name, agent.times).flatMap((name) => taken.get(name) ?? [])[0];
    const name = unusedName(agent.name, isTaken, 54);
    const unique = { ...agent, name };
    for (const one of slotNamesOf(name, agent.times)) taken.set(one, unique);
    if (other !== undefined)
      say('warning', agent, `${other.file}:${other.line} also has the name ${agent.name}: this one becomes ${name}`);
    return unique;
  });
}

/** The names of an agent's slots: its name, or that of each copy. */
function slotNamesOf(name: string, times: number): string[] {
  return times > 1 ? Array.from({ length: times }, (_, at) => `${stemOf(name)}-${at + 1}`) : [name];
}

/** Leaves room for the number of a copy in a name of 63 characters. */
function stemOf(name: string): string {
  return name.slice(0, 58);
}

/** Agents whose device another agent of the host has: they get `agents: 0`. */
function claimedTwice(host: string, agents: readonly Agent[], say: Say): ReadonlySet<Agent> {
  const apart = new Set<Agent>();
  for (const [at, agent] of agents.entries()) {
    const holders = agents.slice(0, at).filter((other) => !apart.has(other));
    const other = holders.find(({ devices }) => overlap(devices, agent.devices) !== null);
    if (other === undefined) continue;
    apart.add(agent);
    const both = overlap(other.devices, agent.devices);
    const what = `${both} of host ${host} is claimed twice, here and by ${other.name} (${other.file}:${other.line})`;
    say('warning', agent, `${what}: ${agent.name} gets "agents: 0" until you give it another device`);
  }
  return apart;
}

function overlap(one: DeviceClaim, other: DeviceClaim): string | null {
  const same = claimsOf(one).find((claim) => claimsOf(other).includes(claim));
  if (same !== undefined) return one.names.find((name) => name.toLowerCase() === same) ?? same;
  if (one.vendor !== other.vendor || one.by === 'none' || other.by === 'none') return null;
  return one.by === 'all' || other.by === 'all' ? `a GPU of ${one.vendor}` : null;
}

/**
 * Agents by pool: those of a pool differ only by consecutive numbers in their names, and by their devices. `agents`: in the order
 * of their names. `apart`: each gets its own pool.
 */
function runsOf(agents: readonly Agent[], apart: ReadonlySet<Agent>) {
  const isSingle = (agent: Agent) => agent.times > 1 || agent.devices.by === 'all' || apart.has(agent);
  const runs: { first: Agent; agents: Agent[]; counts: ReturnType<typeof countsOf> }[] = [];
  for (const agent of agents) {
    const run = runs.at(-1);
    const isLike =
      run !== undefined && ![run.first, agent].some(isSingle) && isDeepStrictEqual(likeness(run.first), likeness(agent));
    const next = run?.agents.length ?? 0;
    const going = isLike ? run.counts.filter(([before, from, after]) => agent.name === `${before}${from + next}${after}`) : [];
    if (run !== undefined && going.length > 0) {
      run.agents.push(agent);
      run.counts = going;
    } else runs.push({ first: agent, agents: [agent], counts: countsOf(agent.name) });
  }
  return runs;
}

/** What agents of one pool must have in common. */
function likeness(agent: Agent): readonly unknown[] {
  return [agent.keys, devicesKey(agent), agent.devices.by, agent.endpoint, agent.tokenFile];
}

/** Numbers in a name, each with the text before and after it, without leading zeros, which `{1..}` would lose. */
function countsOf(name: string): (readonly [string, number, string])[] {
  return [...name.matchAll(/(0*)(\d+)/g)].flatMap(({ index, 1: zeros = '', 2: digits = '' }) => {
    const at = index + zeros.length;
    return digits.length > 6 ? [] : [[name.slice(0, at), Number(digits), name.slice(at + digits.length)] as const];
  });
}

/** Names for a pool, the best first. */
function poolWords({ keys, devices, name }: Agent): string[] {
  const tags = String(keys.tags ?? '').split(',');
  const flags = tags.flatMap((tag) => /^([^=]+)(=(true|1|yes))?$/.exec(tag)?.[1] ?? []);
  const values = tags.flatMap((tag) => /^[^=]*gpu[^=]*=(.+)$/i.exec(tag)?.[1] ?? []);
  const models = values.filter((value) => !/^(true|1|yes)$/.test(value));
  const words = [...flags, ...(devices.by === 'none' ? [] : models), String(keys.queue ?? ''), ...models, name];
  return words.map((word) => nameFrom(word.replace(/[^A-Za-z0-9]+$/, ''), 32)).filter((word) => word !== '');
}

/** Services of a host: one for each token and address that its agents had. */
function servicesOf(agents: readonly Agent[]) {
  // An agent without a known token file is assumed to use that of the others.
  const usual = agents.find(({ tokenFile }) => tokenFile !== null)?.tokenFile ?? null;
  const keyOf = ({ tokenFile, endpoint }: Agent) => JSON.stringify([tokenFile ?? usual, endpoint]);
  const groups = Map.groupBy(agents, keyOf);
  const services: Record<string, PlainMap> = {};
  const names = new Map<string, string>();
  for (const [key, [first]] of groups) {
    const tokenFile = first?.tokenFile ?? usual;
    const endpoint = first?.endpoint ?? null;
    const own = groups.size === 1 || tokenFile === null ? buildkite : nameOfToken(tokenFile);
    const name = unusedName(own, (one) => one in services);
    names.set(key, name);
    const token = { file: `/etc/onejob/${name}.token` };
    services[name] = { type: buildkite, ...(endpoint === null ? {} : { endpoint }), token };
  }
  return { services, serviceOf: (agent: Agent) => names.get(keyOf(agent)) ?? buildkite };
}

function nameOfToken(file: string): string {
  const base = posix
    .basename(file)
    .replace(/\.(env|txt|token)$/i, '')
    .replace(/^\./, '');
  const isUsual = /^(token|buildkite|agent|env)?$/i.test(base);
  return nameFrom(isUsual ? posix.basename(posix.dirname(file)) : base, 24) || buildkite;
}

/** The key `devices` of a pool, without UUIDs, which come from all of its agents. */
function devicesKey({ times, devices: { by, vendor, count, names, capabilities } }: Agent): Plain {
  if (by === 'none') return 0;
  // As numbers, `0:1` is instance 1 of card 0.
  const isMig = names.length > 0 && names.every((name) => (by === 'uuid' ? /^MIG-/i.test(name) : name.includes(':')));
  return {
    count: by === 'all' ? 'all' : count,
    ...(by === 'uuid' && vendor === 'nvidia' ? {} : { vendor }),
    ...(isMig ? { mig: true } : {}),
    ...(capabilities.length === 0 ? {} : { capabilities }),
    // Copies of one agent shared its devices.
    ...(times > 1 && names.length > 0 ? { share: times } : {}),
  };
}

function sayDevices(agent: Agent, say: Say): void {
  const { by, names, vendor, count } = agent.devices;
  if (by === 'index') {
    const what = `GPU ${names.join(', ')} is a number, which may mean another card after a boot`;
    const any = `the config asks for any ${count === 1 ? 'one' : count} of ${vendor}`;
    say('note', agent, `${what}: ${any}; "onejob gpus" lists UUIDs for "uuid"`);
  }
  if (by === 'uuid' && names.length > 1 && names.some((uuid) => /^MIG-/i.test(uuid)))
    say('warning', agent, 'it names several MIG instances, but a process can use only one');
}

/** Tells what differs from hooks that decrypted secrets in all builds of the pipeline's own repository. */
function sayTrust(agents: readonly Agent[], say: Say): void {
  const [first] = agents;
  if (first === undefined) return;
  const how = 'run without secrets; "trust.tags" and "trust.triggered: trust" name the builds that get secrets';
  say('note', first, `builds of tags, and builds that another build triggered, ${how}`);
  say('note', first, 'jobs of forks, and others without secrets, have "network: internet": neither this host nor private networks');
  const cached = agents.find(({ keys: { caches } }) => caches !== undefined);
  const named = '"trust: { caches: private }" gives them separate folders for caches with a name, as "depot:/root/.julia" has one';
  if (cached !== undefined) say('note', cached, `jobs without secrets have no "caches": ${named}`);
}

/** Values with which a pool overrides a key of `defaults`. Other keys are shared only if all pools have them. */
const nothing: PlainMap = { priority: 0, cpus: 'none', memory: 'none', shm_size: 'none', volumes: [], caches: [], cap_add: [] };

/** Keys that are never shared, since a later pool should not get them unseen. */
const own = new Set(['name', 'agents', 'devices', 'tags', 'unsafe']);

/** Maps that merge key by key. */
const merged = new Set(['env', 'image', 'trust', 'ulimits', 'tmpfs']);

/** Moves what pools have in common into `defaults`; pools that differ override it. */
export function shared(config: HostConfig): HostConfig {
  const { common, rest } = takenOut(config.pools.map(({ keys }) => keys));
  return { ...config, defaults: common, pools: config.pools.map((pool, at) => ({ ...pool, keys: rest[at] ?? pool.keys })) };
}

function takenOut(maps: readonly PlainMap[], isInner = false): { readonly common: PlainMap; readonly rest: PlainMap[] } {
  const common: Record<string, Plain> = {};
  const rest = maps.map((map): Record<string, Plain> => ({ ...map }));
  for (const key of new Set(maps.flatMap((map) => Object.keys(map)))) {
    const values = maps.map((map) => map[key]);
    if (isInner || !merged.has(key)) {
      const absent = isInner ? undefined : nothing[key];
      const value = isInner || !own.has(key) ? usual(values, absent) : undefined;
      if (value === undefined) continue;
      common[key] = value;
      for (const map of rest) {
        if (isDeepStrictEqual(map[key], value)) delete map[key];
        else map[key] ??= absent ?? 0;
      }
    } else if (!values.includes(undefined)) {
      // Only if all pools have the key: others would get the whole map.
      const inners = values.filter((value) => isPlainMap(value));
      const inner = takenOut(inners, true);
      if (Object.keys(inner.common).length > 0) common[key] = inner.common;
      for (const map of rest) {
        if (!isPlainMap(map[key])) continue;
        map[key] = inner.rest.shift() ?? {};
        if (Object.keys(map[key]).length === 0) delete map[key];
      }
    }
  }
  return { common, rest };
}

/** The most frequent value, if at least two have it and the others can override it; else undefined. */
function usual(values: readonly (Plain | undefined)[], otherwise: Plain | undefined): Plain | undefined {
  const there = values.filter((value) => value !== undefined);
  const lacking = values.length - there.length;
  if (lacking > 0 && otherwise === undefined) return undefined;
  const counts = there.map((value) => there.filter((other) => isDeepStrictEqual(value, other)).length);
  const most = Math.max(...counts);
  // Otherwise more pools would write "none" than share the value.
  return most >= 2 && lacking < most ? there[counts.indexOf(most)] : undefined;
}

/** Characters of the longest line that is not split. */
const widest = 130;

/** Order of the keys of a pool; others follow. */
const order =
  `name service queue agents devices priority tags image pull cpus cpu_env memory shm_size env caches volumes hooks plugins trust
unsafe`.split(/\s/);

/** `head`: lines of comment at the top. */
export function configText({ services, secretsKey, defaults, pools }: HostConfig, head: readonly string[]): string {
  const lines = head.map((line) => `# ${line.replaceAll(/\p{Cc}/gu, ' ')}`.trimEnd());
  lines.push('services:', ...Object.entries(services).map(([name, keys]) => `  ${scalar(name)}: ${flow(keys)}`));
  if (secretsKey !== null) lines.push(`secrets: { key: { file: ${scalar(secretsKey)} } }`);
  if (Object.keys(defaults).length > 0) lines.push('defaults:', ...block(defaults, 2, null));
  lines.push('pools:');
  const rows = pools.map((pool) => ({ ...pool, name: `${scalar(pool.name)}:`, line: flow(sorted(pool.keys)) }));
  const isShort = ({ name, line }: (typeof rows)[number]) => `  ${name} ${line}`.length <= widest;
  const column = Math.max(0, ...rows.filter(isShort).map(({ name }) => name.length)) + 1;
  for (const row of rows) {
    const remark = row.agents.length > 1 ? `in this order: the first is that of ${row.agents[0]?.name}` : null;
    if (isShort(row)) lines.push(`  ${row.name.padEnd(column)}${row.line}`);
    else lines.push(`  ${row.name}`, ...block(row.keys, 4, remark));
  }
  return `${lines.join('\n')}\n`;
}

function sorted(keys: PlainMap): PlainMap {
  const place = (key: string) => (order.includes(key) ? order.indexOf(key) : order.length);
  return Object.fromEntries(Object.entries(keys).toSorted(([one], [other]) => place(one) - place(other)));
}

/** One key per line. `remark`: after the key of a long list of UUIDs. */
function block(keys: PlainMap, indent: number, remark: string | null): string[] {
  const space = ' '.repeat(indent);
  return Object.entries(sorted(keys)).flatMap(([key, value]): string[] => {
    const line = `${space}${scalar(key)}: ${flow(value)}`;
    if (line.length <= widest || typeof value !== 'object') return [line];
    if (isPlainMap(value)) return [`${space}${scalar(key)}:`, ...block(value, indent + 2, remark)];
    const note = key === 'uuid' && remark !== null ? `    # ${remark}` : '';
    return [`${space}${scalar(key)}:${note}`, ...value.map((item) => `${space}  - ${flow(item)}`)];
  });
}

function flow(value: Plain): string {
  if (typeof value !== 'object') return scalar(value);
  if (!isPlainMap(value)) return `[${value.map((item) => flow(item)).join(', ')}]`;
  const inner = Object.entries(value).map(([key, one]) => `${scalar(key)}: ${flow(one)}`);
  return inner.length === 0 ? '{}' : `{ ${inner.join(', ')} }`;
}

/** A scalar in YAML, quoted if necessary. */
export function scalar(value: string | number | boolean): string {
  if (typeof value !== 'string') return String(value);
  const isPlain = /^[A-Za-z0-9_/.][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*$/.test(value) && parse(value) === value;
  return isPlain ? value : JSON.stringify(value);
}
