/**
 * Copies files into and out of a workspace, with the system's `tar` running as the agent's user. Whatever the archive says, it
 * can write only what the job itself could.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { PassThrough, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { AgentId } from '../../core/slot.ts';
import { codeOf, OnejobError } from '../../errors.ts';
import { path } from './bubblewrap.ts';

interface Workspace {
  readonly agent: AgentId;
  readonly work: string;
  readonly uid: number | null;
}

/**
 * Extracts the tar stream `files`. Absolute names lose their slash, names with `..` are refused, links that leave the workspace
 * are created but never followed (GNU tar, "Absolute File Names"), and devices need root.
 * @throws OnejobError E_FILES
 */
export async function extract(to: Workspace, files: Readable, signal: AbortSignal): Promise<void> {
  const tar = runTar(to, ['-x', '-f', '-', '--no-same-owner'], signal);
  const { stdin, stderr } = tar;
  if (stdin === null || stderr === null) throw new OnejobError('E_BUG', 'tar was started without pipes');
  const said = firstBytes(stderr);
  const ended = exitOf(tar);
  // A failed tar stops reading. Its own words explain more than a broken pipe.
  const [sent, exit] = await Promise.allSettled([pipeline(files, stdin), ended]);
  signal.throwIfAborted();
  const code = exit.status === 'fulfilled' ? exit.value : String(exit.reason);
  const fail = (why: string, cause: unknown): OnejobError => failed(to.agent, 'put files into', why, cause);
  if (code !== 0) throw fail(`tar ended with exit code ${code}: ${said()}`, exit.status === 'rejected' ? exit.reason : null);
  if (sent.status === 'rejected' && !isEarlyEnd(sent.reason)) throw fail(String(sent.reason), sent.reason);
}

/**
 * The workspace as a tar stream, or only the entries in `only`. Files that are missing, unreadable, or removed meanwhile are left
 * out.
 */
export function archive(from: Workspace, signal: AbortSignal, only: readonly string[] | null = null): Readable {
  const names = only?.map((name) => `./${name}`) ?? ['.'];
  const tar = runTar(from, ['-c', '-f', '-', '--', ...names], signal);
  const out = new PassThrough();
  if (tar.stdout === null || tar.stderr === null) throw new OnejobError('E_BUG', 'tar was started without pipes');
  tar.stdin?.end();
  const said = firstBytes(tar.stderr);
  tar.stdout.pipe(out, { end: false });
  tar.stdout.on('error', (error) => out.destroy(error));
  out.on('close', () => tar.kill('SIGKILL'));
  exitOf(tar).then(
    // 1: a file changed while it was read. 2: a file could not be read. The archive is complete in both cases.
    (code) => {
      if (code === 0 || code === 1 || code === 2) out.end();
      else out.destroy(failed(from.agent, 'read files from', `tar ended with exit code ${code}: ${said()}`, null));
    },
    (error: unknown) => out.destroy(failed(from.agent, 'read files from', String(error), error)),
  );
  return out;
}

function runTar({ work, uid }: Workspace, args: readonly string[], signal: AbortSignal): ChildProcess {
  const user = uid === null ? {} : { uid, gid: uid };
  return spawn('tar', args, { cwd: work, stdio: 'pipe', env: { PATH: path, LC_ALL: 'C' }, signal, killSignal: 'SIGKILL', ...user });
}

/** The exit code or signal name of a child, once its pipes are closed. */
function exitOf(child: ChildProcess): Promise<number | string> {
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code, signal) => resolve(code ?? signal ?? 'nothing'));
  });
}

function firstBytes(stream: Readable): () => string {
  let text = '';
  stream.on('data', (bytes: Buffer) => {
    if (text.length < 500) text += bytes.toString('utf8');
  });
  return () => text.trim().split('\n')[0]?.slice(0, 500) ?? '';
}

/** tar stops at the archive's end mark and ignores the padding after it. */
function isEarlyEnd(error: unknown): boolean {
  return ['EPIPE', 'ERR_STREAM_PREMATURE_CLOSE', 'ECONNRESET'].includes(codeOf(error));
}

function failed(agent: AgentId, what: string, why: string, cause: unknown): OnejobError {
  return new OnejobError('E_FILES', `Cannot ${what} the workspace of agent ${agent}: ${why}.`, {
    hint: 'Check for a full disk, or for a file in it that an ordinary user cannot create.',
    ...(cause === null ? {} : { cause }),
  });
}
