/** `up`, `down`, `status`, `plan`, `doctor`, `report`, `dashboard`, `pause`, `resume`, `drain`, the hidden `filter`: their options and help. */
import { Option } from 'commander';
import type { DaemonOptions } from '../context.ts';
import type { DashboardFlags } from '../dashboard.ts';
import { wrongUsage } from '../exit.ts';
import type { ReportFlags } from '../report.ts';
import type { StatusFlags } from '../status.ts';
import { type Cli, configFile, failed, wrongOrFailed } from './options.ts';

export function addDaemonCommands(program: Cli): void {
  addUpAndDown(program);
  addStatusAndTop(program);
  addPlan(program);
  addDoctorAndDashboard(program);
  addPauses(program);
  addHidden(program);
}

function addUpAndDown(program: Cli): void {
  program
    .command('up')
    .local()
    .description('run the daemon of this host in the foreground')
    .addOption(new Option('--on-stop <how>', 'what a signal does with running jobs').choices(['end', 'drain', 'leave']))
    .addOption(new Option('--temporary').hideHelp())
    .after('\nWithout --on-stop, "on_stop" in the config decides.')
    .does(failed, async (session, { temporary = false, ...more }: Pick<DaemonOptions, 'onStop'> & { temporary?: boolean }) =>
      (await import('../up.ts')).up(session, { temporary, ...more }),
    );

  program
    .command('down')
    .description('stop the daemon, and the running jobs with it')
    .addOption(new Option('--end', 'end running jobs, and ask nobody').conflicts(['drain', 'now', 'leave']))
    .addOption(new Option('--drain', 'let running jobs finish first').conflicts(['now', 'leave']))
    .addOption(new Option('--now', 'end running jobs without their grace period').conflicts(['drain', 'leave']))
    .addOption(new Option('--leave', 'let running jobs continue; the next daemon adopts them').conflicts(['drain', 'now']))
    .addOption(new Option('--forget', 'also remove the entries that otherwise stay at CI services').conflicts('leave'))
    .after(`
On a terminal it asks what becomes of running jobs; with one of --end, --drain, --now and --leave, and in scripts, it does not.
Without --forget, placeholders stay at CI services and keep jobs waiting while there is no agent; without a placeholder, jobs
fail when they are queued. Remove placeholders when this host will no longer serve those services.
What each leaves, and how to end what --leave left: docs/operating.md#stop-the-daemon.
Exit codes: 0; 1 when no daemon runs here, or --forget could not remove all of them; 2 wrong usage.`)
    .does(failed, async (session, flags: { end?: boolean; drain?: boolean; now?: boolean; leave?: boolean; forget?: boolean }) => {
      const how = flags.drain === true ? 'drain' : flags.leave === true ? 'leave' : 'end';
      const grace = flags.now === true ? 0 : null;
      const asks = [flags.end, flags.drain, flags.now, flags.leave].every((one) => one !== true);
      return (await import('../control.ts')).down(session, { how, grace, forget: flags.forget === true }, asks);
    });
}

function addStatusAndTop(program: Cli): void {
  program
    .command('status')
    .description('show what every slot is doing, problems first')
    .option('-w, --watch', 'refresh every second')
    .option('--wide', 'truncate nothing, and show links to jobs')
    .addOption(
      new Option('--all', 'one line for each host of ~/.config/onejob/hosts.yml or /etc/onejob/hosts.yml').conflicts([
        'watch',
        'wide',
        'host',
      ]),
    )
    .after(`
Examples:
  onejob status --watch
  onejob status --host ssh://ci@gpuci         another host, through SSH
  onejob status --all                         all hosts of the file

Exit codes: 0; 1 when a device that was once leased is missing, a device is in quarantine, a pool starts nothing because something
does not work (its CI service, its runtime, the disk), or there is no daemon, with --all on any host; 2 wrong usage.`)
    .does(failed, async (session, { all = false, ...flags }: StatusFlags & { all?: boolean }) =>
      all ? (await import('../status-all.ts')).showAll(session) : (await import('../status.ts')).showStatus(session, flags),
    );

  program
    .command('top')
    .description('watch devices, pools, running jobs and the queue on one screen; q quits')
    .after('\nWithout a terminal, and with --json, it prints one picture and ends.')
    .does(failed, async (session) => (await import('../top.ts')).showTop(session));
}

