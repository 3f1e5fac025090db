/** Programs built with Go from the module proxy, once, and kept outside the repository for all checkouts of this host. */
import { execFile, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isAlive } from './child.ts';

export const hasGo = (): boolean => spawnSync('go', ['version']).status === 0;

/** Where programs are, or would be. */
export const inCache = (name: string): string => join(tmpdir(), 'onejob-ci-cache', name);

/** Makes the file or folder at `path` unless it is there: by one process at a time, and in place only when whole. */
export async function madeOnce(path: string, make: (half: string) => Promise<void>): Promise<string> {
  if (existsSync(path)) return path;
  await mkdir(join(path, '..'), { recursive: true });
  await using _lock = await locked(`${path}.lock`);
  if (existsSync(path)) return path;
  const half = `${path}.${process.pid}`;
  try {
    await make(half);
    await rename(half, path).catch((error: unknown) => {
      // Another process has made it meanwhile.
      if (!existsSync(path)) throw error;
    });
  } finally {
    await rm(half, { force: true, recursive: true });
  }
  return path;
}

/** Runs Go in `cwd`; what it printed. @throws Error with what it said */
export async function go(args: readonly string[], cwd: string, env: Readonly<Record<string, string>> = {}): Promise<string> {
  const child = execFile('go', args, {
    cwd,
    maxBuffer: 2 ** 26,
    env: { ...process.env, CGO_ENABLED: '0', GOFLAGS: '-mod=readonly -buildvcs=false', GOWORK: 'off', ...env },
  });
  let [printed, said] = ['', ''];
  child.stdout?.on('data', (text: string) => {
    printed += text;
  });
  child.stderr?.on('data', (text: string) => {
    said += text;
  });
  const [status] = await once(child, 'close');
  if (status !== 0) throw new Error(`"go ${args.join(' ')}" ended with ${status}.\n${said.slice(-2000)}`);
  return printed;
}

/** Folder of a module, downloaded if necessary. */
export async function moduleFolder(module: string): Promise<string> {
  const { Dir: dir } = JSON.parse(await go(['mod', 'download', '-json', module], tmpdir(), { GOFLAGS: '' }));
  return String(dir);
}

/** A file that only one can make, with its process in it. Who finds it looks again: the kernel tells nobody when it goes. */
async function locked(path: string): Promise<AsyncDisposable> {
  for (;;) {
    try {
      await writeFile(path, String(process.pid), { flag: 'wx' });
      return { [Symbol.asyncDispose]: () => rm(path, { force: true }) };
    } catch (error) {
      if (!(error instanceof Error && 'code' in error && error.code === 'EEXIST')) throw error;
    }
    const holder = Number(await readFile(path, 'utf8').catch(() => ''));
    const age = Date.now() - (await stat(path).catch(() => ({ mtimeMs: Date.now() }))).mtimeMs;
    // Empty for a moment, between its making and its writing.
    if (holder > 0 ? !isAlive(holder) : age > 10_000) await rm(path, { force: true });
    else await new Promise((resolve) => setTimeout(resolve, 500));
  }
}
