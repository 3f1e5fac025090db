/** Questions to a person at a terminal. A secret is not shown while it is typed. */
import { createInterface, type Interface } from 'node:readline';
import { type Readable, Writable } from 'node:stream';
import type { OnejobError } from '../../base/errors.ts';
import { exitCodes } from '../exit.ts';
import type { Output } from '../output.ts';
import { harmless, printable } from '../text.ts';

/** The value of an answer, or why the answer is invalid. */
export type Reply<T> = { readonly value: T } | { readonly again: string };

export interface Question<T> {
  readonly text: string;
  /** The meaning of an empty answer; null: an answer is required. */
  readonly usual: string | null;
  readonly hidden?: boolean;
  readonly read: (typed: string) => Reply<T> | Promise<Reply<T>>;
}

/** What an option of the command line says, else a question. */
export interface Asked<T> extends Question<T> {
  /** Without its hyphens. */
  readonly option: string;
  /** Its value in messages, such as `URL`; absent: without a terminal it need not be given. */
  readonly needs?: string;
  /** Checks the option before anything is asked. `read` may ask the service about it, too. */
  readonly form?: (typed: string) => Reply<T>;
}

/** Somebody pressed Ctrl-C at a question. */
export class Interrupted extends Error {}

/** Exit code 130 and a message after Ctrl-C at a question. */
export async function unlessInterrupted(output: Pick<Output, 'say'>, work: () => Promise<number>): Promise<number> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Interrupted)) throw error;
    output.say('nothing was written');
    return exitCodes.cancelled;
  }
}

export interface Person extends Disposable {
  /** Aborted when the person leaves. */
  readonly left: AbortSignal;
  /** Asks until the answer is valid. @throws Interrupted; OnejobError E_USAGE when the person leaves otherwise */
  ask<T>(question: Question<T>): Promise<T>;
}

/** Reads lines at a terminal. Shows nothing while `hidden` returns true. */
export function openReader(input: Readable, output: Writable, hidden: () => boolean): Interface {
  const shown = new Writable({
    write(bytes: Buffer, _, done) {
      if (!hidden()) output.write(bytes);
      done();
    },
  });
  return createInterface({ input, output: shown, terminal: true, historySize: 0 });
}

/** `closed`: the error when the input ends at a question. */
export function openPerson(input: Readable, output: Writable, closed: OnejobError): Person {
  let isHidden = false;
  const reader = openReader(input, output, () => isHidden);
  const lines = reader[Symbol.asyncIterator]();
  const left = new AbortController();
  let why: Error = closed;
  reader.on('SIGINT', () => {
    why = new Interrupted();
    output.write('\n');
    reader.close();
  });
  reader.on('close', () => left.abort(why));
  const next = async (): Promise<string> => {
    const { done, value } = await lines.next();
    if (done === true) throw why;
    return value;
  };
  return {
    left: left.signal,
    async ask({ text, usual, hidden = false, read }) {
      for (;;) {
        const prompt = `${text}${usual === null || usual === '' ? '' : ` [${usual}]`}: `;
        reader.setPrompt(printable(prompt));
        // Lines that came before the input ended are still answers.
        if (!left.signal.aborted) reader.prompt();
        isHidden = hidden;
        const typed = await next().finally(() => {
          isHidden = false;
        });
        if (hidden) output.write('\n');
        const said = typed.trim() === '' && usual !== null ? usual : typed.trim();
        const answer = said === '' && usual === null ? { again: 'An answer is required.' } : await read(said);
        if ('value' in answer) return answer.value;
        // It may contain names from a service.
        output.write(`  ${harmless(answer.again)}\n`);
      }
    },
    [Symbol.dispose]() {
      reader.close();
    },
  };
}
