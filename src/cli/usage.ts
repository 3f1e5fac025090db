/**
 * Errors about a command line that cannot be parsed. They repeat only names of options and commands: an argument may be a token.
 */
import type { Command, CommanderError } from 'commander';
import type { OnejobError } from '../base/errors.ts';
import { nearest } from '../schema/problem.ts';
import { wrongUsage } from './exit.ts';

/** commander's error about `args` as E_USAGE, without values. */
export function usageError({ code, message }: CommanderError, args: readonly string[], program: Command): OnejobError {
  const names = namesIn(args, program);
  const stray = code === 'commander.excessArguments' || code === 'commander.unknownOption' ? strayIn(args, names, program) : null;
  if (stray !== null) return wrongUsage(stray, seeHelp(names));
  const isExcess = code === 'commander.excessArguments';
  if (isExcess && names[0] === 'secret' && /^error: too many arguments for '(?:encrypt|decrypt|rotate)'/.test(message)) {
    return wrongUsage(
      'Do not pass the value as an argument: give it on standard input, or type it at the hidden prompt.',
      'The value is in your shell\'s history now, and every user of this host could see it. See "onejob secret --help".',
    );
  }
  const blanks = isExcess ? 'Quote values that contain blanks. ' : '';
  const said = withoutValues(code, message.replace(/^error: /, '').trim());
  return wrongUsage(said, `${blanks}${seeHelp(names)}`);
}

function seeHelp(names: readonly string[]): string {
  const list = names.join(' ') === 'init' ? 'Type "onejob init" to list what it can write a config for. ' : '';
  return `${list}See "${['onejob', ...names].join(' ')} --help".`;
}

/** What to say of a word right after a group of commands that also works alone, so that the parser takes it as an argument. */
function strayIn(args: readonly string[], names: readonly string[], program: Command): string | null {
  const group = names.reduce<Command | undefined>((at, name) => at?.commands.find((one) => one.name() === name), program);
  const word = args[args.indexOf(names.at(-1) ?? '') + 1];
  if (names.length === 0 || group === undefined || group.commands.length === 0 || group.registeredArguments.length > 0) return null;
  if (word === undefined || word.startsWith('-')) return null;
  const near = nearest(
    word,
    group.commands.map((one) => one.name()),
  );
  return named('command', `unknown command '${word}'${near === null ? '' : `\n(Did you mean ${near}?)`}`);
}

/** Options of every command that the parser knows only after the command. */
const everywhere = /^--(?:json|(config|state-dir|socket)(=.*)?)$/s;

/** The number of arguments that an option of every command takes here, with itself; 0 for anything else. */
function lengthAt(args: readonly string[], at: number): number {
  const found = everywhere.exec(args[at] ?? '');
  if (found === null) return 0;
  return found[1] !== undefined && found[2] === undefined ? 2 : 1;
}

/** The command, when only options of every command stand before it. */
export function commandWord(args: readonly string[]): string | undefined {
  let at = 0;
  for (let length = lengthAt(args, at); length > 0; length = lengthAt(args, at)) at += length;
  return args[at];
}

/** With options of every command moved behind the command and its subcommand. `--host` stays: the parser knows it in both places. */
export function withOptionsBehind(args: readonly string[], program: Command): string[] {
  const names: string[] = [];
  const host: string[] = [];
  const moved: string[] = [];
  let command = program;
  let at = 0;
  const take = (length: number) => {
    at += length;
    return args.slice(at - length, at);
  };
  while (command.commands.length > 0) {
    const word = args[at] ?? '';
    const length = lengthAt(args, at);
    const found = command.commands.find((one) => one.name() === word);
    if (length > 0) moved.push(...take(length));
    else if (names.length === 0 && /^--host(=|$)/.test(word)) host.push(...take(word === '--host' ? 2 : 1));
    else if (found === undefined) break;
    else {
      names.push(...take(1));
      command = found;
    }
  }
  return names.length === 0 ? [...args] : [...host, ...names, ...moved, ...args.slice(at)];
}

