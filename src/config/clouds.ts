/** `clouds`, `hosts` and `join` of the config: what they mean, and what has to fit. */

import { formatDuration } from '../base/units.ts';
import { isLoopback, parseListen } from '../http/address.ts';
import { budgetKeys, cloudImageKeys, hostKeys } from '../schema/host-keys.ts';
import { complete } from '../schema/key.ts';
import { suggest } from '../schema/problem.ts';
import type { Checking } from './checking.ts';
import type { CloudHost, JoinConfig, PoolConfig, Written, WrittenHost } from './config.ts';
import type { WrittenPool } from './keys.ts';
import { cloudType, serviceType, type Types } from './types.ts';

export function resolveClouds(written: Written, types: Types, resolvePool: (name: string, pool: WrittenPool) => PoolConfig) {
  const clouds = [...written.clouds].flatMap(([name, { type, keys }]) => {
    const cloud = cloudType(types, type).resolve(name, keys);
    const { owner = null } = keys as { owner?: string };
    return cloud === null ? [] : [{ ...cloud, owner }];
  });
  const hosts = [...written.hosts].flatMap(([name, host]) => resolveHost(name, host, resolvePool) ?? []);
  return { clouds, hosts, join: resolveJoin(written.top.join) };
}

function resolveHost(
  host: string,
  { keys, pools: given, guest }: WrittenHost,
  resolvePool: (name: string, pool: WrittenPool) => PoolConfig,
): CloudHost | null {
  const { cloud, types, image, budget, disk, pools: _, ...rest } = complete(hostKeys, keys);
  if (cloud === undefined || types === undefined) return null;
  const pools = [...given].map(([pool, one]): PoolConfig => {
    const resolved = resolvePool(`${host}.${pool}`, one);
    // What has no queue of its own has the name that it has on its machines.
    const queue = resolved.service === 'own' ? resolved.queue : (one.queue ?? pool);
    return { ...resolved, queue, agents: 0, elsewhere: { host, pool } };
  });
  const known = [...given.values()].map(({ agents = 1 }) => (agents === 'per-device' ? 1 : agents));
  const { from, has } = complete(cloudImageKeys, typeof image === 'object' ? image : {});
  return Object.freeze({
    host,
    cloud,
    types,
    ...rest,
    pools,
    guest,
    image: from === undefined ? null : { from, has },
    budget: complete(budgetKeys, budget).per_day ?? null,
    disk: Math.ceil(disk / 2 ** 30),
    prices: keys.prices ?? {},
    agents: Math.max(
      1,
      known.reduce((sum, agents) => sum + agents, 0),
    ),
  });
}

function resolveJoin(given: Written['top']['join']): JoinConfig | null {
  const {
    through,
    listen: written = '',
    url,
    tls_cert: cert,
    tls_key: key,
    ca = null,
    package: archive,
    sha256 = null,
  } = given ?? {};
  if (archive === undefined) return null;
  if (through === 'cloud') return Object.freeze({ listen: null, url: null, tls: null, ca: null, package: archive, sha256 });
  const listen = parseListen(written);
  if (listen === null || url === undefined) return null;
  const tls = cert === undefined || key === undefined ? null : { cert, key };
  return Object.freeze({ listen, url: url.replace(/\/+$/, ''), tls, ca, package: archive, sha256 });
}

