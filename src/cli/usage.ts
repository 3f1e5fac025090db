/**
 * Errors about a command line that cannot be parsed. They repeat only names of options and commands: an argument may be a token.
 */
import type { Command, CommanderError } from 'commander';
import type { OnejobError } from '../errors.ts';
import { wrongUsage } from './exit.ts';

/** commander's error about `args` as E_USAGE, without values. */
export function usageError({ code, message }: CommanderError, args: readonly string[], program: Command): OnejobError {
  const names = namesIn(args, program);
  const isExcess = code === 'commander.excessArguments';
  if (isExcess && names[0] === 'secret' && /^error: too many arguments for '(?:encrypt|decrypt|rotate)'/.test(message)) {
    return wrongUsage(
      'Do not pass the value as an argument: give it on standard input, or type it at the hidden prompt.',
      'The value is in your shell\'s history now, and every user of this host could see it. See "onejob secret --help".',
    );
  }
  const blanks = isExcess ? 'Quote values that contain blanks. ' : '';
  const list = names.join(' ') === 'init' ? 'Type "onejob init" to list what it can write a config for. ' : '';
  const said = withoutValues(code, message.replace(/^error: /, '').trim());
  return wrongUsage(said, `${list === '' ? blanks : list}See "${['onejob', ...names].join(' ')} --help".`);
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
    ...{ 'jobs or status': 'ps ls list', 'status --watch': 'top', jobs: 'queue squeue', status: 'info', 'gpus or status': 'sinfo' },
    ...{ up: 'start serve daemon', down: 'stop shutdown', run: 'exec submit sbatch', cancel: 'kill rm abort scancel' },
    ...{ 'logs -f': 'tail', logs: 'log output', 'jobs prune': 'prune', gpus: 'gpu' },
    ...{ 'doctor or config check': 'check', 'config check': 'validate' },
  }).flatMap(([ours, theirs]) => theirs.split(' ').map((name) => [name, ours])),
);

function named(what: 'option' | 'command', said: string): string {
  const name = unknown[what]?.exec(said)?.[1];
  const synonym = what === 'command' && name !== undefined && Object.hasOwn(elsewhere, name) ? elsewhere[name] : undefined;
  const guess = synonym === undefined ? (/\n\(Did you mean [a-z ,-]+\?\)$/.exec(said)?.[0] ?? '') : `\n(Did you mean ${synonym}?)`;
  return name === undefined ? `unknown ${what}` : `unknown ${what} '${name}'${guess}`;
}
