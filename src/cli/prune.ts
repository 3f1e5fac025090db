/** `onejob jobs prune`. */
import { parseDuration } from '../config/units.ts';
import { OnejobError } from '../errors.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { formatBytes } from './units.ts';

export interface PruneFlags {
  /** As typed, such as `2h`. */
  readonly olderThan: string;
  readonly dryRun: boolean;
}

/** @throws OnejobError E_USAGE */
export async function pruneJobs(session: Session, { olderThan, dryRun }: PruneFlags): Promise<number> {
  const { output } = session;
  const parsed = parseDuration(/^0+$/.test(olderThan) ? '0s' : olderThan);
  if (!parsed.ok) throw new OnejobError('E_USAGE', `--older-than: ${parsed.why}.`, { hint: 'Write for example 0, 30m, 2h or 7d.' });
  const found = await withDaemon(session, (client) => client.pruneJobs({ olderThan: parsed.value, dryRun }));
  if (output.json) await output.value(found);
  else {
    const { jobs, agents, bytes } = found;
    const what = `${count(jobs, 'job')} and the logs of ${count(agents, 'agent')}, ${formatBytes(bytes)}`;
    await output.print(dryRun ? `That would remove ${what}.` : `Removed ${what}.`);
  }
  return exitCodes.ok;
}

function count(number: number, word: string): string {
  return `${number} ${word}${number === 1 ? '' : 's'}`;
}