export function checkClouds({ config, written, at }: Checking, known: Types): void {
  for (const cloud of config.clouds)
    for (const [path, message] of cloudType(known, cloud.type).problems?.(cloud) ?? [])
      at(['clouds', cloud.name, ...path], message);
  for (const [name, { keys, pools }] of written.hosts) {
    const path = ['hosts', name];
    const cloud = written.clouds.get(keys.cloud ?? '');
    // One with a problem of its own is not among those that were read.
    if (keys.cloud !== undefined && cloud === undefined && !Object.hasOwn(written.top.clouds ?? {}, keys.cloud))
      at([...path, 'cloud'], `there is no such cloud; ${suggest(keys.cloud, Object.keys(written.top.clouds ?? {}))}`);
    for (const [index, type] of (keys.types ?? []).entries()) {
      const why = cloud === undefined ? null : cloudType(known, cloud.type).typeProblem(type);
      if (why !== null) at([...path, 'types', index], why.replace(/\.$/, ''));
    }
    for (const type of Object.keys(keys.prices ?? {}))
      if (!keys.types?.includes(type)) at([...path, 'prices', type], 'is not used: "types" does not name it', 'warning');
    if (keys.types?.length === 0) at([...path, 'types'], 'is empty; name a type of machine');
    if (written.top.join?.through === 'cloud' && cloud !== undefined && cloudType(known, cloud.type).takesMail === false)
      at([...path, 'cloud'], `is of type ${cloud.type}, whose machines must reach this daemon: write "join.listen" and "join.url"`);
    const { min, max, lifetime, boot } = complete(hostKeys, keys);
    if (min > max) at([...path, 'min'], `is ${min}, more than "max" (${max})`);
    if (boot >= lifetime) at([...path, 'boot'], 'is not shorter than "lifetime": no machine would ever run a job');
    const longest = cloud === undefined ? Number.POSITIVE_INFINITY : cloudType(known, cloud.type).longestLifetime;
    if (lifetime > longest)
      at(
        [...path, 'lifetime'],
        `is longer than ${cloudType(known, cloud?.type ?? '').title} can hold the end of a machine (${formatDuration(longest)})`,
      );
    if (pools.size === 0 && keys.pools !== undefined) at([...path, 'pools'], 'is empty: its machines would run nothing');
    for (const [pool, { service = 'own' }] of pools) {
      if (service === 'own' && written.top.join?.through === 'cloud')
        at(
          [...path, 'pools', pool, 'service'],
          'is own, but jobs of the own queue need "join.listen": with "through: cloud" nothing brings them to machines',
        );
      const found = config.services.find((one) => one.name === service);
      const why = found === undefined ? null : (serviceType(known, found.type).whyOneHost?.(found) ?? null);
      if (max > 1 && why !== null) at([...path, 'max'], `is ${max}, but only one machine at a time can serve pool ${pool}: ${why}`);
    }
  }
  checkJoin({ config, written, at });
}

function checkJoin({ config, written, at }: Pick<Checking, 'config' | 'written' | 'at'>): void {
  const keys = written.top.join;
  if (written.broken.has('join') || [...written.broken].some((key) => key.startsWith('join.'))) return;
  if (keys === undefined) {
    if (written.hosts.size > 0)
      at(['hosts'], 'needs "join" at the top level: machines must reach this daemon, to get their config and to say how they are');
    return;
  }
  const isThroughCloud = keys.through === 'cloud';
  for (const needed of ['listen', 'url', 'package'] as const) {
    if (isThroughCloud && needed !== 'package') continue;
    if (keys[needed] === undefined) at(['join'], `"${needed}" is missing`);
  }
  for (const other of ['listen', 'url', 'tls_cert', 'tls_key', 'ca'] as const)
    if (isThroughCloud && keys[other] !== undefined)
      at(['join', other], 'has no meaning with "through: cloud": machines do not call this daemon then');
  if (isThroughCloud && keys.package?.startsWith('/'))
    at(['join', 'package'], 'is a file, but with "through: cloud" machines cannot get it from here: write an https address');
  if ((keys.tls_cert === undefined) !== (keys.tls_key === undefined))
    at(['join'], 'has only one of "tls_cert" and "tls_key": TLS takes a certificate and its key');
  const { join } = config;
  if (join === null) return;
  const { protocol, hostname } = new URL(join.url ?? 'https://localhost');
  if (protocol !== 'https:' && !isLoopback(hostname.replace(/^\[|\]$/g, '')))
    at(['join', 'url'], 'is not https: credentials of services would travel unencrypted');
  if (join.package.startsWith('https:') && join.sha256 === null) at(['join', 'package'], 'is a URL, so "sha256" is required');
}
