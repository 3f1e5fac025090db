/** Parses plain values: checks every key against the schema, and keeps all problems and all valid values. */
import type { z } from 'zod';
import { budgetKeys, cloudImageKeys, cloudKeys, hostKeys, joinKeys } from '../schema/host-keys.ts';
import type { Keys } from '../schema/key.ts';
import { describeKind, isMap, word } from '../schema/kinds.ts';
import { formatPath, nearest, type Path, type Problem, suggest } from '../schema/problem.ts';
import { strict } from '../schema/strict.ts';
import type { CloudType } from './cloud-type.ts';
import type { Written, WrittenEntry, WrittenHost } from './config.ts';
import {
  apiKeys,
  benchmarkKeys,
  containerKeys,
  deviceKeys,
  diskKeys,
  imageKeys,
  notifyKeys,
  peopleKeys,
  poolKeys,
  secretsKeys,
  slurmPoolKeys,
  type TopFile,
  topKeys,
  trustKeys,
  unsafeKeys,
  upgradeKeys,
  type WrittenPool,
} from './keys.ts';
import { kubernetesPoolKeys } from './kubernetes-keys.ts';
import type { RuntimeType } from './runtime-type.ts';
import type { ServiceType } from './service-type.ts';
import { type Combined, mergeMaps } from './source.ts';
import type { Types } from './types.ts';

export const poolFile = strict(poolKeys);
export const topFile = strict(topKeys);

function strictMaps(maps: Readonly<Record<string, Keys>>): Readonly<Record<string, z.ZodObject>> {
  return Object.fromEntries(Object.entries(maps).map(([name, keys]) => [name, strict(keys)]));
}

/** Keys of the maps inside a pool or the top level. */
export const nestedKeys = strictMaps({
  benchmark: benchmarkKeys,
  devices: deviceKeys,
  containers: containerKeys,
  image: imageKeys,
  trust: trustKeys,
  kubernetes: kubernetesPoolKeys,
  slurm: slurmPoolKeys,
  unsafe: unsafeKeys,
  secrets: secretsKeys,
  disk: diskKeys,
  notify: notifyKeys,
  api: apiKeys,
  people: peopleKeys,
  join: joinKeys,
  upgrade: upgradeKeys,
});

export const hostFile = strict(hostKeys);
/** Keys of the maps in an entry of `hosts`. */
export const hostMaps = strictMaps({ budget: budgetKeys, image: cloudImageKeys });

type TypeSchema<T> = Omit<T, 'keys' | 'maps'> & { readonly keys: z.ZodObject; readonly maps: typeof nestedKeys };

/** What entries of `services`, `runtimes` and `clouds` have in common. */
interface EntrySchema extends Pick<ServiceType, 'needs' | 'mapNeeds' | 'removed'> {
  readonly keys: z.ZodObject;
}

/** By type. */
export interface Schemas {
  readonly services: Readonly<Record<string, TypeSchema<ServiceType>>>;
  readonly clouds: Readonly<Record<string, TypeSchema<CloudType>>>;
  readonly runtimes: Readonly<Record<string, Omit<RuntimeType, 'keys'> & EntrySchema>>;
}

export function schemasOf({ services, clouds, runtimes }: Types): Schemas {
  return {
    runtimes: Object.fromEntries(runtimes.map((one) => [one.type, { ...one, keys: strict(one.keys) }])),
    services: Object.fromEntries(services.map((one) => [one.type, { ...one, keys: strict(one.keys), maps: strictMaps(one.maps) }])),
    clouds: Object.fromEntries(
      clouds.map((one) => [one.type, { ...one, keys: strict({ ...cloudKeys, ...one.keys } as Keys), maps: strictMaps(one.maps) }]),
    ),
  };
}

