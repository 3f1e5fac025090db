/** What pools are called: by what tells them apart for a person. It changes nothing but their names. */
import type { Agent } from './agent.ts';

/** One name for each, in order, no two alike. */
export function poolNames(agents: readonly Agent[]): string[] {
  const taken = new Set<string>();
  return agents.map((agent) => {
    const words = [...new Set(candidates(agent).map(plain))].filter((word) => word !== '');
    let name = words.find((word) => !taken.has(word));
    for (let n = 2; name === undefined; n++) {
      const next = `${(words[0] ?? 'pool').slice(0, 28)}-${n}`;
      if (!taken.has(next)) name = next;
    }
    taken.add(name);
    return name;
  });
}

function candidates({ keys, devices, name }: Agent): string[] {
  const tags = (typeof keys.tags === 'string' ? keys.tags : '').split(',').filter((tag) => tag !== '');
  const flags = tags.flatMap((tag) => /^([^=]+)(=(true|1|yes))?$/.exec(tag)?.[1] ?? []);
  const models = tags
    .flatMap((tag) => /^[^=]*gpu[^=]*=(.+)$/i.exec(tag)?.[1] ?? [])
    .filter((model) => !/^(true|1|yes)$/.test(model));
  const queue = typeof keys.queue === 'string' ? keys.queue : '';
  return [...flags, ...(devices.by === 'none' ? [] : models), queue, ...models, name];
}

function plain(word: string): string {
  return word
    .replaceAll(/[^A-Za-z0-9_-]+/g, '-')
    .replace(/^[-_]+|[-_]+$/g, '')
    .slice(0, 32);
}
