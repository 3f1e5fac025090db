/** `cloud` with `check`, `up`, `down`, `list`, `sweep`, `acceptance`, `check-provider`, `receipts` and `console`: their options and help. */
import { InvalidArgumentError } from 'commander';
import type { CloudFlags, SweepFlags } from '../cloud.ts';
import type { AcceptanceFlags } from '../cloud-acceptance.ts';
import { addMachineCommands } from './cloud-machine.ts';
import { addProviderCommand } from './cloud-provider.ts';
import { type Cli, collect, duration, failed, integer, wrongOrFailed } from './options.ts';

export function addCloudCommands(program: Cli): void {
  const cloud = program
    .command('cloud')
    .description('create, show and remove machines in clouds')
    .after(`
Examples:
  onejob cloud check burst          what is missing before the first machine
  onejob cloud up burst             a machine of the host "burst" of the config; waits until it has joined
  onejob cloud down burst           waits until two lists of the cloud do not contain it
  onejob cloud sweep --owner acme-ci

See docs/cloud.md.`);
  cloud.enablePositionalOptions();
  addHostCommands(cloud);
  addOwnerCommands(cloud);
  addAcceptanceCommand(cloud);
  addProviderCommand(cloud);
  addRecordCommands(cloud);
  addMachineCommands(cloud);
}

const load = () => import('../cloud.ts');

/** About one host of the config. */
function addHostCommands(cloud: Cli): void {
  cloud
    .command('check')
    .local()
    .description('check credentials, permissions, quota, image, network and price of hosts; creates nothing')
    .argument('[host...]', 'hosts of the config; default: all')
    .after('\nExit codes: 0 nothing is missing; 1 something is; 2 wrong usage.')
    .does(wrongOrFailed, async (session, hosts: string[]) => (await load()).checkHosts(session, hosts));

  cloud
    .command('up')
    .local()
    .description('create a machine of a host, unless one is ready, and wait until it has joined')
    .argument('<host>', 'a key of "hosts" in the config')
    .option('--timeout <time>', 'how long to wait, and how long the daemon continues (default: 45m)', duration)
    .option('--no-wait', 'only ask the daemon for it')
    .after(`
Examples:
  onejob cloud up burst
  onejob cloud up burst --timeout 20m --json     prints the host with its machines at the end

Without a daemon it creates the machine itself, and serves "join.listen" until that has joined; with "join.through", nothing has to
reach it. If it is interrupted, it removes that machine.
If a daemon runs, it continues until --timeout is over, also after an interruption; "onejob cloud down" cancels that.
Exit codes: 0 it has joined; 1 it has not; 2 wrong usage; 130 interrupted.`)
    .does(wrongOrFailed, async (session, host: string, flags: CloudFlags) => (await load()).upHost(session, host, flags));

  cloud
    .command('down')
    .local()
    .description('drain and remove all machines of a host, and wait until they are gone')
    .argument('<host>', 'a key of "hosts" in the config')
    .option('--now', 'end running jobs, too')
    .option('--timeout <time>', 'how long to wait (default: 45m)', duration)
    .option('--no-wait', 'only ask the daemon for it')
    .after(`
Examples:
  onejob cloud down burst             lets running jobs end
  onejob cloud down burst --now

The daemon creates no others for it until "onejob cloud up", even if jobs wait.
Without a daemon it finds them by their tags, also those of an earlier stage of a pipeline on another host. These do not drain: their
jobs are lost, so run it on the host that created them. With "join.through" they drain, for at most half of the time.
Exit codes: 0 two complete lists do not contain them; 1 something exists, or is unknown; 2 wrong usage; 130 interrupted.`)
    .does(wrongOrFailed, async (session, host: string, flags: CloudFlags) => (await load()).downHost(session, host, flags));
}

