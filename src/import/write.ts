/** A host's config as a file that people like to read. */
import { parse } from 'yaml';
import type { Plain, PlainMap } from './agent.ts';
import type { HostConfig } from './host-config.ts';
import { isMap } from './plain.ts';

/** Longest line of a pool or a list that is written on one. */
const widest = 130;

const order =
  `name service queue agents devices priority tags image pull cpus cpu_env memory shm_size env caches volumes hooks plugins trust unsafe`.split(
    ' ',
  );

/** `head`: lines of comment at the top. */
export function configText({ services, secretsKey, defaults, pools }: HostConfig, head: readonly string[]): string {
  const lines = head.map((line) => `# ${line.replaceAll(/\p{Cc}/gu, ' ')}`.trimEnd());
  lines.push('services:', ...Object.entries(services).map(([name, keys]) => `  ${scalar(name)}: ${flow(keys)}`));
  if (secretsKey !== null) lines.push(`secrets: { key: { file: ${scalar(secretsKey)} } }`);
  if (Object.keys(defaults).length > 0) lines.push('defaults:', ...block(defaults, 2));
  lines.push('pools:');
  const isShort = (name: string, keys: PlainMap) => `  ${name}: ${flow(sorted(keys))}`.length <= widest;
  const widths = pools.filter(({ name, keys }) => isShort(name, keys)).map(({ name }) => scalar(name).length);
  const column = Math.max(0, ...widths) + 2;
  for (const { name, keys, agents } of pools) {
    if (isShort(name, keys)) lines.push(`  ${`${scalar(name)}:`.padEnd(column)}${flow(sorted(keys))}`);
    else
      lines.push(
        `  ${scalar(name)}:`,
        ...block(keys, 4, agents.length > 1 ? `in this order: the first is that of ${agents[0]?.name}` : null),
      );
  }
  return `${lines.join('\n')}\n`;
}

function sorted(keys: PlainMap): PlainMap {
  const place = (key: string) => (order.includes(key) ? order.indexOf(key) : order.length);
  return Object.fromEntries(Object.entries(keys).toSorted(([one], [other]) => place(one) - place(other)));
}

/** One key per line. `remark`: behind the key of a long list of UUIDs. */
function block(keys: PlainMap, indent: number, remark: string | null = null): string[] {
  const space = ' '.repeat(indent);
  return Object.entries(sorted(keys)).flatMap(([key, value]): string[] => {
    const line = `${space}${scalar(key)}: ${flow(value)}`;
    if (line.length <= widest || typeof value !== 'object') return [line];
    if (Array.isArray(value)) {
      const note = key === 'uuid' && remark !== null ? `    # ${remark}` : '';
      return [`${space}${scalar(key)}:${note}`, ...value.map((item: Plain) => `${space}  - ${flow(item)}`)];
    }
    return [`${space}${scalar(key)}:`, ...block(value as PlainMap, indent + 2, remark)];
  });
}

function flow(value: Plain): string {
  if (Array.isArray(value)) return `[${value.map((item: Plain) => flow(item)).join(', ')}]`;
  if (!isMap(value)) return scalar(value as string | number | boolean);
  const inner = Object.entries(value as PlainMap).map(([key, one]) => `${scalar(key)}: ${flow(one)}`);
  return inner.length === 0 ? '{}' : `{ ${inner.join(', ')} }`;
}

/** A scalar as it can stand anywhere, in quotes where it would be read as something else without. */
export function scalar(value: string | number | boolean): string {
  if (typeof value !== 'string') return String(value);
  const isPlain = /^[A-Za-z0-9_/.][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*$/.test(value) && parse(value) === value;
  return isPlain ? value : JSON.stringify(value);
}
