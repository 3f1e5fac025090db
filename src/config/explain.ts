/** `config show`: each value with its origin, never a secret. And the report of `config check`. */

import { formatDuration, formatShare, formatSize } from '../base/units.ts';
import type { Mount } from '../ports/runtime.ts';
import { defaultsOf } from '../schema/key.ts';
import { aboutOf } from '../schema/kinds.ts';
import { formatPath, formatProblem, type Path } from '../schema/problem.ts';
import { describeSecret, type SecretReference } from '../schema/secret-reference.ts';
import { formatVolume } from '../schema/volumes.ts';
import { webhookHost } from '../schema/webhook.ts';
import type { PoolConfig } from './config.ts';
import { nestedKeys, poolFile, schemasOf, topFile } from './interpret.ts';
import { poolKeys, topKeys, trustKeys, type WrittenPool } from './keys.ts';
import type { Checked } from './load.ts';
import type { Given } from './paths.ts';
import { serviceType, type Types } from './types.ts';

/** `value`: as people write it. `origin`: `default`, `FILE:LINE`, `environment ONEJOB_…` or `flag --…`. */
type ShownValue = Readonly<Record<'key' | 'value' | 'origin', string>>;

const shownElsewhere = new Set(['services', 'pools', 'defaults', 'include', 'state_dir', 'socket']);

/** The whole config in effect, in the order of the docs. */
export function configShow(checked: Checked): ShownValue[] {
  const kinds = kindsOf(checked.types);
  return valuesOf(checked).map(({ path, value, origin }) => ({
    key: formatPath(path),
    value: show(kinds.get(String(path.at(-1))), value),
    origin,
  }));
}

/**
 * The same for strangers: of values, words of onejob, numbers, true and false; of others only that they are set, with the value null. Names
 * of services and pools are what `named` makes of them, and below a key whose own keys people choose, such as `env`, nothing is shown.
 */
export function configForStrangers(checked: Checked, named: (name: string) => string) {
  const kinds = kindsOf(checked.types);
  const typeNames = new Set(checked.types.services.map(({ type }) => type));
  const shown = new Map<string, { readonly key: string; readonly value: string | null; readonly isWritten: boolean }>();
  for (const { path, value, origin } of valuesOf(checked)) {
    const start = path[0] === 'services' || path[0] === 'pools' ? 2 : 0;
    const [outer, inner] = path.slice(start).map(String);
    const maps: Readonly<Record<string, { readonly shape: object }>> = nestedKeys;
    const isNested = path.length === start + 2 && Object.hasOwn(maps[outer ?? '']?.shape ?? {}, inner ?? '');
    const isKnown = isNested || path.length === start + 1;
    const keys = path
      .slice(0, start + (isNested ? 2 : 1))
      .map((key, at) => (start === 2 && at === 1 ? named(String(key)) : String(key)));
    const isType = outer === 'type' && typeof value === 'string' && typeNames.has(value);
    const said = isType ? value : isKnown ? plainIn(kinds.get(isNested ? (inner ?? '') : (outer ?? '')), value) : null;
    const isWritten = origin !== 'default';
    shown.set(keys.join('.'), { key: keys.join('.'), value: said, isWritten });
  }
  return [...shown.values()].filter(({ value, isWritten }) => value !== null || isWritten);
}

/** Each value of the config in effect, as it is. */
function valuesOf({ written, writing, paths, config, types }: Checked) {
  const shown: { readonly path: Path; readonly value: unknown; readonly origin: string }[] = [];
  const add = (path: Path, value: unknown, origin: string) => shown.push({ path, value, origin });
  const fromFile = (path: Path) => {
    const place = writing.locate(path, 'key');
    return place.line === null ? place.source : `${place.source}:${place.line}`;
  };
  /** Adds a value, or one line for each key of a map. `places`: where it may be written; the first that is written counts. */
  const addFrom = (path: Path, value: unknown, places: readonly Path[]) => {
    if (isPlainMap(value)) {
      for (const [name, inner] of Object.entries(value)) {
        const within = places.map((place) => [...place, name]);
        addFrom([...path, name], inner, within);
      }
      return;
    }
    const place = places.find((one) => writing.has(one));
    const above = places.map((one) => one.slice(0, -1)).find((one) => one.length > 1 && writing.has(one));
    // Only trust has defaults for keys of a map; what other maps contain was all written.
    const isWritten = above !== undefined && path.length > 3 && path[2] !== 'trust';
    add(path, value, place !== undefined ? fromFile(place) : isWritten ? fromFile(above) : 'default');
  };
  if (paths.config !== null) add(['config'], paths.config.path, originOf(paths.config));
  add(['state_dir'], config.stateDir, originOf(paths.stateDir));
  add(['socket'], config.socket, originOf(paths.socket));
  const top = { ...defaultsOf(topKeys), ...written.top };
  // Its path often is a token.
  const webhook = top.notify?.webhook;
  if (typeof webhook === 'string') top.notify = { ...top.notify, webhook: `${webhookHost(webhook)}/…` };
  for (const [name, value] of Object.entries(top)) if (!shownElsewhere.has(name)) addFrom([name], value, [[name]]);
  for (const [name, service] of written.services) {
    const path = ['services', name];
    const shownKeys = { type: service.type, ...defaultsOf(serviceType(types, service.type).keys), ...service.keys };
    for (const [key, value] of Object.entries(shownKeys)) addFrom([...path, key], value, [[...path, key]]);
  }
  for (const pool of config.pools) {
    const keys = written.pools?.get(pool.name) ?? usualKeys(pool, written.defaults);
    const defaults = defaultsOf(poolKeys, serviceType(types, written.services.get(pool.service)?.type).agent !== null);
    for (const [key, value] of Object.entries({ ...defaults, ...keys, trust: { ...trustDefaults, ...keys.trust } })) {
      const path = ['pools', pool.name, key];
      addFrom(path, value, [path, ['defaults', key]]);
    }
  }
  return shown;
}

