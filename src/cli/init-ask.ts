/** Questions to a person at a terminal. What they type for a secret is not shown. */
import { createInterface } from 'node:readline';
import { type Readable, Writable } from 'node:stream';
import { OnejobError } from '../errors.ts';
import { harmless, printable } from './color.ts';

/** What comes of one answer: a value, or why it cannot be taken. */
export type Answer<T> = { readonly value: T } | { readonly again: string };

export interface Question<T> {
  readonly text: string;
  /** What an empty answer means; null: there must be one. */
  readonly usual: string | null;
  readonly hidden?: boolean;
  readonly read: (typed: string) => Answer<T> | Promise<Answer<T>>;
}

/** A person, until disposed of. */
export interface Person extends Disposable {
  /** Aborted when they leave. */
  readonly left: AbortSignal;
  /** Asks until the answer can be taken. @throws OnejobError E_USAGE when they leave */
  ask<T>(question: Question<T>): Promise<T>;
}

export function openPerson(input: Readable, output: Writable): Person {
  let isHidden = false;
  const shown = new Writable({
    write(bytes: Buffer, _, done) {
      // Of what is typed for a secret readline would show each letter.
      if (!isHidden) output.write(bytes);
      done();
    },
  });
  const reader = createInterface({ input, output: shown, terminal: true, historySize: 0 });
  const lines: string[] = [];
  let wake = (): void => {};
  const left = new AbortController();
  reader.on('line', (line) => {
    lines.push(line);
    wake();
  });
  reader.on('SIGINT', () => reader.close());
  reader.on('close', () => {
    left.abort(gone());
    wake();
  });
  const next = async (): Promise<string> => {
    while (lines.length === 0 && !left.signal.aborted) await new Promise<void>((resolve) => (wake = resolve));
    const line = lines.shift();
    if (line === undefined) throw gone();
    return line;
  };
  return {
    left: left.signal,
    async ask({ text, usual, hidden = false, read }) {
      for (;;) {
        const prompt = `${text}${usual === null || usual === '' ? '' : ` [${usual}]`}: `;
        reader.setPrompt(printable(prompt));
        reader.prompt();
        isHidden = hidden;
        const typed = await next().finally(() => {
          isHidden = false;
        });
        if (hidden) output.write('\n');
        const said = typed.trim() === '' && usual !== null ? usual : typed.trim();
        const answer = said === '' && usual === null ? { again: 'There must be an answer.' } : await read(said);
        if ('value' in answer) return answer.value;
        // It may hold names that came from a service.
        output.write(`  ${harmless(answer.again)}\n`);
      }
    },
    [Symbol.dispose]() {
      reader.close();
    },
  };
}

function gone(): OnejobError {
  return new OnejobError('E_USAGE', 'The answers ended before the last question; nothing was written.', {
    hint: 'Start again, or give the answers as options: see "onejob init SERVICE --help".',
  });
}
