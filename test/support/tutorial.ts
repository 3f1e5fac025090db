/** A tutorial of the docs, followed as a new user does: every command, in its order, in one terminal. */
import { spawnSync } from 'node:child_process';
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { type Child, untilGone } from './child.ts';
import { notPrinted, stepsOf } from './page.ts';

export interface Tutorial {
  readonly page: string;
  /** A shell that reads commands, as the user of the page. */
  readonly shell: Child;
  /** Of the user, on this machine. */
  readonly home: string;
  /** Names of the page, and what they are here. */
  readonly places: readonly (readonly [name: string, here: string])[];
  /** The config of the page, as it has to be here; default: as it is. */
  readonly configOf?: (text: string) => string;
  /** Where it is written, below `home`; default: the place of a user's own config. */
  readonly configFile?: string;
  /** What goes on in a terminal of its own; default: `onejob up`. */
  readonly inBackground?: RegExp;
  /** What varies, in the page and in what is printed alike. */
  readonly variables: readonly (readonly [pattern: RegExp, word: string])[];
  /** What shows a state that is still to come is looked at until it is there. */
  readonly looks: RegExp;
  /** Of these, lines may come in any order. */
  readonly inAnyOrder: RegExp;
  /** Commands that are not run, each with the reason. */
  readonly notRun?: Readonly<Record<string, string>>;
  /** Others exit with 0. */
  readonly exitCodes?: Readonly<Record<string, number>>;
}

/** @returns the terminal, as the page leaves it */
export async function followTutorial(tutorial: Tutorial): Promise<Terminal> {
  const { page, home, places, configOf = (text) => text, variables, looks, inAnyOrder, notRun = {}, exitCodes = {} } = tutorial;
  const { configFile = '.config/onejob/config.yml', inBackground = /^onejob up$/ } = tutorial;
  const toHere = (text: string): string => places.reduce((now, [name, here]) => now.replaceAll(name, here), text);
  const toPage = (text: string): string => places.reduce((now, [name, here]) => now.replaceAll(here, name), text);
  const steady = (text: string): string => variables.reduce((now, [pattern, word]) => now.replace(pattern, word), text);
  const terminal = new Terminal(tutorial.shell);
  const others: OtherTerminal[] = [];
  const passed = new Set<string>();
  /** What another terminal shows, from a place on, until it has all that the page says. */
  const shows = (other: OtherTerminal, typed: string, prints: string): Promise<void> => {
    const missing = (): string[] => notPrinted(steady(toPage(other.news())), steady(prints), true);
    return expect.poll(missing, { message: typed, timeout: 60_000 }).toEqual([]);
  };
  for (const step of stepsOf(page)) {
    if (step.kind === 'config') {
      writeFileSync(join(home, configFile), configOf(toHere(step.text)));
      continue;
    }
    if (step.kind === 'line') {
      const other = others.at(-1);
      if (other === undefined) throw new Error(`${page} has no program that reads "${step.line}".`);
      other.type(step.line);
      await shows(other, step.line, step.prints);
      continue;
    }
    const { command, prints } = step;
    const missing = async (): Promise<unknown> => {
      const { output, code } = await terminal.type(toHere(command));
      const said = steady(toPage(output));
      const not = notPrinted(said, steady(prints), !inAnyOrder.test(command));
      // A red test shows both.
      return { missing: not, instead: not.length === 0 ? '' : said, code };
    };
    const right = { missing: [], instead: '', code: exitCodes[command] ?? 0 };
    if (command in notRun) passed.add(command);
    else if (inBackground.test(command)) {
      const other = await OtherTerminal.open(terminal, toHere(command), join(home, `terminal-${others.length + 2}`));
      others.push(other);
      await shows(other, command, prints);
    } else if (looks.test(command)) await expect.poll(missing, { message: command, interval: 500 }).toEqual(right);
    else expect(await missing(), command).toEqual(right);
  }
  expect(Object.keys(notRun).filter((command) => !passed.has(command))).toEqual([]);
  return terminal;
}

/** Ends the shell of a tutorial, which leads a session of its own (`setsid`), and all that goes on in its other terminals. */
export async function endSession(shell: Child): Promise<void> {
  const members = [...pgrep('-s', shell.pid), ...descendants(shell.pid)];
  // Each terminal ends what runs in it.
  spawnSync('pkill', ['-TERM', '-s', String(shell.pid)]);
  await shell.kill();
  for (const pid of members) await untilGone(pid);
}

function pgrep(by: '-s' | '-P', pid: number): number[] {
  const found = spawnSync('pgrep', [by, String(pid)]).stdout.toString();
  return found.split('\n').filter(Boolean).map(Number);
}

/** What runs in its other terminals, each a session of its own. */
function descendants(pid: number): number[] {
  return pgrep('-P', pid).flatMap((child) => [child, ...descendants(child)]);
}

/** A program in a terminal of its own, which goes on while others are used. */
class OtherTerminal {
  readonly #files: { readonly typed: string; readonly shown: string };
  #seen = 0;

  private constructor(files: { readonly typed: string; readonly shown: string }) {
    this.#files = files;
  }

  static async open(from: Terminal, command: string, at: string): Promise<OtherTerminal> {
    const files = { typed: `${at}.in`, shown: `${at}.out` };
    writeFileSync(`${at}.sh`, command);
    // Opened for both, so that there is never an end of it. A daemon colours what it says on a terminal.
    await from.type(
      `mkfifo ${files.typed}; : >${files.shown}; { script -qfc 'stty -echo; . ${at}.sh' /dev/null <>${files.typed} >${files.shown} 2>&1 & }`,
    );
    return new OtherTerminal(files);
  }

  type(line: string): void {
    this.#seen = this.#all().length;
    appendFileSync(this.#files.typed, `${line}\n`);
  }

  /** What it has shown since the last line was typed. */
  news(): string {
    return this.#all().slice(this.#seen);
  }

  #all(): string {
    return readFileSync(this.#files.shown, 'utf8');
  }
}

/** A shell that keeps its folder and variables between commands, as a terminal does. */
export class Terminal {
  readonly #shell: Child;
  #count = 0;

  constructor(shell: Child) {
    this.#shell = shell;
    shell.typeMore('exec 2>&1\n');
  }

  /** What it printed, and its exit code. */
  async type(command: string): Promise<{ output: string; code: number }> {
    const mark = `--- end of ${++this.#count}:`;
    const from = this.#shell.stdoutBytes.length;
    this.#shell.typeMore(`{ ${command}\n} </dev/null\nprintf '\\n${mark} %s\\n' "$?"\n`);
    const [, code] = await this.#shell.says(new RegExp(`^${mark} (\\d+)$`, 'm'));
    const said = this.#shell.stdoutBytes.subarray(from).toString();
    return { output: said.slice(0, said.indexOf(`\n${mark}`)), code: Number(code) };
  }
}
