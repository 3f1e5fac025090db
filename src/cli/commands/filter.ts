/** `filter`: hidden, since only the daemon starts it. */
import type { Command } from 'commander';
import type { GlobalFlags } from '../session.ts';
import { type Act, failed, global } from './options.ts';

export function addFilterCommand(program: Command, act: Act): void {
  const filter = program
    .command('filter', { hidden: true })
    .description('carry calls of untrusted jobs to their service; started by the daemon')
    .action((flags: GlobalFlags) => act(async (session) => (await import('../filter.ts')).runFilter(session), failed)(flags));
  global(filter);
}