/** Keys with a problem are left out of the result, and are in `broken`. */
export function interpret(combined: Pick<Combined, 'value' | 'locate'>, types: Types): { written: Written; problems: Problem[] } {
  const schemas = schemasOf(types);
  const problems: Problem[] = [];
  const broken = new Set<string>();
  const report: Reading['report'] = (path, message, at = 'value') => {
    problems.push({ ...combined.locate(path, at), level: 'error', key: formatPath(path), message });
    broken.add(formatPath(path.slice(0, path[0] === 'defaults' ? 2 : path[0] === 'hosts' && path[2] === 'pools' ? 5 : 3)));
  };
  const reading = { report, schemas };
  const top = readKeys(topFile, combined.value, [], reading) as TopFile;
  const services = entriesOf(top.services, (name, found) => readEntry('services', name, found, reading));
  const defaults = top.defaults === undefined ? {} : (readKeys(poolFile, top.defaults, ['defaults'], reading) as WrittenPool);
  const pools = top.pools === undefined ? null : readPools(top.pools, ['pools'], defaults, reading);
  const runtimes = entriesOf(top.runtimes, (name, found) => readEntry('runtimes', name, found, reading));
  const clouds = entriesOf(top.clouds, (name, found) => readEntry('clouds', name, found, reading));
  const { services: given, defaults: shared, secrets } = combined.value;
  const guest = {
    services: isMap(given) ? given : {},
    defaults: isMap(shared) ? shared : {},
    secrets: isMap(secrets) ? secrets : {},
  };
  const hosts = entriesOf(top.hosts, (name, found): WrittenHost => {
    const path = ['hosts', name];
    if (!/^[a-z0-9][a-z0-9_-]{0,31}$/.test(name)) report(path, 'a name is 1 to 32 lower-case letters, digits, "-" or "_"', 'key');
    const keys = readKeys(hostFile, found, path, reading) as WrittenHost['keys'];
    for (const needed of ['cloud', 'types', 'pools'])
      if (isMap(found) && !(needed in found)) report(path, `"${needed}" is missing`, 'key');
    const inside = isMap(found) && isMap(found.pools) ? found.pools : {};
    return { keys, pools: readPools(keys.pools ?? {}, [...path, 'pools'], defaults, reading), guest: { ...guest, pools: inside } };
  });
  return { written: { top, services, defaults, pools, runtimes, clouds, hosts, broken }, problems };
}

/** The entries that could be read, by name. */
function entriesOf<T>(
  found: Readonly<Record<string, unknown>> = {},
  read: (name: string, found: unknown) => T | null,
): ReadonlyMap<string, T> {
  const entries = Object.entries(found).map(([name, one]) => [name, read(name, one)] as const);
  return new Map(entries.flatMap(([name, one]) => (one === null ? [] : [[name, one] as const])));
}

/** Pools, each merged over `defaults`. `root`: where they are written. */
function readPools(found: Readonly<Record<string, unknown>>, root: Path, defaults: WrittenPool, reading: Reading) {
  return entriesOf(found, (name, pool): WrittenPool => {
    const path = [...root, name];
    const why = nameProblem(name);
    if (why !== null) reading.report(path, why, 'key');
    // "lab:" alone is a pool that has only defaults.
    return mergeMaps(defaults, pool === null ? {} : readKeys(poolFile, pool, path, reading)) as WrittenPool;
  });
}

interface Reading {
  readonly schemas: Schemas;
  report(path: Path, message: string, at?: 'key' | 'value'): void;
}

/** The valid keys of one map. */
function readKeys(schema: z.ZodObject, found: unknown, path: Path, reading: Reading): Record<string, unknown> {
  const result: Record<string, unknown> = {};
  if (!isMap(found)) {
    reading.report(path, `expected a map of keys, found ${describeKind(found)}`);
    return result;
  }
  for (const [name, value] of Object.entries(found)) {
    const type = Object.hasOwn(schema.shape, name) ? schema.shape[name] : undefined;
    const at = [...path, name];
    if (type === undefined) reading.report(at, unknownKey(name, Object.keys(schema.shape), path, reading), 'key');
    else if (value === null) reading.report(at, 'is empty; give it a value or remove the key', 'key');
    else {
      const parsed = type.safeParse(value, { reportInput: true });
      if (parsed.success) result[name] = parsed.data;
      else for (const issue of parsed.error.issues) reportIssue(issue, at, reading);
    }
  }
  return result;
}

function reportIssue(issue: z.core.$ZodIssue, path: Path, reading: Reading): void {
  const at = [...path, ...issue.path.map((part) => (typeof part === 'number' ? part : String(part)))];
  if (issue.code === 'unrecognized_keys') {
    const known = issue.message.split(' ');
    for (const key of issue.keys) reading.report([...at, key], unknownKey(key, known, at, reading), 'key');
  } else if (issue.code === 'invalid_type') {
    const expected =
      issue.expected === 'array' ? 'a list' : issue.expected === 'object' || issue.expected === 'record' ? 'a map' : issue.expected;
    const missing = issue.input === undefined;
    reading.report(at, missing ? 'is missing' : `expected ${expected}, found ${describeKind(issue.input)}`);
  } else reading.report(at, issue.message);
}

