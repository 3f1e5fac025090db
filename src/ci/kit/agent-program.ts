/**
 * An agent's program as a file of this host, to be mounted read-only into any image. `ready` has checked it: its checksum, its
 * architecture, and the version that it reports. A file never changes under its name; another program gets another name.
 *
 * Sandboxes mount a link that is named by what config says, and that leads to the program. So the recipe of a sandbox is known before
 * the program is, and after a restart the standbys are still current.
 *
 *     <dir>/at-<mark>                          a link to the folder of the program that config means
 *     <dir>/<name>-<version>-<sha>/<name>      0555; `<sha>`: beginning of the SHA-256 of the file it came in
 *     <dir>/<name>-<version>-<sha>/source.json where it came from, and its own checksum
 *     <dir>/part-<pid>-…/                      what is on its way, or being checked
 */
import { spawn } from 'node:child_process';
import { createHash, hash, randomBytes } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { lstat, lutimes, mkdir, open, readdir, readFile, readlink, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { extract } from 'tar-stream';
import { z } from 'zod';
import { codeOf, type Failure, OnejobError, toFailure } from '../../base/errors.ts';
import { limited } from '../../http/limited.ts';
import { getPackage, hashOf } from '../../images/agent-package.ts';
import { type ReceiveOptions, reasonOf } from '../../images/receive.ts';
import type { AgentPackageConfig } from '../../schema/service-keys.ts';
import { subdirectory } from '../../store/directory.ts';
import { isReachable } from '../../system/file-server.ts';
import { removeTree } from '../../system/foreign-tree.ts';
import { killGroup, listen } from '../../system/group.ts';
import { jsonOf } from '../../system/json.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { OpenParts } from '../parts.ts';

/** A project that releases an agent as a program. */
export interface AgentProject {
  readonly name: string;
  readonly type: string;
  /** Version that onejob uses when config names neither a version nor a file. */
  readonly pinned: string;
  /** Address of a release; `arch` as Node names it. @throws OnejobError E_AGENT_PACKAGE when there is none for it */
  url(version: string, arch: string): string;
  /** The checksum that the project publishes for a file, lower-case hex; null: it publishes none. @throws OnejobError E_AGENT_PACKAGE */
  sum(from: string, options: Omit<ReceiveOptions, 'limit'>): Promise<string | null>;
}

export interface AgentProgramOptions {
  readonly project: AgentProject;
  readonly config: AgentPackageConfig;
  /** Folder for programs, in the state directory; made when it is needed. */
  readonly dir: string;
  readonly wall: () => number;
  /** Takes a line for each step that takes time. */
  readonly progress?: (line: string) => void;
  /** Takes problems that do not stop the work, for the log. */
  readonly warn?: (text: string, fields: Record<string, unknown>) => void;
  /** Node's name of the architecture of sandboxes; default: this host's. */
  readonly arch?: string;
  /** ms without data from a server, and for the program to report its version; default 60000, and 20000. */
  readonly patience?: number;
}

export type AgentProgramState =
  /** Each image has its own. */
  | { readonly kind: 'image' }
  /** Not needed yet. */
  | { readonly kind: 'unknown' }
  | { readonly kind: 'preparing' }
  | ({ readonly kind: 'ready' } & Program)
  | { readonly kind: 'failed'; readonly failure: Failure };

interface Program {
  readonly path: string;
  readonly version: string;
  readonly sha256: string;
}

/** Where a program came from: `packed` is the SHA-256 of the file that `from` names, `program` its own. */
const source = z.object({ from: z.string(), version: z.string(), packed: z.string(), program: z.string() });
type Source = z.infer<typeof source>;

/** ms. An unused link is removed after this, with its program. */
const keptFor = 30 * 86_400_000;

export class AgentProgram {
  readonly #options: AgentProgramOptions;
  readonly #arch: string;
  readonly #progress: (line: string) => void;
  readonly #mark: string;
  readonly #link: string;
  #state: AgentProgramState;

  constructor(options: AgentProgramOptions) {
    this.#options = options;
    this.#arch = this.#options.arch ?? process.arch;
    this.#progress = this.#options.progress ?? (() => {});
    this.#mark = hash('sha256', JSON.stringify([this.#options.project.pinned, this.#options.config])).slice(0, 12);
    this.#link = join(this.#options.dir, `at-${this.#mark}`);
    this.#state = { kind: this.#options.config.from === 'image' ? 'image' : 'unknown' };
  }

  /** Folder with the program once `ready` has resolved; null: the image has its own. */
  get folder(): string | null {
    return this.#options.config.from === 'image' ? null : this.#link;
  }

  get state(): AgentProgramState {
    return this.#state;
  }

  /** The checked program's path; null: the image has its own. @throws OnejobError E_AGENT_PACKAGE, or the reason of `signal` */
  async ready(signal: AbortSignal): Promise<string | null> {
    if (this.#options.config.from === 'image') return null;
    const before = this.#state;
    this.#state = { kind: 'preparing' };
    try {
      const found = await this.#install(signal);
      await this.#lead(found);
      await this.#prune();
      this.#state = { kind: 'ready', ...found };
      return found.path;
    } catch (error) {
      // An aborted try says nothing about the agent.
      this.#state = signal.aborted ? before : { kind: 'failed', failure: toFailure(error) };
      throw error;
    }
  }

  /** `version` null: any. */
  #wanted(): { readonly from: string; readonly version: string | null } {
    if (this.#options.config.from !== null) return { from: this.#options.config.from, version: this.#options.config.version };
    const version = this.#options.config.version ?? this.#options.project.pinned;
    return { from: this.#options.project.url(version, this.#arch), version };
  }

  #failure(why: string, more: { hint?: string; retry?: boolean; cause?: unknown } = {}): OnejobError {
    const { from, version } = this.#wanted();
    const what = version === null ? 'the agent' : `the agent ${version}`;
    return new OnejobError('E_AGENT_PACKAGE', `Cannot use ${what} from ${from}: ${why}.`, {
      hint: `Check version, from and sha256 in services.<name>.agent, or name a program: agent: { from: /path/to/${this.#options.project.name} }.`,
      ...more,
    });
  }

  async #isWhole(folder: string, about: Source, signal: AbortSignal): Promise<boolean> {
    const there = await sourceOf(folder);
    if (there === null || there.program !== about.program || there.from !== about.from) return false;
    const found = await hashOf(join(folder, this.#options.project.name), signal).catch(() => null);
    signal.throwIfAborted();
    return found === about.program;
  }

  /** The program that the link leads to, if it came from there and is unchanged. A file of this host is always read. */
  async #findProgram(from: string, signal: AbortSignal): Promise<Program | null> {
    const folder = await readlink(this.#link).catch(() => null);
    const about = folder === null ? null : await sourceOf(folder);
    if (folder === null || about === null || about.from !== from) return null;
    const path = join(folder, this.#options.project.name);
    if (await this.#isWhole(folder, about, signal)) return { path, version: about.version, sha256: about.program };
    this.#options.warn?.('the agent on disk is damaged; fetching it again', { path });
    return null;
  }

  /** Fetches the program that config names into `part`. Returns its SHA-256, and that of the file it came in. */
  async #fetchInto(part: string, signal: AbortSignal): Promise<{ readonly packed: string; readonly program: string }> {
    const { from, version } = this.#wanted();
    const isLocal = from.startsWith('/');
    const to = join(part, this.#options.project.name);
    const isPacked = /\.(tar\.gz|tgz)$/.test(from);
    if (isLocal && !isPacked) {
      this.#progress(`checking the agent at ${from}`);
      if (!(await isReachable(from))) throw this.#failure('its file server does not answer', { retry: true });
      // Small pieces would cost a thousand reads and half a second of garbage collection.
      const sum = await writeProgram(createReadStream(from, { highWaterMark: 2 ** 20 }), to, signal);
      if (this.#options.config.sha256 === null || this.#options.config.sha256 === sum) return { packed: sum, program: sum };
      throw this.#failure(`its SHA-256 is ${sum}, not ${this.#options.config.sha256}`);
    }
    const limits = this.#options.patience === undefined ? {} : { patience: this.#options.patience };
    const sha256 = this.#options.config.sha256 ?? (isLocal ? null : await this.#options.project.sum(from, { signal, ...limits }));
    // For messages, until the program reports it.
    const shown = version ?? /-(\d+\.\d+\.\d+)\.(?:tar\.gz|tgz)$/.exec(basename(from))?.[1] ?? 'of its own version';
    const parts = { dir: `${part}-fetched`, ...limits, ...(this.#options.warn !== undefined && { warn: this.#options.warn }) };
    try {
      const file = await getPackage(
        { type: this.#options.project.type, version: shown, from, sha256 },
        parts,
        this.#progress,
        signal,
      );
      if (!isPacked) return { packed: file.sha256, program: await writeProgram(createReadStream(file.path), to, signal) };
      this.#progress(`unpacking the agent ${shown}`);
      return { packed: file.sha256, program: await unpackProgram(file.path, this.#options.project.name, to, signal) };
    } finally {
      await removeTree(parts.dir);
    }
  }

  /** Checks the program in `part`, and returns its version. */
  async #check(part: string, signal: AbortSignal): Promise<string> {
    const { version } = this.#wanted();
    const path = join(part, this.#options.project.name);
    const problem = await programProblem(path, this.#arch);
    if (problem !== null) throw this.#failure(problem);
    const said = await versionOf(path, this.#options.patience ?? 20_000, signal).catch((error: unknown) => {
      signal.throwIfAborted();
      throw this.#failure(reasonOf(error), { cause: error });
    });
    if (version === null || version === said) return said;
    throw this.#failure(`it reports version ${said}`, { hint: `Write version: ${said}, or set from to the right file.` });
  }

  /** Gives the folder `part` its name. An equal folder may exist already, and stays. */
  async #keep(part: string, about: Source, signal: AbortSignal): Promise<Program> {
    await writeFile(join(part, 'source.json'), JSON.stringify(about), { flush: true });
    const final = join(this.#options.dir, `${this.#options.project.name}-${about.version}-${about.packed.slice(0, 12)}`);
    const kept = { path: join(final, this.#options.project.name), version: about.version, sha256: about.program };
    if (await this.#isWhole(final, about, signal)) return kept;
    await rename(part, final).catch(async (error: unknown) => {
      if (!['ENOTEMPTY', 'EEXIST'].includes(codeOf(error))) throw error;
      // The existing folder is damaged or of another origin. Sandboxes keep what they have mounted.
      await removeTree(final);
      await rename(part, final);
    });
    return kept;
  }

  async #install(signal: AbortSignal): Promise<Program> {
    const { from } = this.#wanted();
    const there = from.startsWith('/') ? null : await this.#findProgram(from, signal);
    if (there !== null) return there;
    await mkdir(this.#options.dir, { recursive: true, mode: 0o700 });
    // Only the manager that leads is here: other processes were killed while they worked in theirs.
    const left = (await readdir(this.#options.dir)).filter(
      (one) => one.startsWith('part-') && !one.startsWith(`part-${process.pid}-`),
    );
    for (const one of left) await removeTree(join(this.#options.dir, one));
    const part = join(this.#options.dir, `part-${process.pid}-${randomBytes(6).toString('hex')}`);
    try {
      await mkdir(part, { mode: 0o755 });
      const sums = await this.#fetchInto(part, signal);
      return await this.#keep(part, { from, version: await this.#check(part, signal), ...sums }, signal);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof OnejobError) throw error;
      // A system error, such as a full disk, may pass; an invalid file stays invalid.
      throw this.#failure(reasonOf(error), { retry: codeOf(error) !== '', cause: error });
    } finally {
      await removeTree(part);
    }
  }

  /** Makes sandboxes use this program from now on. */
  async #lead({ path }: Program): Promise<void> {
    const next = join(this.#options.dir, `next-${this.#mark}.${process.pid}`);
    await rm(next, { force: true });
    await symlink(dirname(path), next);
    const now = this.#options.wall() / 1000;
    await lutimes(next, now, now);
    await rename(next, this.#link);
  }

  /** Removes programs without a link, and old links. Sandboxes keep what they have mounted. */
  async #prune(): Promise<void> {
    const names = await readdir(this.#options.dir);
    const used = new Set<string>();
    for (const path of names.filter((one) => one.startsWith('at-')).map((one) => join(this.#options.dir, one))) {
      const seen = await lstat(path).catch(() => null);
      if (seen === null || !seen.isSymbolicLink()) continue;
      if (this.#options.wall() - seen.mtimeMs > keptFor) await rm(path, { force: true });
      else used.add(basename(await readlink(path)));
    }
    const programs = names.filter((one) => one.startsWith(`${this.#options.project.name}-`) && /-[0-9a-f]{12}$/.test(one));
    for (const one of programs) if (!used.has(one)) await removeTree(join(this.#options.dir, one));
  }
}

/** The program of a service with this name. */
export function openAgentProgram(
  service: string,
  project: AgentProject,
  config: AgentPackageConfig,
  { store, clock, log }: Pick<OpenParts, 'store' | 'clock' | 'log'>,
): AgentProgram {
  return new AgentProgram({
    project,
    config,
    dir: subdirectory(store.dir, 'tools'),
    wall: () => clock.wall(),
    progress: (line) => log.info('agent', { service, progress: line }),
    warn: (text, fields) => log.warn(text, fields),
  });
}

/** null: missing or damaged. */
async function sourceOf(folder: string): Promise<Source | null> {
  const text = await readFile(join(folder, 'source.json'), 'utf8').catch(() => '');
  return source.safeParse(jsonOf(text)).data ?? null;
}

/** Bytes of a program; Buildkite's 3.137 has 71 MB. */
const largestProgram = 512 * 2 ** 20;
/** Bytes of an unpacked package. */
const largestPackage = 2 ** 30;

/** Writes the program to `to`, a new file that nobody may change. Returns its SHA-256. @throws Error the reason */
async function writeProgram(from: AsyncIterable<unknown>, to: string, signal: AbortSignal): Promise<string> {
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
async function unpackProgram(packed: string, name: string, to: string, signal: AbortSignal): Promise<string> {
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
async function programProblem(path: string, arch: string): Promise<string | null> {
  await using file = await open(path);
  const { buffer, bytesRead } = await file.read(Buffer.alloc(20), 0, 20, 0);
  const head = buffer.subarray(0, bytesRead);
  if (head.subarray(0, 2).toString('latin1') === '#!') return null;
  if (head.length < 20 || head.subarray(0, 4).toString('latin1') !== '\x7fELF')
    // Never what it contains: a wrong path may lead to a token.
    return 'it is not an executable: it begins neither as an ELF file nor with "#!"';
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
  const child = spawn('/proc/self/fd/3', ['--version'], {
    argv0: basename(path),
    env: {},
    cwd: '/',
    detached: true,
    ...(process.getuid?.() === 0 && { uid: nobody, gid: nobody }),
    stdio: ['ignore', 'pipe', 'pipe', file.fd],
  });
  let said = '';
  const take = (data: Buffer): boolean => {
    if (said.length < 4_096) said += data.toString('utf8');
    return true;
  };
  const end = await listen(child, { clock: systemClock, limit: patience, drain: 250, signal, take });
  // With everything it started.
  if (child.pid !== undefined) killGroup(child.pid);
  signal.throwIfAborted();
  if (codeOf(end) === 'EACCES') throw new Error(`${path} cannot be executed; is its file system mounted noexec?`, { cause: end });
  if (end instanceof Error) throw end;
  if (end === 'hung') throw new Error(`"--version" took more than ${patience / 1000} s`);
  const version = /\bversion:? +v?(\d+\.\d+\.\d+[^\s,+]*)/i.exec(said)?.[1];
  if (child.exitCode === 0 && version !== undefined) return version;
  const line = said.trim().split('\n')[0]?.slice(0, 200) ?? '';
  throw new Error(`"--version" ended with exit code ${child.exitCode ?? child.signalCode} and printed ${JSON.stringify(line)}`);
}
