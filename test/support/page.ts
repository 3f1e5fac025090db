/** A page of the docs as a reader follows it: files to write and commands to type, in their order, with what they print. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export type Step =
  | { readonly kind: 'config'; readonly text: string }
  /** `prints`: as the page shows it; a line `…` stands for any lines. */
  | { readonly kind: 'command'; readonly command: string; readonly prints: string }
  /** For the program that was started last in a terminal of its own. */
  | { readonly kind: 'line'; readonly line: string; readonly prints: string };

/** Of its fenced blocks. @throws Error for a block of another kind, in which a command could hide */
export function stepsOf(page: string): Step[] {
  const text = readFileSync(join(import.meta.dirname, '../..', page), 'utf8');
  return [...text.matchAll(/^```(\S*)\n(.*?)^```$/gms)].flatMap(([, language, block = '']): Step[] => {
    if (language === 'yaml') return [{ kind: 'config', text: block }];
    const prompt = block.slice(0, 2);
    if (language !== 'console' || (prompt !== '$ ' && prompt !== '> '))
      throw new Error(`${page} has a block that is not for readers to type:\n${block}`);
    return block
      .slice(prompt.length)
      .split(prompt === '$ ' ? /^\$ /m : /^> /m)
      .map((one) => {
        const end = one.indexOf('\n');
        const [typed, prints] = [one.slice(0, end), one.slice(end + 1)];
        return prompt === '$ ' ? { kind: 'command', command: typed, prints } : { kind: 'line', line: typed, prints };
      });
  });
}

/** The pieces of `prints` that are not in `output` as the page shows them; both already without what varies. */
export function notPrinted(output: string, prints: string, isOrdered: boolean): string[] {
  const line = (text: string): string => ` ${text.replace(/\s+/g, ' ').trim()} `;
  const all = line(output);
  const pieces = prints.split(/^…$/m).map(line);
  if (pieces.length === 1) return pieces[0] === all ? [] : pieces;
  let from = 0;
  return pieces.filter((piece, at) => {
    if (piece.trim() === '') return false;
    const found = all.indexOf(piece, isOrdered ? from : 0);
    if (found < 0 || (at === 0 && found > 0) || (at === pieces.length - 1 && !all.endsWith(piece))) return true;
    // Pieces share the blank between them.
    from = found + piece.length - 1;
    return false;
  });
}

/** The Epilog of docs/runtimes/slurm.md. */
export function epilogOf(page: string): string {
  const [, script] = /```sh\n(#!\/bin\/sh\n# onejob-epilog [\s\S]*?)```/.exec(page) ?? [];
  if (script === undefined) throw new Error('the page has no Epilog');
  return script;
}
