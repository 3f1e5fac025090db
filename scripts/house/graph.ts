/**
 * The imports among the files of `src`, read with the parser that Vite brings (oxc): static, only for types, and lazy.
 *
 * A module that only starts a process (a path in a string) does not count as an import.
 */
import { globSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path/posix';
import { parseSync } from 'vite';

/** `value` runs the other file when this one is loaded, `type` never does, `lazy` does when the import is called. */
export type ImportKind = 'value' | 'type' | 'lazy';

export interface Import {
  /** Paths from `src`, such as `core/plan.ts`. */
  readonly from: string;
  readonly to: string;
  readonly kind: ImportKind;
}

/** A node of the syntax tree: `type`, and children under any key. */
export interface Node {
  readonly type: string;
  readonly start: number;
  readonly end: number;
  readonly [key: string]: unknown;
}

export interface SourceFile {
  /** From `src`. */
  readonly path: string;
  readonly text: string;
  readonly program: Node;
  readonly imports: readonly Import[];
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}

/** Every node below, parents first. */
export function* nodesOf(node: Node): Generator<Node> {
  yield node;
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) yield* nodesOf(child);
  }
}

interface Request {
  readonly specifier: string;
  readonly kind: ImportKind;
}

function textOf(value: unknown): string | null {
  return isNode(value) && value.type === 'Literal' && typeof value.value === 'string' ? value.value : null;
}

const isTypeOnly = (node: Node): boolean => node.importKind === 'type' || node.exportKind === 'type';

/** True when every name of `import { type A, type B }` is a type: such a line runs nothing. */
function hasOnlyTypes(node: Node): boolean {
  const names = Array.isArray(node.specifiers) ? node.specifiers.filter(isNode) : [];
  return isTypeOnly(node) || (names.length > 0 && names.every(isTypeOnly));
}

function requestOf(node: Node): Request | null {
  switch (node.type) {
    case 'ImportDeclaration':
    case 'ExportNamedDeclaration':
    case 'ExportAllDeclaration': {
      const specifier = textOf(node.source);
      return specifier === null ? null : { specifier, kind: hasOnlyTypes(node) ? 'type' : 'value' };
    }
    case 'ImportExpression': {
      const specifier = textOf(node.source);
      return specifier === null ? null : { specifier, kind: 'lazy' };
    }
    case 'TSImportType': {
      const specifier = textOf(node.source) ?? textOf(node.argument);
      return specifier === null ? null : { specifier, kind: 'type' };
    }
    default:
      return null;
  }
}

function importsOf(path: string, program: Node): Import[] {
  return [...nodesOf(program)].flatMap((node) => {
    const request = requestOf(node);
    if (request === null || !request.specifier.startsWith('.')) return [];
    return [{ from: path, to: join(dirname(path), request.specifier), kind: request.kind }];
  });
}

/** @throws {Error} with the file, when its text cannot be parsed. */
export function parse(path: string, text: string): SourceFile {
  const { program, errors } = parseSync(path, text);
  if (errors.length > 0) throw new Error(`Cannot parse src/${path}: ${errors.map((error) => error.message).join(', ')}`);
  const node = program as unknown as Node;
  return { path, text, program: node, imports: importsOf(path, node) };
}

/** Every file of `src` that is not a test. */
export function readSource(root: string): SourceFile[] {
  const src = join(root, 'src');
  const paths = globSync('**/*.ts', { cwd: src }).filter((path) => !path.endsWith('.test.ts'));
  return paths.sort().map((path) => parse(path, readFileSync(join(src, path), 'utf8')));
}

/** The groups of files that import each other, over one or more steps (Tarjan's strongly connected components), largest first. */
export function circlesOf(imports: readonly Import[]): string[][] {
  const next = Map.groupBy(imports, ({ from }) => from);
  const numbers = new Map<string, number>();
  const lowest = new Map<string, number>();
  const stack: string[] = [];
  const waiting = new Set<string>();
  const circles: string[][] = [];

  const visit = (file: string): number => {
    const number = numbers.size;
    numbers.set(file, number);
    let low = number;
    stack.push(file);
    waiting.add(file);
    for (const { to } of next.get(file) ?? []) {
      if (!numbers.has(to)) low = Math.min(low, visit(to));
      else if (waiting.has(to)) low = Math.min(low, numbers.get(to) ?? low);
    }
    lowest.set(file, low);
    if (low === number) {
      const circle = stack.splice(stack.indexOf(file));
      for (const member of circle) waiting.delete(member);
      const isSelf = circle.length === 1 && (next.get(file) ?? []).some(({ to }) => to === file);
      if (circle.length > 1 || isSelf) circles.push(circle.sort());
    }
    return low;
  };
  for (const file of next.keys()) if (!numbers.has(file)) visit(file);
  return circles.sort((a, b) => b.length - a.length);
}

/** The files that loading a file loads, itself included: static imports of values. */
export function loadedBy(file: string, imports: readonly Import[]): Set<string> {
  const next = Map.groupBy(
    imports.filter(({ kind }) => kind === 'value'),
    ({ from }) => from,
  );
  const loaded = new Set([file]);
  for (const one of loaded) for (const { to } of next.get(one) ?? []) loaded.add(to);
  return loaded;
}

/** The room of a file: its top folder, or the file itself where it lies in `src`. */
export function roomOf(path: string): string {
  const [first = path] = path.split('/');
  return first;
}
