/** The agent's own logs, copied out before its sandbox goes: at most 10 MiB of tar for each agent, as somebody else's files. */

import { createWriteStream } from 'node:fs';
import { mkdir, rename, rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { agentLogsPath } from '../../logs/agent-logs.ts';
import type { AgentFiles } from '../ci-service.ts';
import { diagFolder } from './script.ts';

/** Bytes kept of one agent. */
export const diagLimit = 10 * 2 ** 20;

/** ms for all of it: a job may have made its logs as long as it likes. */
const patience = 60_000;

/** Idempotent. An agent without such logs leaves no file. `limit`: ms after which it fails. */
export async function keepDiagnostics(
  clock: Clock,
  stateDir: string,
  agent: AgentId,
  files: AgentFiles,
  signal: AbortSignal,
  limit = patience,
): Promise<void> {
  using late = deadline(clock, limit, signal);
  const either = late.signal;
  const path = agentLogsPath(stateDir, agent);
  const part = `${path}.part`;
  try {
    const found = await files.folder(diagFolder, either);
    if (found === null) return;
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    // A sparse file is terabytes of zeros: nothing goes on reading what nobody wants any more.
    const stop = () => found.destroy(either.reason);
    either.addEventListener('abort', stop, { once: true });
    try {
      await pipeline(upTo(diagLimit, found), createWriteStream(part, { mode: 0o600 }), { signal: either });
    } finally {
      either.removeEventListener('abort', stop);
      found.destroy();
    }
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    signal.throwIfAborted();
    if (late.passed) throw new Error(`they could not be read within ${limit / 1000} s`, { cause: error });
    throw error;
  }
}

/** Ends what it reads from as soon as enough is kept. */
async function* upTo(limit: number, source: Readable): AsyncGenerator<Buffer> {
  let left = limit;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    yield chunk.subarray(0, left);
    left -= chunk.length;
    if (left <= 0) return;
  }
}