/** What a pool is where none are written. */
function usualKeys({ agents, devices: { count }, standby }: PoolConfig, defaults: WrittenPool): WrittenPool {
  return { agents, ...(count !== 0 && { devices: { count } }), ...(!standby && { standby }), ...defaults };
}

/** As lines `key: value  # origin`. */
export function formatShown(shown: readonly ShownValue[]): string {
  const width = Math.min(72, Math.max(0, ...shown.map((one) => one.key.length + one.value.length + 2)));
  return shown.map((one) => `${`${one.key}: ${one.value}`.padEnd(width)}  # ${one.origin}\n`).join('');
}

/** The report of `config check`. `ok` is false when there is an error. */
export function configCheck(checked: Checked): { readonly ok: boolean; readonly text: string } {
  const { errors, warnings, config, paths } = checked;
  const lines = [...errors, ...warnings].map((problem) => formatProblem(problem));
  const file = paths.config?.path ?? null;
  const ok = errors.length === 0;
  if (!ok) lines.push(`${count(errors.length, 'problem')}, ${count(warnings.length, 'warning')}`);
  const perDevice = config.pools.filter((pool) => pool.agents === 'per-device').map((pool) => pool.name);
  const agents = config.pools.reduce((sum, pool) => sum + (pool.agents === 'per-device' ? 0 : pool.agents), 0);
  const more = perDevice.length === 0 ? '' : `, and one per device in ${perDevice.join(', ')}`;
  const what = `${count(config.pools.length, 'pool')}, ${count(agents, 'agent')}${more}`;
  const says = file === null ? 'There is no config file; the defaults apply' : `${file} is valid`;
  if (ok) lines.push(`${says}: ${what}${warnings.length === 0 ? '' : `, ${count(warnings.length, 'warning')}`}`);
  return { ok, text: `${lines.join('\n')}\n` };
}

function count(n: number, word: string): string {
  return `${n} ${word}${n === 1 ? '' : 's'}`;
}

function originOf(given: Given): string {
  const { source, line } = given.from;
  if (line !== null) return `${source}:${line}`;
  if (source.startsWith('--')) return `flag ${source}`;
  return source.startsWith('ONEJOB_') ? `environment ${source}` : source;
}

function isPlainMap(value: unknown): value is Record<string, unknown> {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !('kind' in value) && Object.keys(value).length > 0
  );
}

/** Kinds of values by key: keys of one name in different maps that hold numbers have the same kind. */
function kindsOf(types: Types): ReadonlyMap<string, string> {
  const services = Object.values(schemasOf(types).services).map(({ keys }) => keys);
  return new Map(
    [...services, ...Object.values(nestedKeys), topFile, poolFile].flatMap(({ shape }) =>
      Object.entries(shape).map(([key, type]) => [key, aboutOf(type).kind] as const),
    ),
  );
}

/** A number, a boolean, a word of onejob or `none` of this key, as people write it; null for other values, which may be secret. */
export function plainOf(types: Types): (key: string, value: unknown) => string | null {
  const kinds = kindsOf(types);
  return (key, value) => plainIn(kinds.get(key), value);
}

function plainIn(kind: string | undefined, value: unknown): string | null {
  const isWord = typeof value === 'string' && kind?.includes(`\`${value}\``) === true;
  const isPlain = value === null || typeof value === 'number' || typeof value === 'boolean' || isWord;
  return kind !== undefined && isPlain ? show(kind, value) : null;
}

/** Without lists, which have no default. */
const trustDefaults = Object.fromEntries(Object.entries(defaultsOf(trustKeys)).filter(([, value]) => value !== null));

/** A value as people write it. `kind`: of its key. */
export function show(kind: string | undefined, value: unknown): string {
  if (value === null) return 'none';
  if (typeof value === 'number') {
    if (kind?.startsWith('duration')) return formatDuration(value);
    if (kind?.startsWith('size')) return formatSize(value);
    return kind === 'percentage' ? formatShare(value) : String(value);
  }
  if (Array.isArray(value)) return `[${value.map((one) => show(undefined, one)).join(', ')}]`;
  if (typeof value !== 'object') return plain(String(value));
  if ('container' in value) return plain(formatVolume(value as Mount));
  return 'kind' in value ? describeSecret(value as SecretReference) : '{}';
}

function plain(text: string): string {
  return /^[A-Za-z0-9/][A-Za-z0-9 ._/:@%+={}-]*$/.test(text) ? text : JSON.stringify(text);
}
