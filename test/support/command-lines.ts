/** The command lines of onejob that texts show: in README, the docs and `--help`. */
import type { Command } from 'commander';

/** Words of each simple command in a line of shell that begins with `onejob`, without that word. */
export function commandsIn(line: string): string[][] {
  const inner = [...line.matchAll(/\$\((onejob[^()]*)\)/g)].flatMap(([, command = '']) => commandsIn(command));
  const own = simpleCommands(line).flatMap((words) => {
    const at = words.findIndex((word) => !/^(?:npx|sudo|[A-Za-z_]+=.*)$/.test(word));
    return /^(?:bin\/)?onejob$/.test(words[at] ?? '') && words.length > at + 1 ? [words.slice(at + 1)] : [];
  });
  return [...own, ...inner];
}

/** A line of shell as its commands, each as its words: quotes, comments, redirections and operators, no more than that. */
function simpleCommands(line: string): string[][] {
  const commands: string[][] = [[]];
  const token =
    /\s+|#.*|&&|\|\||[|;]|\d?[<>]+\s*(?:'[^']*'|"[^"]*"|[^\s'"|;&<>])+|(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\|;&<>])+/gy;
  for (const [found] of line.matchAll(token)) {
    if (/^(?:\s|#|\d?[<>])/.test(found)) continue;
    if (/^(?:&&|\|\||[|;])$/.test(found)) commands.push([]);
    else commands.at(-1)?.push(found.replace(/'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/g, (_, one, two, three) => one ?? two ?? three));
  }
  return commands;
}

/** Command lines in a page: those of its blocks of shell, and those that a sentence mentions, often only in part. */
export function commandLines(markdown: string): { readonly shown: string[]; readonly mentioned: string[] } {
  const blocks = [...markdown.matchAll(/^```(?:sh|bash|console)\n(.*?)^```$/gms)].flatMap(([, block = '']) =>
    block
      .replaceAll(/\\\n\s*/g, '')
      .split('\n')
      .map((line) => line.replace(/^\$ /, '').trim()),
  );
  const text = markdown.replaceAll(/^```.*?^```$/gms, '');
  const mentioned = [...text.matchAll(/`((?:npx |sudo |bin\/)?onejob [^`]+)`/g)].map(([, code = '']) =>
    code.replaceAll(/\s*\n\s*/g, ' '),
  );
  const some = (line: string) => commandsIn(line).length > 0;
  return { shown: blocks.filter(some), mentioned: mentioned.filter(some) };
}

/** Command lines that the help of `program` and of all its commands shows. */
export function helpLines(program: Command): string[] {
  const written: string[] = [];
  for (const command of allCommands(program)) {
    command.configureOutput({ writeOut: (text) => void written.push(text) });
    command.outputHelp();
  }
  // What a line does stands behind it, two blanks away.
  return written
    .join('')
    .split('\n')
    .filter((line) => /^ {2}\S/.test(line))
    .map((line) => line.trim().replace(/ {2,}.*$/, ''))
    .filter((line) => commandsIn(line).length > 0);
}

function allCommands(command: Command): Command[] {
  return [command, ...command.commands.flatMap((each) => allCommands(each))];
}
