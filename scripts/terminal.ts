/** What pictures of real runs are taken of: commands typed into a terminal, and what stands on it then. Needs tmux. */
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';

/** A shell with a short prompt. */
const shell = `exec env PS1='\\[\\e[1;32m\\]$\\[\\e[0m\\] ' bash --norc --noprofile`;

export interface TerminalOptions {
  /** Where its socket lies. */
  readonly dir: string;
  /** Where its shell begins; default `dir`. */
  readonly cwd?: string;
  readonly columns: number;
  readonly rows: number;
  readonly env?: Readonly<Record<string, string | undefined>>;
}

export interface Terminal extends Disposable {
  /** Types a command, and resolves once the shell asks for the next. */
  type(command: string): Promise<void>;
  /** What stands on it, with colours, without the prompt that waits for more. */
  shown(): string;
}

/** @throws Error when the shell does not come up in time */
export async function openTerminal({ dir, cwd = dir, columns, rows, env = process.env }: TerminalOptions): Promise<Terminal> {
  const tmux = (...args: string[]) => execFileSync('tmux', ['-S', join(dir, 'tmux'), ...args], { env, encoding: 'utf8' });
  const lines = () => tmux('capture-pane', '-J', '-p').trimEnd().split('\n');
  // A command may wait for a machine.
  const prompt = () => until(async () => lines().at(-1)?.trim() === '$', 120_000);
  const terminal: Terminal = {
    async type(command) {
      tmux('send-keys', '-l', command);
      // Before it is echoed, the prompt that waited for it looks like the next one.
      await until(async () => lines().at(-1)?.trim() === `$ ${command}`);
      tmux('send-keys', 'Enter');
      await prompt();
    },
    shown: () => tmux('capture-pane', '-e', '-p').trimEnd().split('\n').slice(0, -1).join('\n'),
    [Symbol.dispose]() {
      try {
        tmux('kill-server');
      } catch {
        // It never came up, which is told by the error that led here.
      }
    },
  };
  try {
    tmux('-f', '/dev/null', 'new-session', '-d', '-x', `${columns}`, '-y', `${rows}`, '-c', cwd, shell);
    await prompt();
    return terminal;
  } catch (error) {
    terminal[Symbol.dispose]();
    throw error;
  }
}

/** Neither a terminal nor a daemon tells when it shows something else, so this asks again and again. */
export async function until(seen: () => Promise<boolean>, patience = 30_000): Promise<void> {
  const deadline = Date.now() + patience;
  while (!(await seen())) {
    if (Date.now() > deadline) throw new Error('what the picture shows did not come about');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
