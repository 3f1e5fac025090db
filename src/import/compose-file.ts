/**
 * A Compose file as values with the lines they stand on. Anchors and merge keys are resolved by the parser; what of a file is no YAML is
 * said and the rest of the fleet goes on. https://docs.docker.com/reference/compose-file/
 */
import { isAlias, isPair, isScalar, isSeq, isMap as isYamlMap, LineCounter, type Node, parseDocument } from 'yaml';
import { isMap } from './plain.ts';

export interface ComposeFile {
  /** Relative to the folder that was read. */
  readonly file: string;
  readonly services: Readonly<Record<string, unknown>>;
  /** All of it, for what stands beside `services`. */
  readonly value: Readonly<Record<string, unknown>>;
  /** Comment above everything, without its marks; null where there is none. */
  readonly heading: string | null;
  /** Line of what a path leads to, from 1; of the last part that is there where it leads nowhere. */
  line(path: readonly (string | number)[]): number;
}

export interface FileProblem {
  readonly line: number | null;
  readonly message: string;
}

export type Read = { readonly ok: true; readonly file: ComposeFile } | { readonly ok: false; readonly problem: FileProblem };

/** Never throws. */
export function readCompose(file: string, text: string): Read {
  const lines = new LineCounter();
  const no = (line: number | null, message: string): Read => ({ ok: false, problem: { line, message } });
  try {
    const document = parseDocument(text.replace(/^\ufeff/, ''), { merge: true, lineCounter: lines, logLevel: 'silent' });
    const [error] = document.errors;
    if (error !== undefined) {
      const why = (error.message.split('\n')[0] ?? '').replace(/ at line \d+, column \d+:?$/, '');
      return no(lines.linePos(error.pos[0]).line, `is not YAML: ${why}`);
    }
    const value: unknown = document.toJS({ maxAliasCount: 1000 });
    if (value === null || value === undefined) return no(null, 'is empty');
    if (!isMap(value)) return no(1, 'is not a Compose file: there is no map in it');
    if (isCircular(value)) return no(1, 'contains itself');
    const { services } = value;
    if (services === undefined) return no(1, 'is not a Compose file that is known: it has no "services"');
    if (!isMap(services)) return no(1, '"services" is no map');
    const first = isYamlMap(document.contents) ? document.contents.items[0]?.key : null;
    const above = document.commentBefore ?? (isScalar(first) ? first.commentBefore : null) ?? null;
    const line = (path: readonly (string | number)[]): number => {
      const offset = offsetOf(document.contents, path, (node) => (isAlias(node) ? (node.resolve(document) ?? null) : node));
      return offset === null ? 1 : lines.linePos(offset).line;
    };
    return { ok: true, file: { file, services, value, heading: headingOf(above), line } };
  } catch (error) {
    return no(null, `cannot be read as YAML: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`);
  }
}

function isCircular(value: unknown): boolean {
  try {
    JSON.stringify(value);
    return false;
  } catch {
    return true;
  }
}

function headingOf(comment: string | null | undefined): string | null {
  const lines = (comment ?? '').split('\n').map((line) => line.trim());
  const text = lines.join('\n').trim();
  return text === '' ? null : text;
}

type Found = Node | null | undefined;

function offsetOf(root: Found, path: readonly (string | number)[], follow: (node: Found) => Found): number | null {
  let node: Found = root;
  let offset: number | null = root?.range?.[0] ?? null;
  for (const step of path) {
    node = follow(node);
    const next: { at: number | null; node: Found } | null = isSeq(node)
      ? itemOf(node.items[Number(step)])
      : isYamlMap(node)
        ? entryOf(node, String(step), follow)
        : null;
    if (next === null) return offset;
    offset = next.at ?? offset;
    node = next.node;
  }
  return offset;
}

function itemOf(item: unknown): { at: number | null; node: Found } | null {
  const node = isPair(item) ? (item.value as Found) : (item as Found);
  return node === undefined || node === null ? null : { at: node.range?.[0] ?? null, node };
}

function entryOf(map: Found, key: string, follow: (node: Found) => Found): { at: number | null; node: Found } | null {
  if (!isYamlMap(map)) return null;
  const merged: Found[] = [];
  for (const pair of map.items) {
    const name = isScalar(pair.key) ? pair.key : null;
    const value = pair.value as Found;
    if (String(name?.value) === key) return { at: name?.range?.[0] ?? null, node: value };
    const inner = follow(value);
    if (name?.source === '<<') merged.push(...(isSeq(inner) ? inner.items.map((item) => follow(item as Found)) : [inner]));
  }
  for (const inner of merged) {
    const found = entryOf(inner, key, follow);
    if (found !== null) return found;
  }
  return null;
}
