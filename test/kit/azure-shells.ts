/** For tests: the shells that images have, and a folder with an agent in it that says how it was started. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Those of this host: each its name, and the words that it is started with. */
export const shells = allShells().filter(([, path = '']) => existsSync(path));

/** Names and how they are started. */
function allShells(): string[][] {
  return [
    ['dash', '/bin/dash'],
    ['bash', '/bin/bash'],
    ['bash as sh', '/bin/bash', '--posix'],
    ['busybox', '/bin/busybox', 'sh'],
  ];
}

export interface Ran {
  readonly code: number;
  readonly out: string;
}

/** As the gate does it: a script on its input, in an environment of which only this is known. */
export function runIn(shell: readonly string[], script: string, env: Readonly<Record<string, string>> = {}, uid?: number): Ran {
  const [, path = '', ...flags] = shell;
  try {
    const out = execFileSync(path, [...flags, '-c', script], {
      env: { PATH: '/usr/bin:/bin', ...env },
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
      ...(uid !== undefined && { uid }),
    });
    return { code: 0, out };
  } catch (error) {
    const { status, stdout } = error as { status: number | null; stdout: string };
    return { code: status ?? -1, out: stdout };
  }
}

/** An agent's root; `listener`: what its program does, in words of `sh`. */
export function agentIn(folder: string, listener: string): string {
  const root = join(folder, "an agent's root");
  mkdirSync(join(root, 'bin'), { recursive: true });
  writeFileSync(join(root, 'bin/Agent.Listener'), `#!/bin/sh\n${listener}\n`, { mode: 0o755 });
  return root;
}
