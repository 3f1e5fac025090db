/**
 * Clients of AWS that others wrote, fetched once and kept outside the repository: AWS's own SDK for JavaScript, and for Python
 * boto3 with moto, a server that plays EC2, and parliament, which knows the actions and conditions of IAM. Also a command: `node test/support/aws-clients.ts` fetches them where Python is there,
 * and says what came of it.
 */
import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { hasPython } from './gcp-clients.ts';
import { inCache, madeOnce } from './go-program.ts';

const sdkVersion = '3.1169.0';
const pythonPackages = [
  'boto3==1.44.8',
  'moto==5.2.5',
  'flask==3.1.3',
  'flask-cors==6.0.5',
  'parliament==1.6.4',
  'setuptools==75.8.0',
];

/** Compiled parts fit one version of Python. */
const version =
  spawnSync('python3', ['-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], { encoding: 'utf8' }).stdout ?? '';

export const awsClients = {
  /** A folder with `node_modules`. */
  sdk: inCache(`aws-sdk-${sdkVersion}`),
  /** For `PYTHONPATH`. */
  python: inCache(
    `aws-python-${version.trim()}-${createHash('sha256').update(pythonPackages.join(' ')).digest('hex').slice(0, 12)}`,
  ),
};

/** Why they are not there, as a sentence's end; null when they are. */
export function lacksAwsClients(): string | null {
  const missing = Object.values(awsClients).find((path) => !existsSync(path));
  if (missing === undefined) return null;
  const how = hasPython() ? 'run "npx node test/support/aws-clients.ts" once' : '"python3" with venv is not installed to fetch it';
  return `nothing at ${missing}; ${how}`;
}

/** AWS's own SDK. */
export const sdk = (name: string): never => createRequire(join(awsClients.sdk, 'index.js'))(`@aws-sdk/${name}`) as never;

/** Fetches what is missing: about a minute, 130 MB. @throws Error with what npm or pip said */
export async function fetchAwsClients(): Promise<void> {
  await madeOnce(awsClients.sdk, async (half) => {
    await mkdir(half);
    await writeFile(join(half, 'package.json'), '{ "private": true }\n');
    const packages = ['client-ec2', 'client-scheduler'].map((name) => `@aws-sdk/${name}@${sdkVersion}`);
    await run('npm', ['install', '--no-audit', '--no-fund', '--prefix', half, ...packages]);
  });
  await madeOnce(awsClients.python, async (half) => {
    const tools = `${half}.tools`;
    await run('python3', ['-m', 'venv', tools]);
    await run(join(tools, 'bin/python'), ['-m', 'pip', 'install', '--quiet', '--no-compile', '--target', half, ...pythonPackages]);
    await rm(tools, { recursive: true });
  });
}

async function run(program: string, args: readonly string[]): Promise<void> {
  await promisify(execFile)(program, args, { maxBuffer: 2 ** 26 });
}

if (import.meta.main) {
  const from = Date.now();
  if (lacksAwsClients() !== null && !hasPython()) console.log(`Tests with clients of AWS are skipped: ${lacksAwsClients()}.`);
  else {
    await fetchAwsClients();
    console.log(`${Object.values(awsClients).join(', ')} (${Math.round((Date.now() - from) / 1000)} s)`);
  }
}
