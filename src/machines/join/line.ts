/**
 * What a machine tells where it cannot call its controller: lines on its console, which only root of the machine can write, and the
 * account can read. A line is `onejob: RUN WORD TEXT SUM`, with the text in base64. The sum only finds lines that were torn by others.
 * Nothing secret may be in a line, and a reader trusts it as much as the machine.
 */
import { hashOf, plain, type StageName, stageNames } from './protocol.ts';

/** `join`: who it is that wants its config. `beat`: a `BeatCall`. */
export type Word = StageName | 'join' | 'beat';
const words: ReadonlySet<string> = new Set<Word>([...stageNames, 'join', 'beat']);

export interface Line {
  readonly word: Word;
  /** Without control characters except ends of lines, at most `longestText` bytes; anything else. */
  readonly text: string;
  /** The whole line. */
  readonly raw: string;
}

/** Bytes of a text; longer ones lose their beginning. The console keeps 64 KiB in all. */
export const longestText = 2048;
const form = /^onejob: ((onejob-[0-9a-f]{16}) ([a-z-]{4,10}) ([A-Za-z0-9+/]{0,2732}={0,2})) ([0-9a-f]{16})\r*$/;

export function lineOf(run: string, word: Word, text: string): string {
  const said = `${run} ${word} ${Buffer.from(text).subarray(-longestText).toString('base64')}`;
  return `onejob: ${said} ${hashOf(said).slice(0, 16)}`;
}

/** The lines of one machine in the text of a console, in their order. */
export function linesOf(console: string, run: string): Line[] {
  return console.split('\n').flatMap((raw): Line[] => {
    const [, said = '', whose, word = '', text = '', sum] = form.exec(raw) ?? [];
    if (whose !== run || !words.has(word) || hashOf(said).slice(0, 16) !== sum) return [];
    return [{ word: word as Word, text: plain(Buffer.from(text, 'base64').toString()), raw }];
  });
}
