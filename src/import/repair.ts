/**
 * A config held against all of the config's own rules, as `config check` would. What they refuse is left out and said, so that the rest
 * can be loaded; what cannot be left out is only said.
 */
import type { Environment } from '../config/environment.ts';
import { interpret } from '../config/interpret.ts';
import { checkConfig } from '../config/load.ts';
import { parseSource } from '../config/source.ts';
import { isMap } from '../config/values.ts';
import type { Plain, PlainMap } from './agent.ts';
import type { HostConfig } from './host-config.ts';
import { configText } from './write.ts';

export interface Repaired {
  readonly values: HostConfig;
  readonly text: string;
  /** What was left out of which pool, or is wrong still. */
  readonly refused: readonly { readonly pool: string | null; readonly message: string }[];
}

/** Each turn leaves something out, and no config has more to leave out. */
const mostTurns = 60;

/** Keys that a pool cannot do without. */
const needed = new Set(['name', 'agents', 'devices', 'queue', 'service']);

export async function repaired(first: HostConfig, head: readonly string[], env: Environment): Promise<Repaired> {
  let values = first;
  const refused: { pool: string | null; message: string }[] = [];
  for (let turn = 0; ; turn++) {
    const text = configText(values, head);
    const problems = await problemsOf(text, env);
    const [problem] = problems;
    const next =
      problem === undefined || turn === mostTurns
        ? null
        : (problems.map(({ key }) => without(values, key)).find((one) => one !== null) ?? null);
    if (problem === undefined || next === null) {
      const left = problems.map(({ key, message }) => ({
        pool: poolOf(key),
        message: `the config would be refused: ${key} ${message}`,
      }));
      return { values, text, refused: [...refused, ...left] };
    }
    const gone = problems.find(({ key }) => without(values, key) !== null) ?? problem;
    refused.push({ pool: poolOf(gone.key), message: `${gone.key} is not carried over: ${gone.message}` });
    values = next;
  }
}

function poolOf(key: string): string | null {
  return /^pools\.([^.[]+)/.exec(key)?.[1] ?? null;
}

/** The same without what a problem is about; null when that is needed, or is not there. */
function without(values: HostConfig, problem: string): HostConfig | null {
  const [, service, serviceKey] = /^services\.([^.[]+)\.(endpoint)$/.exec(problem) ?? [];
  if (service !== undefined && serviceKey !== undefined) {
    const { [serviceKey]: _, ...rest } = values.services[service] ?? {};
    return { ...values, services: { ...values.services, [service]: rest } };
  }
  const [, pool, key, index, inner] = /^(?:pools\.([^.[]+)|defaults)\.([a-z_]+)(?:\[(\d+)\]|\.(?:"(.*)"|.+))?/.exec(problem) ?? [];
  if (key === undefined || needed.has(key)) return null;
  const name = inner ?? /^(?:pools\.[^.[]+|defaults)\.[a-z_]+\.([^.[]+)/.exec(problem)?.[1];
  const cut = (keys: PlainMap): PlainMap => {
    const { [key]: value, ...rest } = keys;
    const smaller = value === undefined ? null : part(value, index, name);
    return smaller === null ? rest : { ...rest, [key]: smaller };
  };
  const of = values.pools.find((one) => one.name === pool);
  if (of?.keys[key] !== undefined)
    return { ...values, pools: values.pools.map((one) => (one === of ? { ...one, keys: cut(one.keys) } : one)) };
  return values.defaults[key] === undefined ? null : { ...values, defaults: cut(values.defaults) };
}

function part(value: Plain, index: string | undefined, name: string | undefined): Plain | null {
  if (Array.isArray(value) && index !== undefined && value.length > 1) return value.filter((_, at) => at !== Number(index));
  if (!isMap(value) || name === undefined || !(name in value)) return null;
  const { [name]: _, ...rest } = value as PlainMap;
  return Object.keys(rest).length === 0 ? null : rest;
}

async function problemsOf(text: string, env: Environment): Promise<{ key: string; message: string }[]> {
  const source = parseSource('config', text);
  const locate = (path: Parameters<typeof source.locate>[0], at: 'key' | 'value' = 'value') =>
    source.locate(path, at) ?? { source: 'config', line: null, column: null };
  const { written, problems } = interpret({ value: isMap(source.value) ? source.value : {}, locate });
  const { errors } = await checkConfig({ env, secrets: 'skip', instead: { name: 'config', written } });
  return [...source.problems, ...problems, ...errors].filter(({ level }) => level === 'error');
}