function addPlan(program: Cli): void {
  program
    .command('plan')
    .description('compare the config that the daemon loaded with what exists')
    .argument('[file]', 'with --inventory: the config (default: the config that a daemon would read)')
    .option('--inventory <file|dir>', 'show which agents and devices a recorded host would have; needs no daemon')
    .after(`
Examples:
  onejob plan
  nvidia-smi -L >gpuci.txt                                   on a host; then anywhere, with the config for it:
  onejob plan --inventory gpuci.txt gpuci.yml

Exit codes: 0; 1 when there is no daemon, or with --inventory when an agent would not get its devices; 2 wrong usage.`)
    .does(
      (error, _file, flags) => ('inventory' in (flags as object) ? failed() : wrongOrFailed(error)),
      async (session, file: string | undefined, { inventory }: { inventory?: string }) => {
        if (inventory !== undefined) return (await import('../plan.ts')).planInventory(session, inventory);
        if (file === undefined) return (await import('../plan.ts')).showPlan(session);
        const hint = `See "onejob config check ${file}", or add --inventory to plan for a recorded host.`;
        throw wrongUsage('Cannot plan with FILE: a daemon plans with the config that it loaded.', hint);
      },
      configFile,
    );
}

function addDoctorAndDashboard(program: Cli): void {
  program
    .command('doctor')
    .description('find problems of this host, and say what to do')
    .addOption(
      new Option('--all', 'the same for each host of ~/.config/onejob/hosts.yml or /etc/onejob/hosts.yml').conflicts('host'),
    )
    .does(failed, async (session, { all = false }: { all?: boolean }) =>
      all ? (await import('../status-all.ts')).doctorAll(session) : (await import('../doctor.ts')).showDoctor(session),
    );

  program
    .command('report')
    .local()
    .description('write an archive for a bug report, without secrets and names; it lists what is in it first')
    .argument('[what...]', 'jobs, agents or slots (default: jobs that went wrong in the last 24 hours)')
    .option('-o, --output <file>', 'the archive (default: onejob-report-TIME.tar.gz in the current folder)')
    .option('-y, --yes', 'write it, and ask nobody')
    .after(`
It contains versions, the config without its texts, what status and doctor say, how the jobs ended with the ends of their logs, and what
GPU tools print. It keeps only those words of texts that onejob itself publishes. Nothing is sent to anybody.

Examples:
  onejob report
  onejob report --yes --output report.tar.gz 7f3a9c
  onejob report --json                         only the list of what it would contain

Exit codes: 0; 1 when nothing was written; 2 wrong usage.`)
    .does(wrongOrFailed, async (session, what: string[], flags: ReportFlags) =>
      (await import('../report.ts')).makeReport(session, what, flags),
    );

  program
    .command('dashboard')
    .local()
    .description('print a link to the dashboard, and open it on a desktop')
    .option('--read-only', 'a link for somebody who may see everything, and change nothing')
    .option('--print', 'open no browser')
    .after(`
The link works once, and within a minute. Without "api" in the config, the dashboard is on a port of 127.0.0.1:

  onejob dashboard
  onejob dashboard --read-only --print
  ssh -L 7717:127.0.0.1:7717 gpuci                           from elsewhere, with "api: { listen: 127.0.0.1:7717 }" there`)
    .does(failed, async (session, flags: DashboardFlags) => (await import('../dashboard.ts')).showDashboard(session, flags));
}

function addPauses(program: Cli): void {
  for (const [what, description] of [
    ['pause', 'start nothing new until "resume", also after a restart; running jobs continue'],
    ['resume', 'end the pause with this reason, and a drain; exit code 1 while another reason remains'],
    ['drain', 'finish running jobs, then stay empty until "resume", also after a restart'],
  ] as const) {
    const command = program.command(what).description(description).argument('[pool]', 'default: all');
    if (what !== 'drain')
      command.option('--reason <text>', 'who holds the pause; a resume ends only the pause of the same reason', 'hand');
    command.does(failed, async (session, pool: string | undefined, { reason = 'hand' }: { reason?: string }) => {
      const { pausePools, resumePools } = await import('../control.ts');
      return what === 'resume' ? resumePools(session, pool ?? null, reason) : pausePools(session, what, pool ?? null, reason);
    });
  }
}

function addHidden(program: Cli): void {
  // Hidden, since only "--host" of another onejob starts it.
  program
    .command('relay', { hidden: true })
    .local()
    .description('pass connections on to the daemon; started through SSH')
    .does(failed, async (session) => (await import('../relay.ts')).relay(session));
  // Hidden, since only the daemon starts it.
  program
    .command('filter', { hidden: true })
    .local()
    .description('pass calls of untrusted jobs to their service; started by the daemon')
    .does(failed, async (session) => (await import('../filter.ts')).runFilter(session));
}
