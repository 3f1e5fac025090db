/**
 * Testcontainers for Node, fetched once and kept outside the repository. Also a command: `node test/support/testcontainers.ts` fetches it.
 * Its reaper, Ryuk, is no package: the module proxy does not serve it. A test plays one.
 */
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { inCache, madeOnce } from './go-program.ts';

const version = '12.2.0';

/** A folder with `node_modules`. */
export const testcontainers = inCache(`testcontainers-${version}`);

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksTestcontainers(): string | null {
  return existsSync(testcontainers) ? null : `nothing at ${testcontainers}; run "npx node test/support/testcontainers.ts" once`;
}

/** Fetches it if it is missing: a minute, 48 MB. @throws Error with what npm said */
export async function fetchTestcontainers(): Promise<string> {
  return madeOnce(testcontainers, async (half) => {
    await mkdir(half);
    await writeFile(`${half}/package.json`, '{ "private": true }\n');
    // What it compiles is for SSH.
    const words = ['install', '--no-audit', '--no-fund', '--ignore-scripts', '--prefix', half, `testcontainers@${version}`];
    await promisify(execFile)('npm', words, { maxBuffer: 2 ** 26 });
  });
}

if (import.meta.main) console.log(await fetchTestcontainers());
