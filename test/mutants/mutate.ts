/**
 * Small faults in a file: where they can be, and the file with all of them in it at once, each behind a switch that is off.
 *
 * One text serves every mutant, so nothing is built or transformed twice. The switch also says which test reaches which mutant.
 */
import { type Node, parse } from '../../scripts/house/graph.ts';

/** The standard operators; docs/testing.md says what each does. */
export const operators = [
  'condition',
  'logic',
  'boundary',
  'equality',
  'arithmetic',
  'constant',
  'method',
  'call',
  'await',
  'exit',
] as const;
export type Operator = (typeof operators)[number];

export interface Mutation {
  /** From the root. */
  readonly file: string;
  readonly line: number;
  readonly operator: Operator;
  readonly from: string;
  readonly to: string;
  /** The same for the same place in another version of the file, wherever its line is by then. */
  readonly key: string;
  readonly start: number;
  readonly end: number;
  /** A statement is skipped, an expression is exchanged, a property's name is exchanged. */
  readonly form: 'statement' | 'expression' | 'name';
}

type Found = Pick<Mutation, 'operator' | 'start' | 'end' | 'to' | 'form'>;

const swapped: Readonly<Record<string, readonly [Operator, string]>> = {
  '<': ['boundary', '<='],
  '<=': ['boundary', '<'],
  '>': ['boundary', '>='],
  '>=': ['boundary', '>'],
  '===': ['equality', '!=='],
  '!==': ['equality', '==='],
  '-': ['arithmetic', '+'],
  '*': ['arithmetic', '/'],
  '/': ['arithmetic', '*'],
  '&&': ['logic', '||'],
  '||': ['logic', '&&'],
};

const methods: Readonly<Record<string, string>> = {
  some: 'every',
  every: 'some',
  min: 'max',
  max: 'min',
  startsWith: 'endsWith',
  endsWith: 'startsWith',
};

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}

/** Types have nothing to run, save the expression in `x as T`, `x satisfies T` and `x!`. */
const typed = new Set(['TSAsExpression', 'TSSatisfiesExpression', 'TSNonNullExpression']);

function childrenOf(node: Node): Node[] {
  if (typed.has(node.type)) return isNode(node.expression) ? [node.expression] : [];
  return Object.entries(node).flatMap(([key, value]) => {
    if (key === 'key' && node.computed !== true) return [];
    return (Array.isArray(value) ? value : [value]).filter(isNode).filter(({ type }) => !type.startsWith('TS') || typed.has(type));
  });
}

class Finder {
  readonly found: Found[] = [];
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  visit(node: Node): void {
    if (/^(Import|ExportAll)/.test(node.type) && node.type !== 'ImportExpression') return;
    this.#look(node);
    for (const child of childrenOf(node)) this.visit(child);
  }

