/**
 * Output of commands. Results go to standard output, and onejob's own messages to standard error, each beginning with `onejob: `.
 * With `--json` both are JSON, one value per line.
 */
import type { Writable } from 'node:stream';
import { codeOf, messageOf, OnejobError } from '../base/errors.ts';
import type { Environment } from '../config/environment.ts';
import { toErrorView } from '../contract/http-errors.ts';
import { systemClock } from '../system/system-clock.ts';
import type { CliContext } from './context.ts';
import { type Colors, colored, createColors, cut, flow, harmless, printable, terminalSize } from './text.ts';

/** The reader of the output has gone, so nothing is reported. */
export class OutputClosed extends Error {}

export interface Output {
  /** Whether results and messages are JSON. */
  readonly json: boolean;
  readonly colors: Colors;
  /** Columns of standard output when it is a terminal, else null. */
  readonly width: number | null;
  /** Whether output must not contain escape sequences. */
  readonly plain: boolean;
  readonly showsProgress: boolean;
  isTerminal(stream: 'stdout' | 'stderr'): boolean;
  /** Resolves when it is written. @throws OutputClosed, or OnejobError E_OUTPUT */
  write(name: 'stdout' | 'stderr', bytes: Uint8Array | string): Promise<void>;
  /** Lines of a result, for people. Names in them may be foreign, such as those of another host. @throws as `write` */
  print(...lines: readonly string[]): Promise<void>;
  /** A result, for programs: one line of JSON. @throws as `write` */
  value(result: unknown): Promise<void>;
  /** A result: `result` as one line of JSON with `--json`, otherwise `lines`. @throws as `write` */
  result(result: unknown, lines: () => readonly string[]): Promise<void>;
  /** A list: each item as a line of JSON with `--json`; otherwise `lines`, or for an empty list the sentence `nothing`. @throws as `write` */
  list<T>(items: readonly T[], nothing: string, lines: () => readonly string[]): Promise<void>;
  /** Shows a line that the next one replaces, on terminals only; null removes it. */
  progress(text: string | null): void;
  /** One line of onejob's own. */
  say(text: string): void;
  fail(error: unknown): void;
  /** Resolves when onejob's own lines are written, or nobody reads them. */
  flush(): Promise<void>;
}

/** ms to write the last line before the process ends. */
const flushPatience = 500;

export function createOutput(context: Pick<CliContext, 'stdout' | 'stderr' | 'environment'>, json: boolean): Output {
  const { stdout, stderr } = context;
  const asked = colorWanted(context.environment);
  const colorsFor = (stream: { readonly isTTY?: boolean }) => createColors(!json && (asked ?? stream.isTTY === true));
  const errorColors = colorsFor(stderr);
  // A caller that ignores PIPE asks for an error instead.
  const means = (name: string) => (error: Error) =>
    codeOf(error) === 'EPIPE' && !context.environment.ignored.includes('SIGPIPE') ? new OutputClosed() : unwritable(name, error);
  const closed = {
    stdout: watchClosed(stdout, means('standard output')),
    stderr: watchClosed(stderr, means('standard error')),
  };
  const showsProgress = !json && stderr.isTTY === true && !context.environment.isDumb;
  /** Columns of standard error when it is a terminal. */
  const columns = () => (!json && stderr.isTTY === true ? terminalSize(stderr).columns : null);
  let shown = false;

  const write = async (name: 'stdout' | 'stderr', bytes: Uint8Array | string): Promise<void> => {
    if (shown) progress(null);
    const stream = name === 'stdout' ? stdout : stderr;
    const { promise: written, resolve } = Promise.withResolvers<void>();
    if (closed[name].why() === null) stream.write(bytes, (error) => (error == null ? resolve() : closed[name].fail(error)));
    await Promise.race([written, closed[name].promise]);
    const why = closed[name].why();
    if (why !== null) throw why;
  };
  const progress = (text: string | null): void => {
    if (!showsProgress || (text === null && !shown)) return;
    shown = text !== null;
    stderr.write(`\r\u001b[K${text === null ? '' : cut(`onejob: ${printable(text)}`, terminalSize(stderr).columns)}`);
  };
  const line = (text: string): void => {
    if (shown) progress(null);
    if (closed.stderr.why() === null) stderr.write(`${text}\n`);
  };

  const colors = colorsFor(stdout);
  const width = stdout.isTTY === true ? terminalSize(stdout).columns : null;
  const print = (...lines: readonly string[]) => write('stdout', lines.map((each) => `${colored(each, harmless)}\n`).join(''));
  const value = (result: unknown) => write('stdout', `${JSON.stringify(result)}\n`);

  return {
    json,
    colors,
    width,
    print,
    value,
    progress,
    showsProgress,
    write,
    result: (result, lines) => (json ? value(result) : print(...lines())),
    async list(items, nothing, lines) {
      if (json) for (const item of items) await value(item);
      else await print(...(items.length === 0 ? [nothing] : lines()));
    },
    plain: !json && !(asked ?? stdout.isTTY === true),
    isTerminal: (stream) => (stream === 'stdout' ? stdout : stderr).isTTY === true,
    say: (text) => line(json ? JSON.stringify({ message: text }) : flow('onejob: ', printable(text), columns())),
    async flush() {
      const { promise, resolve } = Promise.withResolvers<void>();
      const cancel = systemClock.after(flushPatience, resolve);
      stderr.write('', () => resolve());
      await Promise.race([promise, closed.stderr.promise]);
      cancel();
    },
    fail(error) {
      if (error instanceof OutputClosed) return;
      if (json) return line(JSON.stringify(toErrorView(error)));
      const known = error instanceof OnejobError ? error : null;
      const hint =
        known === null ? 'This is a bug in onejob; please report it with the lines above and with "onejob report".' : known.hint;
      if (known === null && error instanceof Error && error.stack !== undefined) line(harmless(error.stack));
      // Messages and hints may contain names and links of a service.
      for (const [at, each] of harmless(messageOf(error)).split('\n').entries())
        line(at === 0 ? errorColors.red(flow('onejob: ', each, columns())) : flow('  ', each, columns()));
      if (hint !== null) line(flow('  ', harmless(hint), columns()));
    },
  };
}

/** What the environment says about colours; null leaves it to the stream. */
export function colorWanted({ noColor, forceColor, isDumb }: Environment): boolean | null {
  if (noColor) return false;
  if (forceColor) return true;
  return isDumb ? false : null;
}

/** Why nothing can be written any more, once that is known; `promise` resolves then. */
function watchClosed(stream: Writable, means: (error: Error) => Error) {
  const { promise, resolve } = Promise.withResolvers<void>();
  let why: Error | null = null;
  const close = (reason: Error) => {
    why ??= reason;
    resolve();
  };
  const fail = (error: Error) => close(means(error));
  stream.on('error', fail);
  stream.once('close', () => close(new OutputClosed()));
  return { why: () => why, promise, fail };
}

/** What the system's codes mean for a file that somebody else has opened. */
const reasons: Readonly<Record<string, string>> = {
  ENOSPC: 'no space is left on its disk',
  EDQUOT: "the user's disk quota is used up",
  EFBIG: 'the file would be larger than is allowed',
  EIO: 'its disk failed, or its terminal is gone',
  EPIPE: 'its reader is gone',
};

function unwritable(name: string, error: Error): OnejobError {
  const code = codeOf(error);
  const why = reasons[code];
  const hint = 'Make room there, or write the output to another place.';
  return new OnejobError('E_OUTPUT', `Cannot write to ${name}: ${why === undefined ? error.message : `${why} (${code})`}.`, {
    hint,
    cause: error,
  });
}
