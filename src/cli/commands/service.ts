/** `service install`, `uninstall`, `status`, `upgrade`, `rollback`: their options and help. */
import type { Flags } from '../service.ts';
import { type Cli, failed } from './options.ts';

export function addServiceCommands(program: Cli): void {
  const service = program.command('service').description('run the daemon of an installed onejob as a service of systemd');
  const own = ['--user', 'your own service instead of the one of the system; it needs no root'] as const;
  service
    .command('install')
    .local()
    .description('write the unit, and start the daemon now and at every boot')
    .option(...own)
    .option('--print', 'only show the unit')
    .after(`
Examples:
  onejob service install --print
  sudo onejob service install                 for the system; members of the group "onejob" may use it
  onejob service install --user               for you; you need access to Docker or bubblewrap

A stop or restart of the service leaves the running jobs to the next daemon. "onejob down" ends them.`)
    .does(failed, async (session, flags: Flags) => (await import('../service.ts')).installService(session, flags));
  service
    .command('upgrade')
    .local()
    .description('install a release, and restart the daemon with it; running jobs continue')
    .argument('[archive]', 'onejob-VERSION-linux-ARCH.tar.gz (default: restart with what is installed now)')
    .option(...own)
    .after(`
If the new version does not start, the previous one is started again. SHA256SUMS next to the archive is checked.

Example:
  sudo onejob service upgrade onejob-1.2.0-linux-x64.tar.gz`)
    .does(failed, async (session, archive: string | undefined, flags: Flags) =>
      (await import('../service.ts')).upgradeService(session, archive ?? null, flags),
    );
  for (const [name, act, description] of [
    ['rollback', 'rollBackService', 'restart the daemon with the version that was installed before; running jobs continue'],
    ['status', 'serviceStatus', 'show whether the service runs (exit code 1 if it does not), and which versions it can run'],
    ['uninstall', 'uninstallService', 'stop the daemon and remove the unit; config, state and running jobs stay'],
  ] as const)
    service
      .command(name)
      .local()
      .description(description)
      .option(...own)
      .does(failed, async (session, flags: Flags) => (await import('../service.ts'))[act](session, flags));
}
