/**
 * Google's own Python client of Compute Engine and the discovery documents of its API, from PyPI, once. Also a command:
 * `node test/support/gcp-clients.ts` fetches them where Python is there, and says what came of it.
 */
import { execFile, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { inCache, madeOnce } from './go-program.ts';

const client = 'google-cloud-compute==1.57.0';
/** It has the documents of all of Google's APIs as files. */
const documents = 'google-api-python-client==2.202.0';
const wanted = ['compute.v1.json', 'cloudresourcemanager.v3.json'];

const place = inCache('gcp-clients-1.57.0-2.202.0');

export const gcpClients = {
  /** For `PYTHONPATH`. */
  library: join(place, 'lib'),
  discovery: (name: 'compute.v1' | 'cloudresourcemanager.v3'): string => join(place, `${name}.json`),
};

export const hasPython = (): boolean => spawnSync('python3', ['-c', 'import venv, ensurepip']).status === 0;

/** Why they are not there, as a sentence's end; null when they are. */
export function lacksGcpClients(): string | null {
  if (existsSync(place)) return null;
  const how = hasPython() ? 'run "npx node test/support/gcp-clients.ts" once' : '"python3" with venv is not installed to fetch it';
  return `nothing at ${place}; ${how}`;
}

/** Fetches what is missing: about a minute, 130 MB. @throws Error with what pip said */
export const fetchGcpClients = (): Promise<string> =>
  madeOnce(place, async (half) => {
    const [tools, wheels] = [join(half, 'tools'), join(half, 'wheels')];
    await mkdir(half, { recursive: true });
    await run('python3', ['-m', 'venv', tools]);
    const pip = (...args: readonly string[]) => run(join(tools, 'bin/python'), ['-m', 'pip', '--quiet', ...args]);
    await pip('install', '--target', join(half, 'lib'), client);
    await pip('download', '--no-deps', '--dest', wheels, documents);
    const unpack = [
      'import glob, os, sys, zipfile',
      'archive = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])',
      'for name in sys.argv[3:]:',
      '    with open(os.path.join(sys.argv[2], name), "wb") as file:',
      '        file.write(archive.read("googleapiclient/discovery_cache/documents/" + name))',
    ].join('\n');
    await run('python3', ['-c', unpack, wheels, half, ...wanted]);
    for (const folder of [tools, wheels]) await rm(folder, { recursive: true });
  });

async function run(program: string, args: readonly string[]): Promise<void> {
  await promisify(execFile)(program, args, { maxBuffer: 2 ** 26 });
}

if (import.meta.main) {
  const from = Date.now();
  if (lacksGcpClients() !== null && !hasPython()) console.log(`Tests with Google's clients are skipped: ${lacksGcpClients()}.`);
  else console.log(`${await fetchGcpClients()} (${Math.round((Date.now() - from) / 1000)} s)`);
}
