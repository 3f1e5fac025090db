/** What the definitions of commands share: the options of every command, and parsers of option values. */
import { Command, InvalidArgumentError, Option } from 'commander';
import { hasCode } from '../../base/errors.ts';
import { parseDuration } from '../../base/units.ts';
import { exitCodes } from '../exit.ts';
import type { GlobalFlags, Session } from '../session.ts';

/** Makes an action of `work`: gives it a session, and turns its errors into text and an exit code. */
export type Act = (
  work: (session: Session) => Promise<number>,
  onError: (error: unknown) => number,
) => (flags: GlobalFlags) => Promise<void>;

export const failed = (): number => exitCodes.failed;

/** For commands that check their arguments themselves. */
export function wrongOrFailed(error: unknown): number {
  return hasCode(error, 'E_USAGE') ? exitCodes.usage : exitCodes.failed;
}

/** For `run`: the job was never accepted. */
export function notRun(error: unknown): number {
  return hasCode(error, 'E_USAGE', 'E_API_REQUEST') ? exitCodes.usage : exitCodes.notRun;
}

/** A command of onejob. */
export class Cli extends Command {
  readonly #act: Act;
  #isLocal = false;

  constructor(name: string | undefined, act: Act) {
    super(name);
    this.#act = act;
  }

  override createCommand(name?: string): Cli {
    return new Cli(name, this.#act);
  }

  /** Text at the end of its help. */
  after(text: string): this {
    return this.addHelpText('after', text);
  }

  /** It has nothing to do with a daemon, or only with this host's. */
  local(): this {
    this.#isLocal = true;
    return this;
  }

  /** What the command line says about the host, before or after the command; null: this one. */
  #host(): string | null | undefined {
    let root: Command = this;
    while (root.parent !== null) root = root.parent;
    const before: string | undefined = root.opts().host;
    if (this.#isLocal) {
      if (before !== undefined) this.error('error: this command is only about the host it is typed on; leave out --host');
      return null;
    }
    const { host = before, socket, stateDir } = this.opts();
    if (host !== undefined && (socket ?? stateDir) !== undefined)
      this.error('error: --socket and --state-dir are of this host; write --host ssh://HOST/PATH/OF/SOCKET');
    return host;
  }

  /** Options that name pipelines. */
  pipelines(lead = ''): this {
    return this.option('--organization <slug>', `${lead}organisation of the pipelines; may be repeated`, collect)
      .addOption(new Option('--organisation <slug>').argParser(collect).hideHelp())
      .option('--pipeline <slug>', "its slug, or ORGANISATION/SLUG, or '*' for all; may be repeated", collect);
  }

  /** Ends a definition. `work` gets arguments and options as commander gives them. `more`: flags from elsewhere. */
  does<Given extends unknown[]>(
    onError: (error: unknown, ...given: unknown[]) => number,
    work: (session: Session, ...given: Given) => Promise<number>,
    more: (...given: unknown[]) => GlobalFlags = () => ({}),
  ): void {
    this.action((...given: Given) => {
      const command = (session: Session) => work(session, ...given);
      const run = this.#act(command, (error) => onError(error, ...given));
      return run({ ...this.opts(), ...more(...given), host: this.#host() });
    })
      .optionsGroup('Options of every command:')
      .addHelpOption(new Option('-h, --help', 'show this help'))
      .addOption(new Option('--json', 'print JSON, one value per line'))
      .addOption(new Option('--state-dir <dir>', 'use the daemon with this state directory (ONEJOB_STATE_DIR)'))
      .addOption(new Option('--socket <path>', 'use the daemon that listens on this socket (ONEJOB_SOCKET)'))
      .addOption(new Option('--config <file>', 'read this config (ONEJOB_CONFIG)'));
    if (!this.#isLocal) this.addOption(hostOption());
  }
}

/** Whole number from `min` to `max`. */
export function integer(min: number, max: number): (text: string) => number {
  return number(min, max, /^[+-]?\d+$/, 'a whole number');
}

/** Number from `min` to `max`. */
export function number(min: number, max: number, form = /^\d+(\.\d+)?$/, what = 'a number'): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (form.test(text) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`It must be ${what} from ${min} to ${max}.`);
  };
}

export function hostOption(): Option {
  return new Option('--host <host>', "use another host's daemon: ssh://[USER@]HOST, or a name in hosts.yml (ONEJOB_HOST)");
}

/** For commands whose first argument may name the config. */
export function configFile(file?: unknown): GlobalFlags {
  return typeof file === 'string' ? { config: file } : {};
}

/** For options that may be given more than once. */
export function collect(value: string, before: readonly string[] | undefined): string[] {
  return [...(before ?? []), value];
}

/** ms */
export function duration(text: string): number {
  const parsed = parseDuration(text);
  if (!parsed.ok) throw new InvalidArgumentError(`${parsed.why}.`);
  return parsed.value;
}
