/**
 * Clients of AWS that others wrote, installed once and kept outside the repository: AWS's own SDK for JavaScript, and for Python
 * boto3 with moto, a server that plays EC2. Also a command: `node test/support/aws-clients.ts` installs them where Python has pip,
 * and says what came of it.
 */
import { execFile, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { inCache, madeOnce } from './go-program.ts';

const sdkVersion = '3.1169.0';
const pythonPackages = ['boto3==1.44.8', 'moto==5.2.5', 'flask==3.1.3', 'flask-cors==6.0.5'];

/** Compiled parts fit one version of Python. */
const python = spawnSync('python3', ['-c', 'import pip, sys; print("%d.%d" % sys.version_info[:2])'], { encoding: 'utf8' });
const hasPip = python.status === 0;

export const awsClients = {
  /** A folder with `node_modules`. */
  sdk: inCache(`aws-sdk-${sdkVersion}`),
  /** For `PYTHONPATH`. */
  python: inCache(`aws-python-${pythonPackages[0]?.replace('==', '-')}-${hasPip ? python.stdout.trim() : 'none'}`),
};

/** Why they are not there, as a sentence's end; null when they are. */
export function lacksAws(): string | null {
  const missing = Object.values(awsClients).find((path) => !existsSync(path));
  if (missing === undefined) return null;
  const how = hasPip ? 'run "npx node test/support/aws-clients.ts" once' : '"python3" with pip is not installed';
  return `nothing at ${missing}; ${how}`;
}

/** AWS's own SDK. */
export const sdk = (name: string): never => createRequire(join(awsClients.sdk, 'index.js'))(`@aws-sdk/${name}`) as never;

/** @throws Error with what npm or pip said */
export async function installAws(): Promise<void> {
  await madeOnce(awsClients.sdk, async (half) => {
    await mkdir(half);
    await writeFile(join(half, 'package.json'), '{ "private": true }\n');
    const packages = ['client-ec2', 'client-scheduler'].map((name) => `@aws-sdk/${name}@${sdkVersion}`);
    await ran('npm', ['install', '--no-audit', '--no-fund', '--prefix', half, ...packages]);
  });
  await madeOnce(awsClients.python, async (half) => {
    await ran('python3', ['-m', 'pip', 'install', '--quiet', '--no-compile', '--target', half, ...pythonPackages]);
  });
}

async function ran(program: string, args: readonly string[]): Promise<void> {
  const child = execFile(program, args, { cwd: dirname(awsClients.sdk), maxBuffer: 2 ** 26 });
  let said = '';
  for (const stream of [child.stdout, child.stderr])
    stream?.on('data', (text: string) => {
      said += text;
    });
  const [status] = await once(child, 'close');
  if (status !== 0) throw new Error(`"${[program, ...args].join(' ')}" ended with ${status}.\n${said.slice(-2000)}`);
}

if (import.meta.main) {
  const from = Date.now();
  if (lacksAws() !== null && !hasPip) console.log(`Tests with clients of AWS are skipped: ${lacksAws()}.`);
  else {
    await installAws();
    console.log(`${Object.values(awsClients).join(', ')} (${Math.round((Date.now() - from) / 1000)} s)`);
  }
}
