/** What the agents of each slot are called. */
import type { Config } from './config.ts';
import { expandName } from './template.ts';

/** Agent names by slot, made once each. */
export function slotNames({ pools, host }: Pick<Config, 'pools' | 'host'>): (key: string) => string {
  const names = new Map<string, string>();
  return (key) => {
    const known = names.get(key);
    if (known !== undefined) return known;
    const at = key.lastIndexOf('/');
    const pool = pools.find((one) => one.name === key.slice(0, at));
    const name =
      pool === undefined
        ? key.replace('/', '-')
        : expandName(pool.agentName, { host, pool: pool.name, n: Number(key.slice(at + 1)) });
    names.set(key, name);
    return name;
  };
}
