/** The end of an agent's output, for a message that says why it failed. */
import { existsSync } from 'node:fs';
import { stripVTControlCharacters } from 'node:util';
import type { AgentId } from '../core/slot.ts';
import type { Keepers } from '../logs/keepers.ts';
import { logPath } from '../logs/log-file.ts';
import { readLog } from '../logs/read.ts';

const lines = 6;
const longest = 1_000;

/** At most six lines without their colours; empty when it said nothing that was kept. */
export async function lastWords(keepers: Keepers, logDir: string, agent: AgentId): Promise<string> {
  const keeper = keepers.get(agent);
  const path = logPath(logDir, agent);
  const pieces =
    keeper?.file.read({ follow: false, signal: new AbortController().signal }) ?? (existsSync(path) ? readLog(path) : null);
  if (pieces === null) return '';
  let end = Buffer.alloc(0);
  for await (const { stream, bytes } of pieces) {
    if (stream !== 'note') end = Buffer.concat([end, bytes]).subarray(-4 * longest);
  }
  const plain = stripVTControlCharacters(end.toString('utf8')).replaceAll(/[^\P{Cc}\n]/gu, '');
  const said = plain
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  return said.slice(-lines).join('\n').slice(-longest);
}
