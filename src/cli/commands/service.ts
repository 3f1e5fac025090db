/** `service install`, `uninstall`, `status`, `upgrade`, `rollback`: their options and help. */
import { type Cli, failed } from './options.ts';

export function addServiceCommands(program: Cli): void {
  const service = program.command('service').description('run the daemon of an installed onejob as a service of systemd');
  const own = ['--user', 'your own service instead of the one of the system; it needs no root'] as const;
  service
    .command('install')
    .description('write the unit, and start the daemon now and at every boot')
    .option(...own)
    .option('--print', 'only show the unit')
    .after(`
Examples:
  onejob service install --print
  sudo onejob service install                 for the system; members of the group "onejob" may use it
  onejob service install --user               for you; you need access to Docker or bubblewrap

A stop or restart of the service leaves the running jobs to the next daemon. "onejob down" ends them.`)
    .does(failed, async (session, flags: { user?: boolean; print?: boolean }) =>
      (await import('../service.ts')).installService(session, flags),
    );
  service
    .command('uninstall')
    .description('stop the daemon and remove the unit; config, state and running jobs stay')
    .option(...own)
    .does(failed, async (session, flags: { user?: boolean }) => (await import('../service.ts')).uninstallService(session, flags));
  service
    .command('status')
    .description('show whether the service runs, and which versions are installed')
    .option(...own)
    .after('\nExit codes: 0 it runs; 1 it does not; 2 wrong usage.')
    .does(failed, async (session, flags: { user?: boolean }) => (await import('../service.ts')).serviceStatus(session, flags));
  service
    .command('upgrade')
    .description('install a release, and restart the daemon with it; running jobs continue')
    .argument('[archive]', 'onejob-VERSION-linux-ARCH.tar.gz (default: restart with what is installed now)')
    .option(...own)
    .after(`
If the new version does not start, the previous one is started again. SHA256SUMS next to the archive is checked.

Example:
  sudo onejob service upgrade onejob-1.2.0-linux-x64.tar.gz`)
    .does(failed, async (session, archive: string | undefined, flags: { user?: boolean }) =>
      (await import('../service.ts')).upgradeService(session, archive ?? null, flags),
    );
  service
    .command('rollback')
    .description('restart the daemon with the version that was installed before; running jobs continue')
    .option(...own)
    .does(failed, async (session, flags: { user?: boolean }) => (await import('../service.ts')).rollBackService(session, flags));
}
