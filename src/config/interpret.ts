/** Parses plain values: checks every key against the schema, and keeps all problems and all valid values. */
import type { z } from 'zod';
import { budgetKeys, cloudImageKeys, cloudKeys, hostKeys, joinKeys } from '../schema/host-keys.ts';
import type { Keys } from '../schema/key.ts';
import { describeKind, isMap, word } from '../schema/kinds.ts';
import { formatPath, nearest, type Path, type Problem, suggest } from '../schema/problem.ts';
import { strict } from '../schema/strict.ts';
import type { CloudType } from './cloud-type.ts';
import type { Written, WrittenCloud, WrittenHost, WrittenService } from './config.ts';
import {
  apiKeys,
  deviceKeys,
  diskKeys,
  imageKeys,
  notifyKeys,
  poolKeys,
  secretsKeys,
  type TopFile,
  topKeys,
  trustKeys,
  unsafeKeys,
  upgradeKeys,
  type WrittenPool,
} from './keys.ts';
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
  devices: deviceKeys,
  image: imageKeys,
  trust: trustKeys,
  unsafe: unsafeKeys,
  secrets: secretsKeys,
  disk: diskKeys,
  notify: notifyKeys,
  api: apiKeys,
  join: joinKeys,
  upgrade: upgradeKeys,
});

export const hostFile = strict(hostKeys);
/** Keys of the maps in an entry of `hosts`. */
export const hostMaps = strictMaps({ budget: budgetKeys, image: cloudImageKeys });

type TypeSchema<T> = Omit<T, 'keys' | 'maps'> & { readonly keys: z.ZodObject; readonly maps: typeof nestedKeys };

/** By type. */
export interface Schemas {
  readonly services: Readonly<Record<string, TypeSchema<ServiceType>>>;
  readonly clouds: Readonly<Record<string, TypeSchema<CloudType>>>;
}

export function schemasOf({ services, clouds }: Types): Schemas {
  return {
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
  const services = new Map<string, WrittenService>();
  for (const [name, found] of Object.entries(top.services ?? {})) {
    const service = readService(name, found, reading);
    if (service !== null) services.set(name, service);
  }
  const defaults = top.defaults === undefined ? {} : (readKeys(poolFile, top.defaults, ['defaults'], reading) as WrittenPool);
  const pools = new Map<string, WrittenPool>();
  for (const [name, found] of Object.entries(top.pools ?? {})) {
    const why = nameProblem(name);
    if (why !== null) report(['pools', name], why, 'key');
    // "lab:" alone is a pool that has only defaults.
    const own = found === null ? {} : readKeys(poolFile, found, ['pools', name], reading);
    pools.set(name, mergeMaps(defaults, own) as WrittenPool);
  }
  const list = top.pools === undefined ? null : pools;
  const raw = combined.value;
  const clouds = new Map<string, WrittenCloud>();
  for (const [name, found] of Object.entries(top.clouds ?? {})) {
    const cloud = readCloud(name, found, reading);
    if (cloud !== null) clouds.set(name, cloud);
  }
  const hosts = new Map<string, WrittenHost>();
  for (const [name, found] of Object.entries(top.hosts ?? {})) {
    const why = /^[a-z0-9][a-z0-9_-]{0,31}$/.test(name) ? null : 'a name is 1 to 32 lower-case letters, digits, "-" or "_"';
    if (why !== null) report(['hosts', name], why, 'key');
    const keys = readKeys(hostFile, found, ['hosts', name], reading) as WrittenHost['keys'];
    for (const needed of ['cloud', 'types', 'pools'])
      if (isMap(found) && !(needed in found)) report(['hosts', name], `"${needed}" is missing`, 'key');
    const inside = new Map<string, WrittenPool>();
    for (const [pool, own] of Object.entries(keys.pools ?? {})) {
      const path = ['hosts', name, 'pools', pool];
      const wrong = nameProblem(pool);
      if (wrong !== null) report(path, wrong, 'key');
      inside.set(pool, mergeMaps(defaults, own === null ? {} : readKeys(poolFile, own, path, reading)) as WrittenPool);
    }
    const guest = { services: mapOf(raw.services), defaults: mapOf(raw.defaults), secrets: mapOf(raw.secrets) };
    hosts.set(name, { keys, pools: inside, guest: { ...guest, pools: mapOf(isMap(found) ? found.pools : {}) } });
  }
  return { written: { top, services, defaults, pools: list, clouds, hosts, broken }, problems };
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
    for (const key of issue.keys) reading.report([...at, key], unknownKey(key, knownAt(at, reading), at, reading), 'key');
  } else if (issue.code === 'invalid_type') {
    const expected =
      issue.expected === 'array' ? 'a list' : issue.expected === 'object' || issue.expected === 'record' ? 'a map' : issue.expected;
    const missing = issue.input === undefined;
    reading.report(at, missing ? 'is missing' : `expected ${expected}, found ${describeKind(issue.input)}`);
  } else reading.report(at, issue.message);
}

