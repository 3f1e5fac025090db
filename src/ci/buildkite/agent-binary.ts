/**
 * The agent's program as a file of this host, to be mounted read-only into any image. What `ready` names has been checked: its
 * checksum, its architecture, and the version that it says itself. It never changes under its name; another one gets another.
 *
 *     <dir>/buildkite-agent-<version>-<sha>/buildkite-agent   0555; `<sha>`: beginning of the SHA-256 of the file it came in
 *     <dir>/buildkite-agent-<version>-<sha>/source.json       where it came from, and its own checksum
 *     <dir>/part-<pid>-…/                                     what is on its way, or being checked
 */
import { randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { AgentPackageConfig } from '../../config/config.ts';
import type { Failure } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import { getPackage } from '../../images/agent-package.ts';
import { reasonOf } from '../../images/receive.ts';
import type { AgentPackage } from '../ci-service.ts';
import { findProgram, keepProgram, markOf, type Program, partName, pruneOthers, removeParts } from './agent-folder.ts';
import { programProblem, unpackProgram, versionOf, writeProgram } from './agent-program.ts';
import { pinnedSums, releaseSum, releaseUrl, sumsUrl } from './agent-release.ts';

export interface AgentBinaryOptions {
  readonly config: AgentPackageConfig;
  /** Folder for programs, in the state directory; made when it is needed. */
  readonly dir: string;
  /** What is taken when config names neither a version nor where the agent is. */
  readonly pinned: string;
  /** Takes what takes time, one line each. */
  readonly progress?: (line: string) => void;
  /** Takes what should be looked at although it goes on, for the log. */
  readonly warn?: (text: string, fields: Record<string, unknown>) => void;
  readonly fetch?: typeof fetch;
  /** Node's name of the architecture of sandboxes; default: this host's. */
  readonly arch?: string;
  /** Where releases are; default: the project's. */
  readonly releases?: string;
  /** SHA-256 by address, where it is known beforehand; default: `pinnedSums`. */
  readonly pins?: Readonly<Record<string, string>>;
  /** ms in which a server must go on sending, or the program must say its version; default 60000, or 20000. */
  readonly patience?: number;
}

export type AgentBinaryState =
  /** Each image brings its own. */
  | { readonly kind: 'image' }
  /** Nobody needed it yet. */
  | { readonly kind: 'unknown' }
  | { readonly kind: 'preparing' }
  /** `sha256`: of the program itself. */
  | { readonly kind: 'ready'; readonly path: string; readonly version: string; readonly sha256: string }
  | { readonly kind: 'failed'; readonly failure: Failure };

export interface AgentBinary {
  /**
   * Absolute path on this host of the checked program; null when each image brings its own. Asked again it answers at once
   * unless what config names has changed on disk. @throws OnejobError E_AGENT_PACKAGE, or the reason of `signal`
   */
  ready(signal: AbortSignal): Promise<string | null>;
  readonly state: AgentBinaryState;
  /** Removes programs that are neither the current one nor, as `isUsed` says of their path, any sandbox's. */
  prune(isUsed: (path: string) => boolean): Promise<void>;
}

interface Ready extends Program {
  /** Of the file that config names, and of the program: what must not have changed. */
  readonly marks: string;
}

export function createAgentBinary(options: AgentBinaryOptions): AgentBinary {
  const { config, dir, pinned, arch = process.arch, progress = () => {}, warn } = options;
  const isInImage = config.from === 'image';
  const patience = options.patience ?? 20_000;
  let state: AgentBinaryState = { kind: isInImage ? 'image' : 'unknown' };
  let ready: Ready | null = null;
  let turn: Promise<unknown> = Promise.resolve();

  const damaged = (path: string): void => warn?.('agent on disk is damaged, taken anew', { path });
  const wanted = (): { from: string; version: string | null } => {
    if (config.from !== null) return { from: config.from, version: config.version };
    const version = config.version ?? pinned;
    return { from: releaseUrl(version, arch, options.releases), version };
  };
  const marksOf = async (from: string, path: string): Promise<string> =>
    JSON.stringify(await Promise.all([from.startsWith('/') ? markOf(from) : null, markOf(path)]));
  const fail = (
    from: string,
    version: string | null,
    why: string,
    more: { hint?: string; retry?: boolean; cause?: unknown } = {},
  ) => {
    const what = version === null ? 'the agent' : `the agent ${version}`;
    return new OnejobError('E_AGENT_PACKAGE', `Cannot use ${what} from ${from}: ${why}.`, {
      hint: 'Look at version, from and sha256 in services.<name>.agent, or name a program: agent: { from: /path/to/buildkite-agent }.',
      ...more,
    });
  };

  /** Checks a program that lies in a folder of its own, and gives the folder its name. */
  const admit = async (
    part: string,
    from: string,
    version: string | null,
    packed: string,
    program: string,
    signal: AbortSignal,
  ) => {
    const path = join(part, 'buildkite-agent');
    const problem = await programProblem(path, arch);
    if (problem !== null) throw fail(from, version, problem);
    const said = await versionOf(path, { patience, signal }).catch((error: unknown) => {
      signal.throwIfAborted();
      throw fail(from, version, reasonOf(error), { cause: error });
    });
    if (version !== null && version !== said) {
      throw fail(from, version, `it says that it is ${said}`, { hint: `Write version: ${said}, or name the right file in from.` });
    }
    return keepProgram(dir, part, { from, version: said, packed, program }, signal);
  };

  const install = async (signal: AbortSignal): Promise<Program> => {
    const { from, version } = wanted();
    const isLocal = from.startsWith('/');
    const isPacked = !isLocal || /\.(tar\.gz|tgz)$/.test(from);
    const asked = { from, version, packed: config.sha256 };
    const there = isLocal ? null : await findProgram(dir, asked, damaged, signal);
    if (there !== null) return there;
    await mkdir(dir, { recursive: true, mode: 0o700 });
    await removeParts(dir);
    const part = join(dir, partName(randomBytes(6).toString('hex')));
    const to = join(part, 'buildkite-agent');
    try {
      await mkdir(part, { mode: 0o755 });
      if (!isPacked) {
        progress(`checking the agent at ${from}`);
        // In large pieces: the usual ones are a thousand, and half a second of garbage, at each start.
        const sha256 = await writeProgram(createReadStream(from, { highWaterMark: 2 ** 20 }), to, signal);
        if (config.sha256 !== null && config.sha256 !== sha256)
          throw fail(from, version, `its SHA-256 is ${sha256}, not ${config.sha256}`);
        return await admit(part, from, version, sha256, sha256, signal);
      }
      const agent: AgentPackage = { type: 'buildkite', version: version ?? nameIn(from), from, sha256: await sumOf(from, signal) };
      const parts = { ...options, dir: `${part}-fetched` };
      try {
        const file = await getPackage(agent, parts, progress, signal);
        progress(`unpacking the agent ${agent.version}`);
        const program = await unpackProgram(file.path, to, signal);
        return await admit(part, from, version, file.sha256, program, signal);
      } finally {
        if (!isLocal) await rm(parts.dir, { recursive: true, force: true });
      }
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof OnejobError) throw error;
      // A disk may have room again; a file that is no agent stays none.
      throw fail(from, version, reasonOf(error), { retry: error instanceof Error && 'code' in error, cause: error });
    } finally {
      await rm(part, { recursive: true, force: true });
    }
  };

  const sumOf = async (from: string, signal: AbortSignal): Promise<string | null> => {
    if (config.sha256 !== null || from.startsWith('/')) return config.sha256;
    const known = (options.pins ?? pinnedSums)[from];
    if (known !== undefined) return known;
    const sums = URL.canParse(from) ? sumsUrl(from) : null;
    if (sums === null) return null;
    const { fetch: get, patience: wait } = options;
    return releaseSum(sums, from, {
      signal,
      ...(get !== undefined && { fetch: get }),
      ...(wait !== undefined && { patience: wait }),
    });
  };

  const get = async (signal: AbortSignal): Promise<string> => {
    if (ready !== null && ready.marks === (await marksOf(wanted().from, ready.path))) return ready.path;
    signal.throwIfAborted();
    const before = state;
    state = { kind: 'preparing' };
    try {
      const { from } = wanted();
      const marks = from.startsWith('/') ? await markOf(from) : null;
      const found = await install(signal);
      ready = { ...found, marks: JSON.stringify([marks, await markOf(found.path)]) };
      const { path, version, sha256 } = ready;
      state = { kind: 'ready', path, version, sha256 };
      return path;
    } catch (error) {
      // Who gave up says nothing about the agent.
      state = signal.aborted ? before : { kind: 'failed', failure: toFailure(error) };
      throw error;
    }
  };

  return {
    async ready(signal) {
      if (isInImage) return null;
      // One at a time: the second finds what the first has made.
      const mine = turn.then(() => get(signal));
      turn = mine.catch(() => {});
      return mine;
    },
    get state() {
      return state;
    },
    prune: (isUsed) => pruneOthers(dir, (path) => path === ready?.path || isUsed(path)),
  };
}

/** For messages, until the program says it itself. */
function nameIn(from: string): string {
  return /-(\d+\.\d+\.\d+)\.(?:tar\.gz|tgz)$/.exec(basename(from))?.[1] ?? 'of its own version';
}
