/**
 * Ansible, in a virtual environment that is made once and kept for all checkouts of this host. Also a command:
 * `node test/support/ansible.ts` makes it where Python is there.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { hasPython } from './gcp-clients.ts';
import { inCache, madeOnce } from './go-program.ts';

const version = '2.19.0';
const folder = inCache(`ansible-${version}`);
export const ansiblePlaybook = join(folder, 'bin', 'ansible-playbook');

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksAnsible(): string | null {
  if (existsSync(ansiblePlaybook)) return null;
  const how = hasPython() ? 'run "npx node test/support/ansible.ts" once' : '"python3" is not installed, or has no venv';
  return `nothing at ${folder}; ${how}`;
}

const run = promisify(execFile);

/** Makes it if it is missing: about half a minute, 60 MB. @throws Error with what pip said */
export const installAnsible = (): Promise<string> =>
  madeOnce(folder, async (half) => {
    await run('python3', ['-m', 'venv', half]);
    await run(join(half, 'bin', 'python'), ['-m', 'pip', 'install', '--quiet', '--no-compile', `ansible-core==${version}`]);
    // Its programs name the interpreter by the path where they were installed.
    await run('sed', ['-i', `1s|${half}|${folder}|`, join(half, 'bin', 'ansible-playbook')]);
  });

if (import.meta.main) {
  if (lacksAnsible() !== null && !hasPython()) console.log(`Tests with Ansible are skipped: ${lacksAnsible()}.`);
  else console.log(await installAnsible());
}
