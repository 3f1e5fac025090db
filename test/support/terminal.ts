/** A command on a terminal of its own, for what is only shown there: util-linux's `script` lends it one. */
import { join } from 'node:path';
import { type Child, startChild } from './child.ts';
import type { Home } from './onejob.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

/** What is typed into it to interrupt the command. */
export const ctrlC = '\u0003';

/** Starts `onejob ARGS…` on a wide terminal; what it draws comes as its output. */
export function inTerminal(here: Home, args: readonly string[]): Child {
  const words = [program, ...args].map((word) => `'${word.replaceAll("'", "'\\''")}'`);
  const command = `stty cols 500; exec ${words.join(' ')}`;
  return startChild('script', ['--quiet', '--return', '--flush', '--command', command, '/dev/null'], {
    cwd: here.cwd,
    env: { ...here.env, TERM: 'xterm', SHELL: '/bin/sh' },
  });
}
