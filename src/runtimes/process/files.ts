/**
 * Copies files into and out of a workspace, with `tar` running as the agent's user: it writes only what the job itself could. What a job
 * leaves could take over a program of its user, so `tar` has no right that the job lacks.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { PassThrough, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { codeOf, OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import { asUser } from './bubblewrap.ts';
import type { Intent } from './folder.ts';
import { pipes, searchPath } from './programs.ts';

/** A sandbox, as far as this is about its files. */
export interface Files extends Pick<Intent, 'agent' | 'files' | 'uid'> {
  /** The start of a command that has the system calls of the sandbox only; empty: all. */
  readonly confine: readonly string[];
  /** Descriptors that the manager inherited. */
  readonly inherited: readonly number[];
}

/**
 * Extracts the tar stream `files`. Absolute names lose their slash, names with `..` are refused, links that leave the workspace
 * are created but never followed (GNU tar, "Absolute File Names"), and devices need root.
 * @throws OnejobError E_FILES
 */
export async function extract(to: Files, files: Readable, signal: AbortSignal): Promise<void> {
  const tar = runTar(to, '.', ['-x', '-f', '-', '--no-same-owner'], signal);
  const { stdin, stderr } = tar;
  if (stdin === null || stderr === null) throw new OnejobError('E_BUG', 'tar was started without pipes');
  const firstLine = firstBytes(stderr);
  const ended = exitOf(tar);
  // A failed tar stops reading. Its own words explain more than a broken pipe.
  const [sent, exit] = await Promise.allSettled([pipeline(files, stdin), ended]);
  signal.throwIfAborted();
  const code = exit.status === 'fulfilled' ? exit.value : String(exit.reason);
  const fail = (why: string, cause: unknown): OnejobError => failed(to.agent, 'put files into', why, cause);
  if (code !== 0) throw fail(`tar ended with exit code ${code}: ${firstLine()}`, exit.status === 'rejected' ? exit.reason : null);
  // tar stops at the archive's end mark and ignores the padding after it.
  const early = ['EPIPE', 'ERR_STREAM_PREMATURE_CLOSE', 'ECONNRESET'];
  if (sent.status === 'rejected' && !early.includes(codeOf(sent.reason))) throw fail(String(sent.reason), sent.reason);
}

/** A folder of the workspace as a tar stream, or the entries in `only`, without what is missing, unreadable or removed. */
export function archive(from: Files, folder: string, signal: AbortSignal, only?: readonly string[] | null): Readable {
  const names = only?.map((name) => `./${name}`) ?? ['.'];
  const tar = runTar(from, folder, ['-c', '-f', '-', '--', ...names], signal);
  const out = new PassThrough();
  if (tar.stdout === null || tar.stderr === null) throw new OnejobError('E_BUG', 'tar was started without pipes');
  tar.stdin?.end();
  const firstLine = firstBytes(tar.stderr);
  let isEmpty = true;
  tar.stdout.once('data', () => {
    isEmpty = false;
  });
  tar.stdout.pipe(out, { end: false });
  tar.stdout.on('error', (error) => out.destroy(error));
  out.on('close', () => tar.kill('SIGKILL'));
  exitOf(tar).then(
    // 1: a file changed while it was read. 2: a file could not be read. The archive is complete in both cases, unless these are codes
    // of what should have become tar, which writes an end mark in any case.
    (code) => {
      if (!isEmpty && (code === 0 || code === 1 || code === 2)) out.end();
      else out.destroy(failed(from.agent, 'read files from', `tar ended with exit code ${code}: ${firstLine()}`, null));
    },
    (error: unknown) => out.destroy(failed(from.agent, 'read files from', String(error), error)),
  );
  return out;
}

function runTar(of: Files, folder: string, args: readonly string[], signal: AbortSignal): ChildProcess {
  const { files, uid, confine, inherited } = of;
  const [program = 'tar', ...words] = [...confine, ...(uid === null ? [] : asUser(uid)), 'tar', ...args];
  const how = { cwd: join(files, 'work', folder), env: { PATH: searchPath, LC_ALL: 'C' }, signal, killSignal: 'SIGKILL' } as const;
  return spawn(program, words, { ...how, stdio: pipes(3, inherited) });
}

/** The exit code or signal name of a child, once its pipes are closed. */
async function exitOf(child: ChildProcess): Promise<number | string> {
  const [code, signal] = await once(child, 'close');
  return code ?? signal ?? 'nothing';
}

function firstBytes(stream: Readable): () => string {
  let text = '';
  stream.on('data', (bytes: Buffer) => {
    if (text.length < 500) text += bytes.toString('utf8');
  });
  return () => text.trim().split('\n')[0]?.slice(0, 500) ?? '';
}

function failed(agent: AgentId, what: string, why: string, cause: unknown): OnejobError {
  return new OnejobError('E_FILES', `Cannot ${what} the workspace of agent ${agent}: ${why}.`, {
    hint: 'Check for a full disk, or for a file in it that an ordinary user cannot create.',
    ...(cause === null ? {} : { cause }),
  });
}