/** The keys that a map inside a pool, a service or the top level knows. */
function knownAt(path: Path, { schemas }: Reading): string[] {
  // Maps of one name have the same keys in all types of service.
  if (path[0] === 'services') {
    const map = Object.values(schemas.services).find(({ maps }) => Object.hasOwn(maps, String(path[2])));
    return Object.keys(map?.maps[String(path[2])]?.shape ?? {});
  }
  if (path[0] === 'clouds') {
    const cloud = Object.values(schemas.clouds).find(({ maps }) => Object.hasOwn(maps, String(path[2])));
    return Object.keys(cloud?.maps[String(path[2])]?.shape ?? {});
  }
  if (path[0] === 'hosts' && path[2] !== 'pools') return Object.keys(hostMaps[String(path[2])]?.shape ?? {});
  const inPool = path[0] === 'defaults' ? path[1] : path[0] === 'pools' ? path[2] : path[0] === 'hosts' ? path[4] : path[0];
  if (inPool === 'ulimits') return ['soft', 'hard'];
  return Object.keys(nestedKeys[String(inPool)]?.shape ?? {});
}

function unknownKey(name: string, known: readonly string[], path: Path, { schemas }: Reading): string {
  if (name === '<<') return 'YAML 1.2 has no merge keys; put what pools share under "defaults"';
  const near = nearest(name, known);
  if (near !== null) return `unknown key; did you mean "${near}"?`;
  const isPoolKey = Object.hasOwn(poolFile.shape, name);
  const isTopKey = Object.hasOwn(topFile.shape, name);
  if (path.length === 0 && isPoolKey) return 'unknown key here; it belongs to a pool or to "defaults"';
  if (path.length > 0 && isTopKey) return 'unknown key here; it belongs to the top level of the file';
  const isInPool = path.length === (path[0] === 'pools' ? 2 : 1) && (path[0] === 'pools' || path[0] === 'defaults');
  if (isInPool && Object.values(schemas.services).some(({ keys }) => Object.hasOwn(keys.shape, name)))
    return 'unknown key here; it belongs to the service that the pool names, under "services"';
  if ((path[0] === 'services' || path[0] === 'hosts') && path.length === 2 && isPoolKey)
    return 'unknown key here; it belongs to a pool or to "defaults"';
  return `unknown key; ${suggest(name, known)}`;
}

/** Names of pools and services. */
function nameProblem(name: string): string | null {
  if (word.test(name)) return null;
  return 'a name is 1 to 32 letters, digits, "-" or "_", and begins with a letter or a digit';
}

const mapOf = (found: unknown): Readonly<Record<string, unknown>> => (isMap(found) ? found : {});

function readCloud(name: string, found: unknown, reading: Reading): WrittenCloud | null {
  const path = ['clouds', name];
  const why = nameProblem(name);
  if (why !== null) reading.report(path, why, 'key');
  const { clouds } = reading.schemas;
  const types = Object.keys(clouds);
  if (!isMap(found)) {
    reading.report(path, `expected a map with a type, found ${describeKind(found)}`);
    return null;
  }
  const { type: written, ...rest } = found;
  const type = types.find((one) => one === written);
  const schema = type === undefined ? undefined : clouds[type];
  if (type === undefined || schema === undefined) {
    if (written === undefined) reading.report(path, `has no "type"; expected one of: ${types.join(', ')}`, 'key');
    else reading.report([...path, 'type'], `unknown type of cloud; ${suggest(String(written), types)}`);
    return null;
  }
  const keys = readKeys(schema.keys, rest, path, reading);
  for (const needed of schema.needs)
    if (!(needed in found)) reading.report(path, `"${needed}" is missing; a cloud of type ${type} needs it`, 'key');
  return { type, keys };
}

function readService(name: string, found: unknown, reading: Reading): WrittenService | null {
  const path = ['services', name];
  const why = nameProblem(name) ?? (name === 'own' ? '"own" is the name of the own queue; choose another' : null);
  if (why !== null) reading.report(path, why, 'key');
  if (!isMap(found)) {
    reading.report(path, `expected a map with a type, found ${describeKind(found)}`);
    return null;
  }
  const { services } = reading.schemas;
  const types = Object.keys(services);
  const { type: written, ...rest } = found;
  const type = types.find((one) => one === written);
  const service = type === undefined ? undefined : services[type];
  if (type === undefined || service === undefined) {
    if (written === undefined) reading.report(path, `has no "type"; expected one of: ${types.join(', ')}`, 'key');
    else if (typeof written === 'string') reading.report([...path, 'type'], `unknown service type; ${suggest(written, types)}`);
    else reading.report([...path, 'type'], `expected one of ${types.join(', ')}`);
    return null;
  }
  const { keys: schema, needs, removed = {} } = service;
  const known = Object.fromEntries(Object.entries(rest).filter(([key]) => !Object.hasOwn(removed, key)));
  for (const key of Object.keys(rest)) if (Object.hasOwn(removed, key)) reading.report([...path, key], removed[key] ?? '', 'key');
  const keys = readKeys(schema, known, path, reading);
  for (const needed of needs.map((one) => [one].flat()))
    if (!needed.some((one) => one in found)) {
      const them = needed.length === 1 ? 'it' : 'one of them';
      reading.report(
        path,
        `${needed.map((one) => `"${one}"`).join(' or ')} is missing; a service of type ${type} needs ${them}`,
        'key',
      );
    }
  for (const [map, innerNeeds] of Object.values(services).flatMap(({ mapNeeds = {} }) => Object.entries(mapNeeds))) {
    const inner = found[map];
    if (!isMap(inner)) continue;
    for (const needed of innerNeeds) if (!(needed in inner)) reading.report([...path, map], `"${needed}" is missing`, 'key');
  }
  return { type, keys };
}
