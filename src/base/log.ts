/**
 * The daemon's log: one line per event, in JSON for collectors or as text for a terminal.
 * A closed stream never ends the daemon. Secrets are kept out of errors where these are made, not here.
 */
import type { Writable } from 'node:stream';
import { OnejobError } from './errors.ts';

export type LogFields = Readonly<Record<string, unknown>>;

/** `event` is a few fixed, searchable words. Everything that differs from line to line goes in `fields`. */
export interface Log {
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  error(event: string, fields?: LogFields): void;
}

export interface LogOptions {
  readonly json: boolean;
  readonly stream: Writable;
  readonly color?: boolean;
  /** Lays out a line of text; `lead` is its time. */
  readonly layout?: (lead: string, text: string) => string;
}

type Level = 'info' | 'warn' | 'error';

export function createLog(options: LogOptions): Log {
  // A closed pipe or a full disk under our log must not end running jobs.
  options.stream.on('error', () => {});
  const write = options.json ? jsonLines(options) : humanLines(options);
  const say =
    (level: Level) =>
    (event: string, fields: LogFields = {}): void =>
      write(level, event, { ...Object(clean(fields, 0)) });
  return { info: say('info'), warn: say('warn'), error: say('error') };
}

type Write = (level: Level, event: string, fields: Record<string, unknown>) => void;

function jsonLines({ stream }: LogOptions): Write {
  return (level, event, fields) => void stream.write(`${JSON.stringify({ level, time: new Date(), ...fields, event })}\n`);
}

const tint: Record<Level, string> = { info: '', warn: '\u001b[33m', error: '\u001b[31m' };

function humanLines({ stream, color = false, layout = (lead, text) => lead + text }: LogOptions): Write {
  return (level, event, fields) => {
    const time = new Date().toTimeString().slice(0, 8);
    const details = Object.entries(fields)
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([key, value]) => `${key}=${inLine(value)}`)
      .join(' ');
    const word = level === 'info' ? event : `${level === 'warn' ? 'warning' : 'error'}: ${event}`;
    const head = color && tint[level] !== '' ? `${tint[level]}${word}\u001b[0m` : word;
    stream.write(`${layout(`${time} `, `${head}${details === '' ? '' : `  ${details}`}`)}\n`);
  };
}

function inLine(value: unknown): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value));
  return /^[^\s"=]+$/.test(text) || typeof value !== 'string' ? text : JSON.stringify(text);
}

/** A value for a line: errors by their code and message, depth limited. */
function clean(value: unknown, depth: number): unknown {
  if (typeof value === 'bigint') return value.toString();
  if (typeof value !== 'object' || value === null) return value;
  if (depth > 4) return '…';
  if (Array.isArray(value)) return value.map((each) => clean(each, depth + 1));
  const fields = value instanceof Error ? fieldsOf(value) : value;
  return Object.fromEntries(Object.entries(fields).map(([key, each]) => [key, clean(each, depth + 1)]));
}

/** Includes the stack only for unexpected errors. */
function fieldsOf(error: Error): Record<string, unknown> {
  if (!(error instanceof OnejobError)) return { message: error.message, stack: error.stack ?? null };
  const { code, message, hint, retry } = error;
  return { code, message, hint, retry };
}
