/**
 * A root file system of Debian 13 with Slurm 24.11, for clusters of that version; also a command: `node test/support/slurm-newer.ts`
 * makes it, which takes a minute, and says what came of it. Nothing stays mounted in it: `slurm.ts` mounts what its programs need in
 * a namespace of theirs.
 */
import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { inCache, madeOnce } from './go-program.ts';

const maker = join(import.meta.dirname, 'slurm-newer.sh');

/** Named by what makes it, so that a change of that has it made anew. */
export const newerSlurm = inCache(`slurm-24.11-${createHash('sha256').update(readFileSync(maker)).digest('hex').slice(0, 12)}`);

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksNewerSlurm(): string | null {
  return existsSync(newerSlurm)
    ? null
    : `nothing at ${newerSlurm}; ${cannotMake() ?? 'run "npx node test/support/slurm-newer.ts" once'}`;
}

/** Why it cannot be made here, as a sentence's end; null when it can. */
function cannotMake(): string | null {
  if (process.getuid?.() !== 0) return 'only root can make it';
  const look = 'for name; do command -v "$name" >/dev/null || echo "$name"; done';
  const missing = spawnSync('sh', ['-c', look, 'sh', 'debootstrap', 'apt-get', 'unshare'], { encoding: 'utf8' }).stdout.trim();
  return missing === '' ? null : `not installed to make it: ${missing.replaceAll('\n', ', ')}`;
}

/** Makes it if it is missing and can be made; why it is still missing, as a sentence's end. @throws Error with what the script said */
export async function makeNewerSlurm(): Promise<string | null> {
  if (existsSync(newerSlurm) || cannotMake() !== null) return lacksNewerSlurm();
  await madeOnce(newerSlurm, async (half) => {
    const words = ['--mount', '--propagation', 'private', maker, half];
    await promisify(execFile)('unshare', words, { maxBuffer: 2 ** 26 }).catch(
      (error: Error & { stdout: string; stderr: string }) => {
        throw new Error(`${maker} failed:\n${error.stdout.slice(-2_000)}${error.stderr.slice(-2_000)}`);
      },
    );
  });
  return null;
}

if (import.meta.main) {
  const from = Date.now();
  const why = await makeNewerSlurm();
  if (why === null) console.log(`${newerSlurm} (${Math.round((Date.now() - from) / 1000)} s)`);
  else console.log(`Tests with a newer Slurm are skipped: ${why}.`);
}
