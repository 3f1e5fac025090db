/** Figures about the source: how long functions are, which names mean several things, and forms that hide mistakes. */
import { type Node, nodesOf, type SourceFile } from './graph.ts';

export interface LongFunction {
  readonly place: string;
  readonly lines: number;
}

const isFunction = ({ type }: Node): boolean =>
  type === 'FunctionDeclaration' || type === 'FunctionExpression' || type === 'ArrowFunctionExpression';

const linesUntil = (text: string, end: number): number => text.slice(0, end).split('\n').length;

/** Functions of more than `limit` lines, longest first. A function in another counts by itself, and in the other. */
export function longFunctions(files: readonly SourceFile[], limit: number): LongFunction[] {
  const long = files.flatMap(({ path, text, program }) =>
    [...nodesOf(program)].filter(isFunction).flatMap(({ start, end }) => {
      const first = linesUntil(text, start);
      const lines = linesUntil(text, end) - first + 1;
      return lines > limit ? [{ place: `src/${path}:${first}`, lines }] : [];
    }),
  );
  return long.sort((a, b) => b.lines - a.lines);
}

function child(node: Node, key: string): Node | null {
  const value = node[key];
  return typeof value === 'object' && value !== null && 'type' in value ? (value as Node) : null;
}

function children(node: Node | null, key: string): Node[] {
  const value = node?.[key];
  return Array.isArray(value) ? value.filter((one) => typeof one === 'object' && one !== null) : [];
}

/** `...{ a, b }` in an object literal, which switches off TypeScript's check of keys that nobody declared. */
export function spreadLiterals(files: readonly SourceFile[]): string[] {
  return files.flatMap(({ path, text, program }) =>
    [...nodesOf(program)].flatMap((node) => {
      const isSpread = node.type === 'SpreadElement' && child(node, 'argument')?.type === 'ObjectExpression';
      return isSpread ? [`src/${path}:${linesUntil(text, node.start)}`] : [];
    }),
  );
}

/** `ReturnType<typeof …>`, an interface that nobody has written. */
export function inferredInterfaces(files: readonly SourceFile[]): string[] {
  return files.flatMap(({ path, text, program }) =>
    [...nodesOf(program)].flatMap((node) => {
      if (node.type !== 'TSTypeReference' || child(node, 'typeName')?.name !== 'ReturnType') return [];
      const [argument] = children(child(node, 'typeArguments'), 'params');
      return argument?.type === 'TSTypeQuery' ? [`src/${path}:${linesUntil(text, node.start)}`] : [];
    }),
  );
}

interface Exported {
  readonly name: string;
  readonly path: string;
  /** What is written of its type; of an interface and a type its whole text. */
  readonly written: string;
}

function exportsOf({ path, text, program }: SourceFile): Exported[] {
  const textOf = (node: Node | null): string => (node === null ? '' : text.slice(node.start, node.end));
  const named = (node: Node, written: string): Exported[] => {
    const name = child(node, 'id')?.name;
    return typeof name === 'string' ? [{ name, path, written }] : [];
  };
  return children(program, 'body').flatMap((statement) => {
    const declaration = statement.type === 'ExportNamedDeclaration' ? child(statement, 'declaration') : null;
    if (declaration === null) return [];
    if (declaration.type === 'VariableDeclaration')
      return children(declaration, 'declarations').flatMap((one) => {
        const id = child(one, 'id');
        return named(one, textOf(id === null ? null : child(id, 'typeAnnotation')) || textOf(one));
      });
    if (declaration.type !== 'FunctionDeclaration') return named(declaration, textOf(declaration));
    const parameters = children(declaration, 'params').map(textOf).join(', ');
    return named(declaration, `(${parameters})${textOf(child(declaration, 'returnType'))}`);
  });
}

export interface SharedName {
  readonly name: string;
  readonly files: readonly string[];
}

/** Names that three or more files export with different types. */
export function sharedNames(files: readonly SourceFile[]): SharedName[] {
  return [...Map.groupBy(files.flatMap(exportsOf), ({ name }) => name)]
    .filter(([, all]) => all.length >= 3 && new Set(all.map(({ written }) => written)).size > 1)
    .map(([name, all]) => ({ name, files: all.map(({ path }) => path) }))
    .sort((a, b) => b.files.length - a.files.length || a.name.localeCompare(b.name));
}
