/** An agent as a program: taken out of its package, and asked for its version before any job depends on it. */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { open, rm } from 'node:fs/promises';
import { basename } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { extract } from 'tar-stream';
import { systemClock } from '../../clock.ts';
import { deadline } from '../../core/clock.ts';
import { codeOf } from '../../errors.ts';
import { limited } from './limited.ts';

/** Bytes of a program; Buildkite's 3.137 has 71 MB. */
const largestProgram = 512 * 2 ** 20;
/** Bytes of an unpacked package. */
const largestPackage = 2 ** 30;

/** Writes the program to `to`, a new file that nobody may change. Returns its SHA-256. @throws Error the reason */
export async function writeProgram(from: AsyncIterable<unknown>, to: string, signal: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  const tooLarge = () => new Error(`the program has more than ${largestProgram} bytes`);
  const seen = limited(largestProgram, tooLarge, (piece) => hash.update(piece));
  // Flushed, so that after a crash a folder with its name is complete.
  await pipeline(from, seen, createWriteStream(to, { flags: 'wx', mode: 0o555, flush: true }), { signal });
  return hash.digest('hex');
}

/**
 * Writes the program from a `.tar.gz`: the first file with that name, in any folder. @throws Error if the archive is invalid or
 * incomplete, or has no such file
 */
export async function unpackProgram(packed: string, name: string, to: string, signal: AbortSignal): Promise<string> {
  const entries = extract();
  const bounded = limited(largestPackage, () => new Error(`it unpacks to more than ${largestPackage} bytes`));
  const reading = pipeline(createReadStream(packed), createGunzip(), bounded, entries, { signal });
  let found: string | null = null;
  try {
    for await (const entry of entries) {
      const isIt = entry.header.type === 'file' && basename(entry.header.name) === name;
      if (isIt && found === null) found = await writeProgram(entry, to, signal);
      else entry.resume();
    }
    await reading;
  } catch (error) {
    await reading.catch(() => {});
    await rm(to, { force: true });
    signal.throwIfAborted();
    if (codeOf(error) === 'Z_BUF_ERROR' || /unexpected end/i.test(String(error))) throw new Error('it is incomplete');
    if (codeOf(error).startsWith('Z_') || /invalid tar/i.test(String(error))) throw new Error('it is not a .tar.gz file');
    throw error;
  }
  if (found === null) throw new Error(`it contains no file "${name}"`);
  return found;
}

/** Numbers of ELF's e_machine (elf.h), by Node's names of architectures. */
const machines: Readonly<Record<string, number>> = { ia32: 3, ppc64: 21, s390x: 22, arm: 40, x64: 62, arm64: 183, riscv64: 243 };

/** Why this is not a program for `arch`, as the end of a sentence; null: no problem. */
export async function programProblem(path: string, arch: string): Promise<string | null> {
  await using file = await open(path);
  const { buffer, bytesRead } = await file.read(Buffer.alloc(20), 0, 20, 0);
  const head = buffer.subarray(0, bytesRead);
  if (head.subarray(0, 2).toString('latin1') === '#!') return null;
  if (head.length < 20 || head.subarray(0, 4).toString('latin1') !== '\x7fELF')
    return `it is not an executable: it begins with ${JSON.stringify(head.toString('latin1'))}`;
  const machine = head[5] === 2 ? head.readUInt16BE(18) : head.readUInt16LE(18);
  const wanted = machines[arch];
  if (wanted === undefined || machine === wanted) return null;
  const named = Object.entries(machines).find(([, number]) => number === machine)?.[0] ?? `machine ${machine}`;
  return `it is built for ${named}, and this host is ${arch}`;
}

const nobody = 65_534;

/**
 * The version that the program reports, without what follows a `+`. It sees no environment. It came from elsewhere, so root runs it
 * as nobody, through a descriptor because nobody cannot enter its folder. `patience`: ms. @throws Error the reason
 */
export async function versionOf(path: string, patience: number, signal: AbortSignal): Promise<string> {
  signal.throwIfAborted();
  await using file = await open(path);
  signal.throwIfAborted();
  using limit = deadline(systemClock, patience, signal);
  const child = spawn('/proc/self/fd/3', ['--version'], {
    ...{ argv0: basename(path), env: {}, cwd: '/', detached: true },
    ...(process.getuid?.() === 0 && { uid: nobody, gid: nobody }),
    stdio: ['ignore', 'pipe', 'pipe', file.fd],
  });
  const kill = (): void => {
    try {
      // With everything it started.
      if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL');
    } catch {}
  };
  limit.signal.addEventListener('abort', kill, { once: true });
  let said = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on('data', (bytes: Buffer) => {
      if (said.length < 4_096) said += bytes.toString('utf8');
    });
  }
  try {
    const code = await new Promise<number | string>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (exit, how) => resolve(exit ?? how ?? 'nothing'));
    });
    signal.throwIfAborted();
    if (limit.passed) throw new Error(`"--version" took more than ${patience / 1000} s`);
    const version = /\bversion v?(\d+\.\d+\.\d+[^\s,+]*)/.exec(said)?.[1];
    if (code === 0 && version !== undefined) return version;
    const line = said.trim().split('\n')[0]?.slice(0, 200) ?? '';
    throw new Error(`"--version" ended with exit code ${code} and printed ${JSON.stringify(line)}`);
  } catch (error) {
    if (codeOf(error) === 'EACCES')
      throw new Error(`${path} cannot be executed; is its file system mounted noexec?`, { cause: error });
    throw error;
  } finally {
    kill();
  }
}
