/** What another config would change for a running daemon, in words. */
import { isDeepStrictEqual } from 'node:util';
import type { Config, PoolConfig } from './config.ts';
import { plainOf } from './explain.ts';
import type { Types } from './types.ts';

/** How values of a key are written; null for those that may be secret. */
type Show = (key: string, value: unknown) => string | null;

/** Keys of the config whose names here do not follow from those in the file. */
const written: Readonly<Record<string, string>> = {
  agentName: 'name',
  imageRecipe: 'image',
  mounts: 'volumes',
  diskMinFree: 'disk.min_free',
  secretsKey: 'secrets.key',
  upgradeKey: 'upgrade.key',
  agentPackage: 'agent',
  mountedRunner: 'agent.folder',
  pollEvery: 'poll',
};

/** A sentence for each pool and service, and one for the keys outside of them. Of values, only numbers and words of onejob: others may be secret. */
export function differences(before: Config, after: Config, types: Types): string[] {
  const show = plainOf(types);
  // Where volumes lead was seen on the host, and the others follow from the services; nobody wrote them.
  const rest = { pools: 0, services: 0, origins: 0, secrets: 0, path: 0, places: 0 };
  const others = changedKeys(show, { ...before, ...rest }, { ...after, ...rest });
  const [old, now] = [before, after].map(({ pools }) => pools.map(({ name }) => name));
  const order = (names = old, of = now) => names?.filter((name) => of?.includes(name));
  return [
    ...byName(
      before.pools,
      after.pools,
      'pool',
      (one, other) => poolChange(show, one, other),
      ({ agents }) => `added, ${slots(agents)}`,
    ),
    ...byName(before.services, after.services, 'service', (one, other) => changedKeys(show, one, other).join(', ')),
    ...(isDeepStrictEqual(order(), order(now, old)) ? [] : ['order of pools: changed']),
    ...(others.length === 0 ? [] : [`${others.join(', ')}: changed`]),
  ];
}

function byName<T extends { readonly name: string }>(
  before: readonly T[],
  after: readonly T[],
  kind: string,
  change: (before: T, after: T) => string,
  added: (one: T) => string = () => 'added',
): string[] {
  const names = new Set([...before, ...after].map(({ name }) => name));
  return [...names].flatMap((name) => {
    const [old, now] = [before, after].map((list) => list.find((one) => one.name === name));
    if (now === undefined) return `${kind} ${name}: removed; its running jobs continue to their end`;
    if (old === undefined) return `${kind} ${name}: ${added(now)}`;
    const words = change(old, now);
    return words === '' ? [] : `${kind} ${name}: ${words}${kind === 'pool' ? '' : ' changed'}`;
  });
}

function poolChange(show: Show, before: PoolConfig, after: PoolConfig): string {
  const runtimes = [before, after].map(({ runtime }) => runtime ?? 'best');
  // Processes have no image, which nobody wrote.
  const moves = runtimes[0] !== runtimes[1] && runtimes.includes('process');
  const [old, now] = [before, after].map(({ agents: _, recipe, imageRecipe, ...rest }, i) => {
    const runtime = runtimes[i];
    return moves
      ? { made: { runtime, ...recipe, image: null }, rest: { ...rest, runtime: null } }
      : { made: { ...recipe, imageRecipe }, rest: { ...rest, runtime } };
  });
  const [made, others] = [changedKeys(show, old?.made, now?.made), changedKeys(show, old?.rest, now?.rest)];
  const tried = made.includes('image') && after.agents !== 1 ? ', and one slot tries the image first' : '';
  const agents = before.agents === after.agents ? [] : [`${slots(after.agents)} instead of ${before.agents}`];
  return [
    ...agents,
    ...(made.length === 0 ? [] : [`${made.join(', ')} changed: standbys are renewed now, agents after their job${tried}`]),
    ...(others.length === 0 ? [] : [`${others.join(', ')} changed`]),
  ].join('; ');
}

function slots(agents: PoolConfig['agents']): string {
  if (agents === 'per-device') return 'a slot for each device';
  return agents === 1 ? '1 slot' : `${agents} slots`;
}

function changedKeys(show: Show, before: object = {}, after: object = {}): string[] {
  const [old, now] = [new Map(Object.entries(before)), new Map(Object.entries(after))];
  const keys = [...new Set([...old.keys(), ...now.keys()])].filter((key) => !isDeepStrictEqual(old.get(key), now.get(key)));
  return [...new Set(keys.map((key) => changedKey(show, key, old.get(key), now.get(key))))];
}

function changedKey(show: Show, name: string, before: unknown, after: unknown): string {
  const key = written[name] ?? name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  const [old, now] = [before, after].map((value) => show(key.split('.').at(-1) ?? key, value));
  return old == null || now == null ? key : `${key} (${now} instead of ${old})`;
}
