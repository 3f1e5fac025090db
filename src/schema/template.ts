/** Templates in the config: agent names, and `{name}` in recipes. */
import type { Recipe } from '../ports/runtime.ts';

/** The name of the agents of slot `n`, from 1. Placeholders: `{host}`, `{pool}`, `{n}`, and `{K..}`, which counts from K. */
export function expandName(template: string, parts: { readonly host: string; readonly pool: string; readonly n: number }): string {
  return template.replaceAll(/\{([^{}]*)\}/g, (whole, key: string) => {
    if (key === 'host') return parts.host;
    if (key === 'pool') return parts.pool;
    if (key === 'n') return String(parts.n);
    const start = /^(\d{1,6})\.\.$/.exec(key)?.[1];
    return start === undefined ? whole : String(Number(start) + parts.n - 1);
  });
}

/** Why a name template is invalid; null when it is valid. */
export function templateProblem(template: string): string | null {
  const left = template.replaceAll(/\{(host|pool|n|\d{1,6}\.\.)\}/g, '');
  const strange = /\{[^{}]*\}/.exec(left)?.[0];
  if (strange !== undefined)
    return `has the unknown placeholder ${strange}; a name can use {host}, {pool}, {n} and {K..} such as {1..}`;
  if (/[{}]/.test(left)) return 'has an unmatched brace';
  const bad = /[^A-Za-z0-9_.-]/.exec(left)?.[0];
  if (bad !== undefined) return `must not contain ${JSON.stringify(bad)}; use letters, digits, ".", "_" and "-"`;
  if (/^[._-]/.test(left) && !template.startsWith('{')) return 'must begin with a letter or a digit';
  return null;
}

/** Whether the template gives each slot of a pool its own name. */
export function countsSlots(template: string): boolean {
  return /\{(n|\d{1,6}\.\.)\}/.test(template);
}

/** The pool's recipe for one slot: `{name}` in environment values and volume paths becomes the agent's name. */
export function expandRecipe(pool: { readonly recipe: Recipe }, name: string): Recipe {
  const put = (text: string) => text.replaceAll('{name}', name);
  return {
    ...pool.recipe,
    env: Object.fromEntries(Object.entries(pool.recipe.env).map(([key, value]) => [key, put(value)])),
    mounts: pool.recipe.mounts.map((mount) => ({ ...mount, host: put(mount.host), container: put(mount.container) })),
  };
}

/** What `{host}` stands for: the first label of the host's name, without characters that a name cannot have. */
export function shortHost(hostname: string): string {
  const label = (hostname.split('.')[0] ?? '').replaceAll(/[^A-Za-z0-9-]/g, '').replace(/^-+/, '');
  return label.slice(0, 24).replace(/-+$/, '') || 'host';
}

/** What names of agents are made from: `host` is the short name of this host, and each pool has its template. */
export interface NamedSlots {
  readonly host: string;
  readonly pools: readonly { readonly name: string; readonly agentName: string }[];
}

/** Agent names by slot, made once each: every commit asks for one. */
export function slotNames({ pools, host }: NamedSlots): (key: string) => string {
  const names = new Map<string, string>();
  const nameOf = (key: string): string => {
    const at = key.lastIndexOf('/');
    const pool = pools.find((one) => one.name === key.slice(0, at));
    if (pool === undefined) return key.replace('/', '-');
    return expandName(pool.agentName, { host, pool: pool.name, n: Number(key.slice(at + 1)) });
  };
  return (key) => {
    const name = names.get(key) ?? nameOf(key);
    names.set(key, name);
    return name;
  };
}
