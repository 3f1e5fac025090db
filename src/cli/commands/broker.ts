/** `broker`: hidden, since only the daemon starts it. */
import type { Command } from 'commander';
import type { GlobalFlags } from '../session.ts';
import { type Act, failed, global } from './options.ts';

export function addBrokerCommand(program: Command, act: Act): void {
  const broker = program
    .command('broker', { hidden: true })
    .description('carry what Buildkite agents and their service say to each other; started by the daemon')
    .action((flags: GlobalFlags) => act(async (session) => (await import('../broker.ts')).runBroker(session), failed)(flags));
  global(broker);
}