  #of(node: Node): string {
    return this.#text.slice(node.start, node.end);
  }

  #add(operator: Operator, form: Mutation['form'], { start, end }: Node, to: string): void {
    this.found.push({ operator, form, start, end, to });
  }

  #look(node: Node): void {
    switch (node.type) {
      case 'IfStatement':
      case 'ConditionalExpression':
        if (isNode(node.test)) this.#add('condition', 'expression', node.test, `!(${this.#of(node.test)})`);
        break;
      case 'BinaryExpression':
      case 'LogicalExpression':
        this.#binary(node);
        break;
      case 'Literal':
        if (typeof node.value === 'boolean') this.#add('constant', 'expression', node, String(!node.value));
        else if (typeof node.value === 'number') this.#add('constant', 'expression', node, String(node.value + 1));
        break;
      case 'CallExpression':
        this.#method(node);
        break;
      case 'ExpressionStatement':
        this.#statement(node);
        break;
      case 'ThrowStatement':
      case 'ContinueStatement':
        this.#add('exit', 'statement', node, '');
        break;
      case 'ReturnStatement':
        if (node.argument === null) this.#add('exit', 'statement', node, '');
        break;
    }
  }

  #binary(node: Node): void {
    const to = swapped[String(node.operator)];
    const { left, right } = node;
    if (to === undefined || !isNode(left) || !isNode(right)) return;
    const [operator, other] = to;
    // A chain of `&&` inside `||` keeps its order only with its own brackets.
    this.#add(operator, 'expression', node, `(${this.#of(left)}) ${other} (${this.#of(right)})`);
  }

  #method({ callee }: Node): void {
    if (!isNode(callee) || callee.type !== 'MemberExpression' || callee.computed === true || !isNode(callee.property)) return;
    const { start, end } = callee.property;
    const to = methods[this.#of(callee.property)];
    if (to === undefined || this.#text[start - 1] !== '.') return;
    // `a.some` becomes `a[…]`, and `a?.some` becomes `a?.[…]`.
    const begin = this.#text[start - 2] === '?' ? start : start - 1;
    this.found.push({ operator: 'method', form: 'name', start: begin, end, to });
  }

  #statement(node: Node): void {
    const { expression } = node;
    if (!isNode(expression) || (node.directive ?? null) !== null) return;
    const isSuper = expression.type === 'CallExpression' && isNode(expression.callee) && expression.callee.type === 'Super';
    if (isSuper) return;
    this.#add('call', 'statement', node, '');
    if (expression.type === 'AwaitExpression' && isNode(expression.argument))
      this.#add('await', 'expression', expression, `void (${this.#of(expression.argument)})`);
  }
}

/** Every mutation of a file, in the order of its text. @throws {Error} when the text cannot be parsed */
export function mutationsOf(file: string, text: string): Mutation[] {
  const finder = new Finder(text);
  finder.visit(parse(file, text).program);
  const times = new Map<string, number>();
  const lines = text.split('\n');
  const sorted = finder.found.sort((a, b) => a.start - b.start || b.end - a.end);
  return sorted.map((one) => {
    const line = text.slice(0, one.start).split('\n').length;
    const base = `${file} ${one.operator} ${lines[line - 1]?.trim()}`;
    const time = (times.get(base) ?? 0) + 1;
    times.set(base, time);
    return { ...one, file, line, from: text.slice(one.start, one.end), key: `${base} #${time}` };
  });
}

/** A mutation with the number of its switch. */
export interface Numbered extends Mutation {
  readonly number: number;
}

/** The name of the function that asks whether a mutant is on. `worker.ts` sets it; without it every mutant is off. */
export const switchName = '__onejobMutant';

const isOn = (number: number): string => `globalThis.${switchName}?.(${number})`;

/** The text with the mutations in it, each off until its switch is on. */
export function withSwitches(text: string, mutations: readonly Numbered[]): string {
  // The outer first: what is inside is rewritten where it stays as it was.
  const sorted = [...mutations].sort((a, b) => a.start - b.start || b.end - a.end || a.number - b.number);
  const write = (from: number, to: number, inside: readonly Numbered[]): string => {
    let written = '';
    let at = from;
    for (let next = inside.at(0), rest = inside.slice(1); next !== undefined; next = rest.at(0), rest = rest.slice(1)) {
      const { start, end } = next;
      const nested = rest.filter((one) => one.start < end);
      written += text.slice(at, start) + switched(next, write(start, end, nested));
      at = end;
      rest = rest.slice(nested.length);
    }
    return written + text.slice(at, to);
  };
  return write(0, text.length, sorted);
}

function switched({ form, number, to, from }: Numbered, original: string): string {
  switch (form) {
    case 'statement':
      // The outer brackets keep an `else` that follows with its own `if`.
      return `{ if (!${isOn(number)}) { ${original} } }`;
    case 'expression':
      return `(${isOn(number)} ? (${to}) : (${original}))`;
    case 'name':
      return `[${isOn(number)} ? '${to}' : '${from.replace('.', '')}']`;
  }
}
