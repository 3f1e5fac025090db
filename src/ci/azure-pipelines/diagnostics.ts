/** The agent's own logs, copied out before its sandbox goes: at most 10 MiB of tar for each agent, as somebody else's files. */
import { createWriteStream } from 'node:fs';
import { mkdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import type { AgentId } from '../../core/slot.ts';
import type { AgentFiles } from '../ci-service.ts';
import { diagFolder } from './script.ts';

/** Bytes kept of one agent. */
export const diagLimit = 10 * 2 ** 20;

/** Where they lie; the file may end in the middle when there was more. */
export function diagPath(stateDir: string, agent: AgentId): string {
  return join(stateDir, 'diag', `${agent}.tar`);
}

/** Idempotent. An agent without such logs leaves no file. */
export async function keepDiagnostics(stateDir: string, agent: AgentId, files: AgentFiles, signal: AbortSignal): Promise<void> {
  const found = await files.folder(diagFolder, signal);
  if (found === null) return;
  const path = diagPath(stateDir, agent);
  const part = `${path}.part`;
  try {
    await mkdir(join(stateDir, 'diag'), { recursive: true, mode: 0o700 });
    await pipeline(found, upTo(diagLimit), createWriteStream(part, { mode: 0o600 }), { signal });
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
}

function upTo(limit: number): Transform {
  let left = limit;
  return new Transform({
    transform(chunk: Buffer, _, done) {
      const kept = chunk.subarray(0, left);
      left -= kept.length;
      done(null, kept);
    },
  });
}