/** About everything of an owner. */
function addOwnerCommands(cloud: Cli): void {
  cloud
    .command('list')
    .local()
    .description('list everything that exists at the clouds, by its tags')
    .option('--owner <id>', 'of this owner (default: that of the config)')
    .after('\nIt asks the clouds, not the daemon. Exit codes: 0 the list is complete; 1 it is not; 2 wrong usage.')
    .does(wrongOrFailed, async (session, flags: { owner?: string }) => (await load()).listThings(session, flags));

  cloud
    .command('sweep')
    .local()
    .description('remove what is past its end of life, and what belongs to no machine')
    .option('--owner <id>', 'what to remove: all of this owner (default: that of the config)')
    .option('--cloud <name>', 'only this cloud of the config; may be repeated', collect)
    .option('--all', 'also remove machines that work')
    .option('--dry-run', 'only list what it would remove')
    .option('--timeout <time>', 'how long to wait until it is gone (default: 15m)', duration)
    .after(`
Examples:
  onejob cloud sweep --owner acme-ci           for cron, or a scheduled pipeline
  onejob cloud sweep --dry-run

It needs no daemon and no state: an owner and a credential are enough. With "hosts" in the config, it also removes what their
machines left at the CI services of their pools: registrations that are offline, and whose machine no longer exists.
Exit codes: 0 two complete lists show nothing to remove; 1 something exists, or could not be listed; 2 wrong usage; 130 interrupted.`)
    .does(wrongOrFailed, async (session, flags: SweepFlags) => (await load()).sweepClouds(session, flags));
}

function addAcceptanceCommand(cloud: Cli): void {
  cloud
    .command('acceptance')
    .local()
    .description('try a real account: create one machine, inspect it, and remove it')
    .argument('<cloud>', 'a key of "clouds" in the config')
    .option('--host <host>', 'take types, image, disk and spot of this key of "hosts" (default: the cheapest type with a GPU)')
    .option('--type <type>', 'create this type of machine')
    .option('--lifetime <time>', 'when the cloud would end the machine (default: 40m)', lifetime)
    .option(
      '--wait-for-end [time]',
      'also create a machine that the cloud must end after this time (15m), and wait for that',
      lifetime,
    )
    .option('--keep-going', 'continue after a step that failed')
    .option('-y, --yes', 'do not ask to confirm the cost')
    .option('--markdown', 'print a table for a page, without ids of the account')
    .after(`
Examples:
  onejob cloud acceptance aws --host burst
  onejob cloud acceptance google --type g2-standard-4 --wait-for-end --markdown

It asks before it creates anything, and always tries to remove what it created, also after Ctrl-C.
The machine does not join, so nothing needs to reach this host.
Exit codes: 0 all is well; 1 a step failed, or something may be left; 2 wrong usage; 130 nobody agreed, or interrupted.`)
    .does(wrongOrFailed, async (session, name: string, flags: AcceptanceFlags) =>
      (await import('../cloud-acceptance.ts')).acceptCloud(session, name, flags),
    );
}

/** What machines that are gone, and those that are there, have left to read. */
function addRecordCommands(cloud: Cli): void {
  cloud
    .command('receipts')
    .local()
    .description('list machines that are gone: what was made, when lists were empty, and what it cost by estimate')
    .option('--limit <n>', 'only the newest (default: 20)', integer(1, 10_000))
    .does(failed, async (session, { limit = 20 }: { limit?: number }) => (await load()).listReceipts(session, limit));

  cloud
    .command('console')
    .local()
    .description('print the end of the console of a machine')
    .argument('<host>', 'a key of "hosts" in the config, or the name of a machine (onejob-…)')
    .does(wrongOrFailed, async (session, host: string) => (await load()).showConsole(session, host));
}

/** ms. Shorter ones are over before the console shows anything. */
function lifetime(text: string): number {
  const ms = duration(text);
  if (ms < 600_000 || ms > 86_400_000) throw new InvalidArgumentError('It must be from 10m to 24h.');
  return ms;
}
