/**
 * Logs of the agents themselves, copied from their sandboxes: `<state>/diag/<agent>.tar`. Such a file may be cut off, and is read
 * as far as it goes.
 */
import { createReadStream } from 'node:fs';
import { join } from 'node:path';
import { extract } from 'tar-stream';
import type { LogPiece } from '../contract/manager.ts';
import type { AgentId } from '../core/slot.ts';

/** Their folder in the state directory. */
export const agentLogsFolder = 'diag';

export function agentLogsPath(stateDir: string, agent: AgentId): string {
  return join(stateDir, agentLogsFolder, `${agent}.tar`);
}

interface Entry {
  readonly name: string;
  /** ms since the epoch. */
  readonly changedAt: number;
  readonly chunks: Buffer[];
}

/**
 * One file after the other, the most recent last, each below a line with its name. All of it is in memory: copies are small. The
 * bytes are those of the agent or its job.
 */
export async function* readAgentLogs(path: string, signal: AbortSignal): AsyncGenerator<LogPiece> {
  const { entries, isWhole } = await readTar(path, signal);
  entries.sort((a, b) => a.changedAt - b.changedAt || (a.name < b.name ? -1 : 1));
  for (const [at, { name, chunks }] of entries.entries()) {
    yield output(`${at === 0 ? '' : '\n'}==> ${name} <==\n`);
    for (const bytes of chunks) yield { stream: 'stdout', bytes };
    if (chunks.length > 0 && chunks.at(-1)?.at(-1) !== newline) yield output('\n');
  }
  if (!isWhole) yield { stream: 'note', bytes: Buffer.from('these logs were too long to keep completely\n') };
  else if (entries.length === 0) yield { stream: 'note', bytes: Buffer.from('the agent kept logs, but they are empty\n') };
}

const newline = 10;

async function readTar(path: string, signal: AbortSignal): Promise<{ entries: Entry[]; isWhole: boolean }> {
  const entries: Entry[] = [];
  const source = createReadStream(path, { signal });
  const tar = extract();
  source.once('error', (error) => tar.destroy(error));
  try {
    for await (const entry of source.pipe(tar)) {
      const { name, type, mtime } = entry.header;
      const chunks: Buffer[] = [];
      if (type === 'file') entries.push({ name: nameOf(name), changedAt: mtime?.getTime() ?? 0, chunks });
      for await (const chunk of entry) chunks.push(Buffer.from(chunk as Uint8Array));
    }
    return { entries, isWhole: true };
  } catch {
    // An unreadable file is an error, a cut-off one is not.
    if (source.errored !== null) throw source.errored;
    return { entries, isWhole: false };
  } finally {
    source.destroy();
  }
}

/** The name as a heading, in one line. */
function nameOf(name: string): string {
  return name.replace(/^(?:\.\/)+/, '').replace(/\p{Cc}+/gu, ' ');
}

function output(text: string): LogPiece {
  return { stream: 'stdout', bytes: Buffer.from(text) };
}
