/**
 * Microsoft's own Python clients of Azure, in a virtual environment that is made once and kept for all checkouts of this host. Also a
 * command: `node test/support/azure-clients.ts` makes it where Python is there, and says what came of it.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { hasPython } from './gcp-clients.ts';
import { inCache, madeOnce } from './go-program.ts';

/** Pinned: what they read and refuse is what the stand-in is held to. */
const packages = ['azure-mgmt-compute==39.0.0', 'azure-mgmt-computeschedule==1.1.0', 'azure-mgmt-resource==26.0.0'];
const folder = inCache('azure-clients-39.0.0');

/** Its interpreter. */
export const azurePython = join(folder, 'bin', 'python');

/** Why they are not there, as a sentence's end; null when they are. */
export function lacksAzureClients(): string | null {
  if (existsSync(azurePython)) return null;
  const how = hasPython() ? 'run "npx node test/support/azure-clients.ts" once' : '"python3" is not installed, or has no venv';
  return `nothing at ${folder}; ${how}`;
}

const run = promisify(execFile);

/** Makes it if it is missing: about half a minute, 60 MB. @throws Error with what pip said */
export const installAzureClients = (): Promise<string> =>
  madeOnce(folder, async (half) => {
    await run('python3', ['-m', 'venv', half]);
    await run(join(half, 'bin', 'python'), ['-m', 'pip', 'install', '--quiet', '--no-compile', ...packages], {
      maxBuffer: 2 ** 26,
    });
  });

if (import.meta.main) {
  const from = Date.now();
  if (lacksAzureClients() !== null && !hasPython()) console.log(`Tests with Azure's clients are skipped: ${lacksAzureClients()}.`);
  else console.log(`${await installAzureClients()} (${Math.round((Date.now() - from) / 1000)} s)`);
}
