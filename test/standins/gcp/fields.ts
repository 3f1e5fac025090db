// Partial answers: `fields=items/*/instances(name,labels),nextPageToken`, as Google's guide "Use partial responses" has it.
import { Refused } from './insert-body.ts';

/** Names that are kept, each with what is kept of its value; null: all of it. */
type Mask = ReadonlyMap<string, Mask | null>;

/** What `fields` keeps of an answer. @throws Refused */
export function partOf(answer: unknown, fields: string | null): unknown {
  return fields === null ? answer : kept(answer, parsed(fields));
}

function kept(value: unknown, mask: Mask | null): unknown {
  if (mask === null || typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.map((one) => kept(one, mask));
  const entries = Object.entries(value).flatMap(([name, one]) => {
    const below = mask.has(name) ? mask.get(name) : mask.get('*');
    const part = below === undefined ? undefined : kept(one, below);
    // Where nothing is kept of a value, there is no value.
    return part === undefined || (isEmpty(part) && !isEmpty(one)) ? [] : [[name, part]];
  });
  return Object.fromEntries(entries);
}

const isEmpty = (value: unknown): boolean => typeof value === 'object' && value !== null && Object.keys(value).length === 0;

function parsed(text: string): Mask {
  const whole = new Map<string, Mask | null>();
  for (const path of split(text)) {
    const [, head = '', rest, group] = /^([A-Za-z]+|\*)(?:\/(.+)|\((.+)\))?$/.exec(path) ?? [];
    if (head === '') throw new Refused(`Invalid field selection ${path}`, 400, 'invalidParameter');
    const below = rest ?? group;
    const before = whole.get(head);
    if (below === undefined) whole.set(head, null);
    else if (before !== null) whole.set(head, merged(before, parsed(below)));
  }
  return whole;
}

function merged(one: Mask | undefined, other: Mask): Mask {
  const all = new Map(one ?? []);
  for (const [name, below] of other) {
    const before = all.get(name);
    all.set(name, below === null || before === null ? null : merged(before, below));
  }
  return all;
}

/** At commas outside of brackets. */
function split(text: string): string[] {
  let depth = 0;
  const parts = [''];
  for (const letter of text) {
    if (letter === '(') depth += 1;
    if (letter === ')') depth -= 1;
    if (letter === ',' && depth === 0) parts.push('');
    else parts[parts.length - 1] += letter;
  }
  return parts;
}
