/**
 * From a folder of Compose files to one config per host. The result is checked as `config check` does: what the rules refuse is
 * left out and reported, so that the rest can be loaded.
 */
import type { ComposeOnejob, HostRule } from '../../src/cli/compose-import.ts';
import { byNumber, isPlainMap, type PlainMap, type Remark } from './agent.ts';
import { readComposeFiles } from './compose-files.ts';
import { claimsOf } from './devices.ts';
import { type ComposePool, configText, type HostConfig, hostConfig, shared } from './host-config.ts';
import { type ComposeHost, groupHosts } from './hosts.ts';
import type { Agent } from './service.ts';

/** Finds what is wrong with the text of a config. */
type Check = ComposeOnejob['errorsIn'];

/** `root`: absolute path of the folder. Never throws for what is in it. `files`, `unread`: as `readComposeFiles` says. */
export async function importCompose(root: string, rules: readonly HostRule[], errorsIn: Check) {
  const found = readComposeFiles(root);
  const remarks = [...found.remarks];
  const say = (level: Remark['level'], { file, line }: Pick<Remark, 'file' | 'line'>, message: string) =>
    remarks.push({ file, line, level, message });
  const { hosts: groups, idle } = groupHosts(found.agents, rules);
  const hosts = [];
  /** Hosts by name of agent: a service cannot tell two agents of one name apart. */
  const taken = new Map<string, string>();
  for (const host of groups) {
    const config = await fitting(hostConfig(host, say), errorsIn, (pool, message) => {
      const places = pool === null ? [{ file: `${host.name}.yml`, line: null }] : pool.agents;
      for (const place of places) say('warning', place, message);
    });
    const agents = config.pools.flatMap(({ name: pool, agents: of }) =>
      of.map(({ name, file, line, devices }) => {
        const { by, count, vendor, names } = devices;
        const shown: readonly string[] = by === 'uuid' ? names : by === 'count' ? [`${count} of ${vendor}`] : claimsOf(devices);
        const other = taken.get(name) ?? host.name;
        if (other !== host.name)
          say('warning', { file, line }, `an agent of ${other} also has the name ${name}: the service shows both as one`);
        taken.set(name, host.name);
        return { name, file, line, pool, devices: shown };
      }),
    );
    hosts.push({ name: host.name, because: host.because, agents, config: configText(shared(config), headOf(host)) });
  }
  for (const { name, glob } of idle) say('warning', { file: '--host', line: null }, `${name}=${glob} matches no agent`);
  const unique = new Map(remarks.map((one) => [JSON.stringify(one), one]));
  const ordered = [...unique.values()].sort((one, other) => byNumber(one.file, other.file) || (one.line ?? 0) - (other.line ?? 0));
  return { files: found.files, unread: found.unread, hosts, remarks: ordered };
}

function headOf({ name, agents }: ComposeHost): string[] {
  const count = agents.length === 1 ? 'one agent' : `${agents.length} agents`;
  const tokens = [...new Set(agents.flatMap(({ tokenFile }) => tokenFile ?? []))];
  const old = tokens.length === 0 ? 'where it is now' : tokens.join(', ');
  const caches = agents.flatMap(({ keys }) => (Array.isArray(keys.caches) ? keys.caches : []));
  const hasFolders = caches.some((line) => String(line).startsWith('/'));
  const hasKeys = agents.some(({ hasSecretsKey }) => hasSecretsKey);
  return [
    `${name}: ${count}, from Compose files by "onejob import compose".`,
    ...sharedHeading(agents),
    `Before "onejob up": put only the token into the file below (mode 600), and remove it from ${old}.`,
    ...(hasFolders ? ['Create the missing folders of "caches" (mkdir -p): onejob creates only those that have a name.'] : []),
    ...(hasKeys ? ['Put the private key for encrypted variables next to it (mode 600), and remove it from the image.'] : []),
  ];
}

/** Comments above the services, if most agents of the host have the same. */
function sharedHeading(agents: readonly Agent[]): string[] {
  const alike = [...Map.groupBy(agents, ({ heading }) => heading)].find(([, of]) => of.length * 2 > agents.length);
  return alike === undefined || alike[0] === '' ? [] : alike[0].split('\n').slice(0, 8);
}

/** The config without what the rules refuse. `tell`: reports what that was; the pool is null for other parts. */
async function fitting(config: HostConfig, errorsIn: Check, tell: (pool: ComposePool | null, message: string) => void) {
  let left = config;
  for (;;) {
    const { services, pools }: HostConfig = left;
    const problems = (await errorsIn(configText(left, []))).map(({ key, message }) => {
      const [top, name = '', ...path] = partsOf(key);
      const pool = (top === 'pools' && pools.find((one) => one.name === name)) || null;
      const keys = top === 'services' ? services[name] : pool?.keys;
      return { key, message, name, path, pool, keys };
    });
    const next = problems.find(({ keys, path: [key = ''] }) => keys?.[key] !== undefined && !needed.has(key));
    if (next?.keys === undefined) {
      for (const { key, message, pool } of problems) tell(pool, `the config would be refused: ${key} ${message}`);
      return left;
    }
    const { key, message, name, path, pool } = next;
    tell(pool, `${key} is not carried over: ${message}`);
    const keys = without(next.keys, path);
    if (pool === null) left = { ...left, services: { ...services, [name]: keys } };
    else left = { ...left, pools: pools.map((one) => (one === pool ? { ...one, keys } : one)) };
  }
}

/** Keys that a pool or a service needs. */
const needed = new Set(['name', 'agents', 'devices', 'service', 'type', 'token']);

/** Keys without the value at a path, or at the last part of it that exists, and without what is empty then. */
function without(keys: PlainMap, [key = '', ...path]: readonly string[]): PlainMap {
  const { [key]: value, ...rest } = keys;
  if (typeof value !== 'object' || !Object.hasOwn(value, path[0] ?? '')) return rest;
  const left = isPlainMap(value) ? without(value, path) : value.filter((_, at) => String(at) !== path[0]);
  return Object.keys(left).length === 0 ? rest : { ...keys, [key]: left };
}

/** Parts of `pools.lab.env."a b"` or `pools.lab.volumes[0]`. */
function partsOf(key: string): string[] {
  return [...key.matchAll(/"(?:[^"\\]|\\.)*"|[^.[\]"]+/g)].map(([part]) =>
    part.startsWith('"') ? String(JSON.parse(part)) : part,
  );
}
