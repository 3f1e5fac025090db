/** What the commands' definitions share: the global options, and how the text of an option becomes a value. */
import { type Command, InvalidArgumentError, Option } from 'commander';
import { OnejobError } from '../../errors.ts';
import { exitCodes } from '../exit.ts';
import type { GlobalFlags, Session } from '../session.ts';

/** Makes an action of `work`: gives it its session, and turns what it throws into text and an exit code. */
export type Act = (
  work: (session: Session) => Promise<number>,
  onError: (error: unknown) => number,
) => (flags: GlobalFlags) => Promise<void>;

export const failed = (): number => exitCodes.failed;

/** For commands that only see that they were used in a wrong way when they look at what was given. */
export function wrongOrFailed(error: unknown): number {
  return error instanceof OnejobError && error.code === 'E_USAGE' ? exitCodes.usage : exitCodes.failed;
}

/** For `run`: the job was never accepted. */
export function notRun(error: unknown): number {
  const mistake = error instanceof OnejobError && (error.code === 'E_USAGE' || error.code === 'E_API_REQUEST');
  return mistake ? exitCodes.usage : exitCodes.notRun;
}

/** Ends the definition of a command: what it does with its arguments and options, as commander gives them. */
export function does<Given extends unknown[]>(
  command: Command,
  act: Act,
  onError: (error: unknown) => number,
  work: (session: Session, ...given: Given) => Promise<number>,
): void {
  global(command.action((...given: Given) => act((session) => work(session, ...given), onError)(command.opts())));
}

/** Adds the options every command takes. */
export function global(command: Command): Command {
  return command
    .optionsGroup('Options of every command:')
    .addHelpOption(new Option('-h, --help', 'show this help'))
    .addOption(new Option('--json', 'print JSON, one value per line'))
    .addOption(new Option('--state-dir <dir>', 'use the daemon with this state directory (ONEJOB_STATE_DIR)'))
    .addOption(new Option('--socket <path>', 'use the daemon that listens on this socket (ONEJOB_SOCKET)'))
    .addOption(new Option('--config <file>', 'read this config (ONEJOB_CONFIG)'));
}

/** Whole number from `min` to `max`. */
export function integer(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (/^[+-]?\d+$/.test(text) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`It must be a whole number from ${min} to ${max}.`);
  };
}

/** Number from `min` to `max`. */
export function number(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (/^\d+(\.\d+)?$/.test(text) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`It must be a number from ${min} to ${max}.`);
  };
}

/** For options that may be given more than once. */
export function collect(value: string, before: readonly string[] | undefined): string[] {
  return [...(before ?? []), value];
}