function unknownKey(name: string, known: readonly string[], path: Path, { schemas }: Reading): string {
  if (name === '<<') return 'YAML 1.2 has no merge keys; put what pools share under "defaults"';
  if (/^gpus?$/.test(name) && known.includes('devices')) return 'unknown key; a pool asks for GPUs with "devices"';
  const near = nearest(name, known);
  if (near !== null) return `unknown key; did you mean "${near}"?`;
  const isPoolKey = Object.hasOwn(poolFile.shape, name);
  const isTopKey = Object.hasOwn(topFile.shape, name);
  if (path.length === 0 && isPoolKey) return 'unknown key here; it belongs to a pool or to "defaults"';
  if (path.length > 0 && isTopKey) return 'unknown key here; it belongs to the top level of the file';
  const isInPool = path.length === (path[0] === 'pools' ? 2 : 1) && (path[0] === 'pools' || path[0] === 'defaults');
  if (isInPool && Object.values(schemas.services).some(({ keys }) => Object.hasOwn(keys.shape, name)))
    return 'unknown key here; it belongs to the service that the pool names, under "services"';
  if ((isInPool || path[0] === 'runtimes') && Object.hasOwn(slurmPoolKeys, name))
    return `unknown key here; it belongs to the pool's "slurm": slurm: { ${name}: … }`;
  if ((path[0] === 'services' || path[0] === 'hosts') && path.length === 2 && isPoolKey)
    return 'unknown key here; it belongs to a pool or to "defaults"';
  return `unknown key; ${suggest(name, known)}`;
}

/** Names of pools and services. */
function nameProblem(name: string): string | null {
  if (word.test(name)) return null;
  return 'a name is 1 to 32 letters, digits, "-" or "_", and begins with a letter or a digit';
}

/** How problems name what an entry is. */
const nouns: Readonly<Record<keyof Schemas, { readonly one: string; readonly unknown: string }>> = {
  services: { one: 'a service', unknown: 'unknown service type' },
  runtimes: { one: 'a runtime', unknown: 'unknown type of runtime' },
  clouds: { one: 'a cloud', unknown: 'unknown type of cloud' },
};

/** Names that entries cannot have, because they mean something without one. */
const reserved: Readonly<Partial<Record<string, string>>> = {
  'services.own': '"own" is the name of the own queue; choose another',
  'runtimes.best': '"best" is a choice of onejob; choose another name',
  'runtimes.docker': '"docker" is a runtime without an entry; choose another name',
  'runtimes.process': '"process" is a runtime without an entry; choose another name',
};

/** An entry of `services`, `runtimes` or `clouds`; null without a known type. */
function readEntry(root: keyof Schemas, name: string, found: unknown, reading: Reading): WrittenEntry | null {
  const path = [root, name];
  const why = reserved[`${root}.${name}`] ?? nameProblem(name);
  if (why !== null) reading.report(path, why, 'key');
  if (!isMap(found)) {
    reading.report(path, `expected a map with a type, found ${describeKind(found)}`);
    return null;
  }
  const schemas: Readonly<Record<string, EntrySchema>> = reading.schemas[root];
  const types = Object.keys(schemas);
  const { type: written, ...rest } = found;
  const type = types.find((one) => one === written);
  const schema = type === undefined ? undefined : schemas[type];
  if (type === undefined || schema === undefined) {
    const { unknown } = nouns[root];
    if (written === undefined) reading.report(path, `has no "type"; expected one of: ${types.join(', ')}`, 'key');
    else if (root !== 'services' || typeof written === 'string')
      reading.report([...path, 'type'], `${unknown}; ${suggest(String(written), types)}`);
    else reading.report([...path, 'type'], `expected one of ${types.join(', ')}`);
    return null;
  }
  const { removed = {} } = schema;
  for (const key of Object.keys(rest)) if (Object.hasOwn(removed, key)) reading.report([...path, key], removed[key] ?? '', 'key');
  const left = Object.fromEntries(Object.entries(rest).filter(([key]) => !Object.hasOwn(removed, key)));
  const keys = readKeys(schema.keys, left, path, reading);
  reportMissing(found, `${nouns[root].one} of type ${type}`, schema, path, reading);
  for (const [map, needs] of Object.values(schemas).flatMap(({ mapNeeds = {} }) => Object.entries(mapNeeds))) {
    const inner = found[map];
    if (!isMap(inner)) continue;
    for (const needed of needs) if (!(needed in inner)) reading.report([...path, map], `"${needed}" is missing`, 'key');
  }
  return { type, keys };
}

/** Keys that an entry needs and does not have. */
function reportMissing(found: object, what: string, { needs }: EntrySchema, path: Path, { report }: Reading): void {
  for (const needed of needs.map((one) => [one].flat())) {
    if (needed.some((one) => one in found)) continue;
    const names = needed.map((one) => `"${one}"`).join(' or ');
    report(path, `${names} is missing; ${what} needs ${needed.length === 1 ? 'it' : 'one of them'}`, 'key');
  }
}