/** Without the options that ask for help if the command does not exist: the help of another one would say that all is well. */
export function withoutHelpOfUnknown(args: readonly string[], program: Command): string[] {
  return namesUnknown(args, program) ? args.filter((arg) => arg !== '-h' && arg !== '--help') : [...args];
}

function namesUnknown(args: readonly string[], program: Command): boolean {
  let command = program;
  const words = args.filter((arg, at) => arg === '--' || (!arg.startsWith('-') && args[at - 1] !== '--host'));
  for (const word of words) {
    const found = command.commands.find((one) => one.name() === word);
    // What follows may be an argument.
    if (found === undefined) return word !== '--' && command.commands.length > 0 && command.registeredArguments.length === 0;
    command = found;
  }
  return false;
}

/** The names of the command and its subcommand. Other words may be tokens. */
function namesIn(args: readonly string[], program: Command): readonly string[] {
  const names: string[] = [];
  let command: Command | undefined = program;
  for (const arg of args.filter((each) => !each.startsWith('-'))) {
    command = command.commands.find((each) => each.name() === arg);
    if (command === undefined) break;
    names.push(arg);
  }
  return names;
}

/** What is longer than any name of onejob may be a token. A value follows a `=` or the letter of a short option. */
const unknown: Readonly<Record<string, RegExp>> = {
  option: /^unknown option '(--[A-Za-z][A-Za-z-]{0,24}(?=['=])|-[A-Za-z])/,
  command: /^unknown command '([A-Za-z][A-Za-z-]{0,24})'/,
};

function withoutValues(code: string, said: string): string {
  switch (code) {
    case 'commander.excessArguments':
      return `${/^too many arguments(?: for '[a-z-]+')?\. Expected \d+ arguments? but got \d+/.exec(said)?.[0] ?? 'too many arguments'}.`;
    case 'commander.invalidArgument': {
      const [, option, why] = /^option '([^']+)' argument '.*' is invalid\. (.*)$/s.exec(said) ?? [];
      if (option !== undefined) return `the value of option '${option}' is invalid. ${why}`;
      const [, argument, reason] = /^command-argument value '.*' is invalid for argument '([^']+)'\. (.*)$/s.exec(said) ?? [];
      return argument === undefined ? 'a value is invalid' : `argument '${argument}' is invalid. ${reason}`;
    }
    case 'commander.unknownOption':
      return named('option', said);
    case 'commander.unknownCommand':
      return named('command', said);
    default:
      // All other messages quote only definitions of options and arguments.
      return said;
  }
}

/** Commands of onejob, and what other programs call them. */
const elsewhere: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries({
    'jobs or status': 'ps ls list',
    'status --watch': 'top',
    jobs: 'queue squeue',
    status: 'info',
    'gpus or status': 'sinfo',
    up: 'start serve daemon',
    down: 'stop shutdown',
    run: 'exec submit sbatch',
    cancel: 'kill rm abort scancel',
    'logs -f': 'tail',
    logs: 'log output',
    'jobs prune': 'prune',
    gpus: 'gpu',
    'doctor or config check': 'check',
    'config check': 'validate',
  }).flatMap(([ours, theirs]) => theirs.split(' ').map((name) => [name, ours])),
);

function named(what: 'option' | 'command', said: string): string {
  const name = unknown[what]?.exec(said)?.[1];
  const synonym = what === 'command' && name !== undefined && Object.hasOwn(elsewhere, name) ? elsewhere[name] : undefined;
  const guess = synonym === undefined ? (/\n\(Did you mean [a-z ,-]+\?\)$/.exec(said)?.[0] ?? '') : `\n(Did you mean ${synonym}?)`;
  return name === undefined ? `unknown ${what}` : `unknown ${what} '${name}'${guess}`;
}
