/** Sends a workspace: of one that this user has sent before only what has changed since. */
import type { Client } from '../api/client.ts';
import { hasCode } from '../base/errors.ts';
import {
  type Memory,
  memoryFile,
  type Plan,
  planOf,
  type Range,
  readMemory,
  rememberedOf,
  writeMemory,
} from '../workspace/memory.ts';
import { type PackedWorkspace, packEntries } from '../workspace/pack.ts';

interface SendOptions {
  readonly client: Pick<Client, 'call' | 'keepFiles' | 'putWorkspace'>;
  /** The user's folder for what may be lost. */
  readonly cacheHome: string;
  /** What tells daemons apart. */
  readonly daemon: string;
  readonly warn: (line: string) => void;
  /** Bytes on their way, of how many. */
  readonly progress: (sent: number, of: number) => void;
}

const nothing: Memory = { sent: [], rows: [] };

/** The workspace's id. */
export async function sendWorkspace(packed: PackedWorkspace, options: SendOptions): Promise<string> {
  const file = memoryFile(options.cacheHome, options.daemon, packed.top);
  const before = readMemory(file);
  try {
    return (
      (await send(packed, planOf(packed.entries, before), file, options)) ??
      (await send(packed, planOf(packed.entries, nothing), file, options)) ??
      (await sendOnce(packed, options))
    );
  } catch (error) {
    // An older daemon keeps nothing.
    if (hasCode(error, 'E_API_ROUTE') || hasCode(error, 'E_API_VERSION')) return await sendOnce(packed, options);
    throw error;
  } finally {
    packed.stream.destroy();
  }
}

/** null if the daemon does not have what should be there, or there would be too many parts. */
async function send(packed: PackedWorkspace, plan: Plan, file: string, options: SendOptions): Promise<string | null> {
  const { client, warn, progress } = options;
  const { missing } = plan;
  const known = new Map<string, Range>(plan.known);
  const sent = [...plan.sent];
  if (missing.length > 0 || sent.length === 0) {
    const bytes = missing.reduce((sum, { tarSize }) => sum + tarSize, 0);
    let size = 0;
    const stream = packEntries(packed.top, missing, warn, (entry, from, to) => {
      if (entry !== null) known.set(entry.path, [plan.sent.length, from, to]);
      size = to;
    });
    const name = await client.keepFiles(stream, (count) => progress(count, bytes));
    sent.push([name, size]);
  }
  const remembered = rememberedOf(packed, sent, known);
  if (remembered === null) return null;
  try {
    const { id } = await client.call('POST /v1/workspaces', {
      body: { sent: sent.map(([name]) => name), ranges: remembered.ranges },
    });
    if (missing.length > 0) writeMemory(file, remembered.memory, packed.at);
    return id;
  } catch (error) {
    if (hasCode(error, 'E_WORKSPACE_UNKNOWN')) return null;
    throw error;
  }
}

function sendOnce({ stream, bytes }: PackedWorkspace, { client, progress }: SendOptions): Promise<string> {
  return client.putWorkspace(stream, (count) => progress(count, bytes));
}
