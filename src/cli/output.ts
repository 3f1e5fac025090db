/**
 * How commands speak. Results go to standard output, everything onejob says beside them to standard error, each line
 * beginning with `onejob: `; with `--json` both are JSON, one value per line.
 */
import type { Writable } from 'node:stream';
import type { Environment } from '../config/environment.ts';
import { OnejobError } from '../errors.ts';
import type { CliContext } from './session.ts';
import { type Colors, createColors, cut, flow, harmless, printable } from './text.ts';

/** Whoever read our output has gone: no reason to complain, and nobody to complain to. */
export class OutputClosed extends Error {}

export interface Output {
  readonly json: boolean;
  /** For standard output. */
  readonly colors: Colors;
  /** Columns of standard output when it is a terminal, else null. */
  readonly width: number | null;
  isTerminal(stream: 'stdout' | 'stderr'): boolean;
  /** Whether what is written should have nothing that only a terminal understands. */
  readonly plain: boolean;
  /** Lines of a result, for people. */
  print(...lines: string[]): Promise<void>;
  /** A result, for programs: one line of JSON. */
  value(value: unknown): Promise<void>;
  /** A line of onejob's own. */
  say(text: string): void;
  /** A line that the next one replaces; shown on terminals only. null takes it away. */
  progress(text: string | null): void;
  /** Whether progress can be seen, so whether it is worth asking for. */
  readonly showsProgress: boolean;
  /** @throws OutputClosed */
  write(stream: 'stdout' | 'stderr', bytes: Uint8Array): Promise<void>;
  fail(error: unknown): void;
  /** Resolves when our own lines are out, or nobody takes them. */
  flush(): Promise<void>;
}

/** ms for a last line to get out before the process ends. */
const lastWords = 500;

export function createOutput(context: Pick<CliContext, 'stdout' | 'stderr' | 'environment'>, json: boolean): Output {
  const { stdout, stderr } = context;
  const asked = colorWanted(context.environment);
  const colorsFor = (stream: { readonly isTTY?: boolean }) => createColors(!json && (asked ?? stream.isTTY === true));
  const errorColors = colorsFor(stderr);
  const closed = { stdout: watchClosed(stdout), stderr: watchClosed(stderr) };
  const showsProgress = !json && stderr.isTTY === true;
  /** Where words have to end at a terminal, which breaks lines in the middle of them. */
  const columns = () => (!json && stderr.isTTY === true ? (stderr.columns ?? 80) : null);
  let shown = false;

  const write = async (name: 'stdout' | 'stderr', bytes: Uint8Array | string): Promise<void> => {
    if (shown) progress(null);
    const stream = name === 'stdout' ? stdout : stderr;
    if (closed[name].is()) throw new OutputClosed();
    if (!stream.write(bytes)) await Promise.race([drained(stream), closed[name].promise]);
    if (closed[name].is()) throw new OutputClosed();
  };
  const progress = (text: string | null): void => {
    if (!showsProgress || (text === null && !shown)) return;
    shown = text !== null;
    stderr.write(`\r\u001b[K${text === null ? '' : cut(`onejob: ${printable(text)}`, stderr.columns ?? 80)}`);
  };
  const line = (text: string): void => {
    if (shown) progress(null);
    if (!closed.stderr.is()) stderr.write(`${text}\n`);
  };

  return {
    json,
    colors: colorsFor(stdout),
    width: stdout.isTTY === true ? (stdout.columns ?? 80) : null,
    plain: !json && !(asked ?? stdout.isTTY === true),
    isTerminal: (stream) => (stream === 'stdout' ? stdout : stderr).isTTY === true,
    showsProgress,
    print: (...lines) => write('stdout', lines.map((each) => `${each}\n`).join('')),
    value: (value) => write('stdout', `${JSON.stringify(value)}\n`),
    say: (text) => line(json ? JSON.stringify({ message: text }) : flow('onejob: ', printable(text), columns())),
    progress,
    write,
    async flush() {
      const { promise, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, lastWords);
      stderr.write('', () => resolve());
      await Promise.race([promise, closed.stderr.promise]);
      clearTimeout(timer);
    },
    fail(error) {
      if (error instanceof OutputClosed) return;
      const known = error instanceof OnejobError ? error : null;
      const message = error instanceof Error ? error.message : String(error);
      const hint = known === null ? 'This is a bug in onejob; please report it with the lines above.' : known.hint;
      if (json) return line(JSON.stringify({ code: known?.code ?? 'E_BUG', message, hint, retry: known?.retry ?? false }));
      if (known === null && error instanceof Error && error.stack !== undefined) line(harmless(error.stack));
      // A service's names and links are in messages and hints; their lines are ours.
      for (const [at, each] of harmless(message).split('\n').entries())
        line(at === 0 ? errorColors.red(flow('onejob: ', each, columns())) : flow('  ', each, columns()));
      if (hint !== null) line(flow('  ', harmless(hint), columns()));
    },
  };
}

/** What the environment says about colours; null leaves it to the stream. */
export function colorWanted({ noColor, forceColor }: Environment): boolean | null {
  if (noColor) return false;
  return forceColor ? true : null;
}

function drained(stream: Writable): Promise<void> {
  return new Promise((resolve) => stream.once('drain', resolve));
}

function watchClosed(stream: Writable): { is(): boolean; readonly promise: Promise<void> } {
  let gone = false;
  const promise = new Promise<void>((resolve) => {
    const close = () => {
      gone = true;
      resolve();
    };
    stream.on('error', close);
    stream.once('close', close);
  });
  return { is: () => gone, promise };
}
