/**
 * Files into and out of a workspace, by the system's `tar` running as the agent's user in the workspace: whatever the
 * archive says, it can write only what the job itself could.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { PassThrough, type Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import { path } from './bubblewrap.ts';

interface Workspace {
  readonly agent: AgentId;
  readonly work: string;
  readonly uid: number | null;
}

/**
 * Extracts the tar stream `files`. Absolute names lose their slash, names with `..` are refused, links outward are made
 * but never followed (GNU tar, "Absolute File Names"); devices cannot be made without root.
 * @throws OnejobError E_FILES
 */
export async function extract(to: Workspace, files: Readable, signal: AbortSignal): Promise<void> {
  const tar = runTar(to, ['-x', '-f', '-', '--no-same-owner'], signal);
  const { stdin, stderr } = tar;
  if (stdin === null || stderr === null) throw new OnejobError('E_BUG', 'tar was started without pipes');
  const said = firstBytes(stderr);
  const ended = exitOf(tar);
  // A tar that fails stops reading; its own words are the better error than a broken pipe.
  const [sent, exit] = await Promise.allSettled([pipeline(files, stdin), ended]);
  signal.throwIfAborted();
  const code = exit.status === 'fulfilled' ? exit.value : String(exit.reason);
  if (code !== 0)
    throw failed(
      to.agent,
      'put files into',
      `tar ended with exit code ${code}: ${said()}`,
      exit.status === 'rejected' ? exit.reason : null,
    );
  if (sent.status === 'rejected' && !isEarlyEnd(sent.reason))
    throw failed(to.agent, 'put files into', String(sent.reason), sent.reason);
}

/**
 * The workspace as a tar stream, or of it what is called one of `only`. What is missing, what the job made unreadable or
 * removes meanwhile is left out.
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
    // 1: a file changed while it was read. 2: one could not be read. In both the archive is whole.
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

/** Exit code, or the signal's name, once its pipes are read too. */
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

/** tar stops reading at the archive's end mark; what pads it after that is of no use. */
function isEarlyEnd(error: unknown): boolean {
  const code = error instanceof Error && 'code' in error ? error.code : null;
  return code === 'EPIPE' || code === 'ERR_STREAM_PREMATURE_CLOSE' || code === 'ECONNRESET';
}

function failed(agent: AgentId, what: string, why: string, cause: unknown): OnejobError {
  return new OnejobError('E_FILES', `Cannot ${what} the workspace of agent ${agent}: ${why}.`, {
    hint: 'Check for a full disk, or for a file in it that an ordinary user cannot create.',
    ...(cause === null ? {} : { cause }),
  });
}
