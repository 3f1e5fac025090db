/**
 * Filters of lists, by the discovery document: `labels.x="y"` or `name=y`, several in brackets (all must fit). Regular expressions
 * with `eq` are another language, and the two cannot be mixed; onejob has no use for them, so they are refused here.
 */
import { Refused } from './insert-body.ts';

const one = /^\s*(name|status|labels\.[a-z][a-z0-9_-]*)\s*(=|!=|:)\s*("([^"\\]*)"|[A-Za-z0-9_.*-]+)\s*$/;

/** @throws Refused */
export function filterOf(text: string): (entry: unknown) => boolean {
  if (text.trim() === '') return () => true;
  const parts = /^\s*\(/.test(text) ? [...text.matchAll(/\(([^()]*)\)(?:\s*AND\b)?\s*/g)].map(([, part = '']) => part) : [text];
  const rules = parts.map((part) => {
    const [, field = '', operator, bare = '', quoted] = one.exec(part) ?? [];
    if (operator === undefined) throw new Refused(`Invalid value for field 'filter': '${text}'. Invalid list filter expression.`);
    // A bare number is no text, so it is not equal to one.
    const isNumber = quoted === undefined && /^\d+$/.test(bare);
    return { field, operator, value: quoted ?? bare, isNumber };
  });
  return (entry) =>
    rules.every(({ field, operator, value, isNumber }) => {
      const resource = entry as { readonly labels?: Record<string, string> } & Record<string, unknown>;
      const found = field.startsWith('labels.') ? resource.labels?.[field.slice(7)] : resource[field];
      if (operator === ':' && value === '*') return found !== undefined;
      if (operator === '!=') return found !== value;
      return found === value && !isNumber;
    });
}
