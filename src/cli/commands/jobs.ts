/** `run`, `jobs`, `logs`, `cancel`: their options and help. */
import { Option } from 'commander';
import { historyAxes, verdictKinds } from '../../contract/verdict.ts';
import type { ArtifactsFlags } from '../artifacts.ts';
import type { HistoryFlags } from '../history.ts';
import type { CancelFlags, ListFlags, LogsFlags, MoveFlags, PruneFlags } from '../jobs.ts';
import type { RunFlags } from '../request.ts';
import type { GlobalFlags } from '../session.ts';
import type { ShellFlags } from '../shell.ts';
import { type Cli, collect, integer, notRun, number, wrongOrFailed } from './options.ts';

export function addJobCommands(program: Cli): void {
  addRun(program);
  addPrune(addList(program));
  addWaitAndHistory(program);
  addLogsAndArtifacts(program);
  addCancelAndMove(program);
  addHeldJobs(program);
}

function addList(program: Cli): Cli {
  const jobs = program
    .command('jobs')
    .description('list jobs that are waiting or running')
    .argument(
      '[job|array]',
      'only this job, or the jobs of this array, ended or not; the first letters of a job are enough, at least four',
    )
    .option('-a, --all', 'also jobs that ended')
    .option('--limit <n>', 'only the newest (default with --all: 1000)', integer(1, 999_999))
    .option('--pool <name>', 'only jobs of this pool')
    .option('--user <name>', 'only jobs that were submitted under this user name')
    .option(
      '--state <state>',
      'only jobs in this state: queued, running and so on, or, of jobs that ended, passed, failed, cancelled, lost, timeout and so on',
    )
    .option('--since <time>', 'only jobs that ended since then, such as 7d ago, or a date')
    .option('--until <time>', 'only jobs that ended before then')
    .option('--failed', 'only jobs that ended and did not pass')
    .addOption(new Option('--verdict <kind>', 'only jobs that ended for this reason').choices([...verdictKinds]))
    .option('--service <name>', 'only jobs of this CI service that ended')
    .option('--image <image>', 'only jobs that ended and ran in this image')
    .option('--device <uuid>', 'only jobs that ended and had this device')
    .option('--wide', 'also show the slot and the devices of each job')
    .addOption(
      new Option('--all-hosts', 'what waits or runs on each host of ~/.config/onejob/hosts.yml or /etc/onejob/hosts.yml').conflicts(
        [
          'all',
          'limit',
          'pool',
          'user',
          'state',
          'since',
          'until',
          'failed',
          'verdict',
          'service',
          'image',
          'device',
          'wide',
          'host',
        ],
      ),
    );
  jobs.after(`
Examples:
  onejob jobs
  onejob jobs --failed --since 7d --pool gpu
  onejob jobs --verdict infrastructure --since 2026-11-20 --json
  onejob jobs JOB`);
  jobs.does(
    wrongOrFailed,
    async (session, job: string | undefined, { allHosts = false, ...flags }: ListFlags & { allHosts?: boolean }) =>
      allHosts
        ? (await import('../status-all.ts')).jobsOfAll(session, job ?? null)
        : (await import('../jobs.ts')).listJobs(session, job ?? null, flags),
  );
  return jobs;
}

function addPrune(jobs: Cli): void {
  jobs
    .command('prune')
    .description('delete jobs that ended, with their logs and artifacts, and files sent for them, before "keep_jobs" does')
    .option('--older-than <time>', 'only jobs that ended at least this long ago', '1d')
    .option('--dry-run', 'only print how many there are, and how much space they take')
    .after(`
Examples:
  onejob jobs prune --dry-run
  onejob jobs prune --older-than 2h`)
    .does(
      wrongOrFailed,
      async (session, flags: PruneFlags) => (await import('../jobs.ts')).pruneJobs(session, flags),
      // "--json" and the like may come before "prune".
      (_, command) => (command as Cli).optsWithGlobals<GlobalFlags>(),
    );
}

function addWaitAndHistory(program: Cli): void {
  program
    .command('wait')
    .description('wait until jobs have ended, and exit as they did')
    .argument('<job...>', "ids of jobs or arrays, or the first letters of a job's id, at least four")
    .after(`
Exit codes: the job's own, as for "onejob run"; of several jobs 0 if all passed, else 1. Ctrl-C ends only the waiting.

Examples:
  onejob wait "$(onejob run --detach -- make)"`)
    .does(wrongOrFailed, async (session, ids: string[]) => (await import('../wait.ts')).waitForJobs(session, ids));

  program
    .command('history')
    .description('show how many jobs failed and why, and how long they waited and ran')
    .addOption(new Option('--by <what>', 'what to compare (default: pools, devices and images)').choices([...historyAxes]))
    .option('--since <time>', 'since when, such as 30d ago, or a date, in whole hours', '7d')
    .option('--until <time>', 'until when')
    .option('--pool <name>', 'only jobs of this pool')
    .option('--service <name>', 'by hour or day: only jobs of this CI service')
    .option('--image <image>', 'by hour or day: only jobs that ran in this image')
    .option('--device <uuid>', 'by hour or day: only jobs that had this device')
    .after(`
Examples:
  onejob history
  onejob history --by device --since 30d
  onejob history --by image --pool gpu
  onejob history --by day --image nvidia/cuda:12.6.2-runtime-ubuntu24.04 --json`)
    .does(wrongOrFailed, async (session, flags: HistoryFlags) => (await import('../history.ts')).showHistory(session, flags));
}

function addLogsAndArtifacts(program: Cli): void {
  program
    .command('logs')
    .description('show the output of a job, an agent, or the current agent of a slot')
    .addOption(
      new Option('--agent', "show the agent's own logs instead; for some services, only after it has ended").conflicts('follow'),
    )
    .argument('<job|agent|slot>', 'a job id or its first letters, at least four; an agent name; or a slot such as default/1')
    .option('-f, --follow', 'follow the output until it ends')
    .option('-n, --tail <lines>', 'only the last lines of the output so far', integer(0, 1_000_000))
    .option('-p, --previous', 'for a slot: the agent before the current one')
    .option('--raw', 'on a terminal: everything that was printed, not only text and colours')
    .after(`
Examples:
  onejob logs -f default/1
  onejob logs -n 50 JOB`)
    .does(wrongOrFailed, async (session, target: string, flags: LogsFlags) =>
      (await import('../jobs.ts')).showLogs(session, target, flags),
    );

  program
    .command('artifacts')
    .description('bring the artifacts of a job that ended into the current folder, as "run" does')
    .argument('<job>', 'its id, or the first letters of it, at least four')
    .option(
      '--artifact <glob>',
      'only files that match, as with "run"; needed for a job of another host, which does not decide what is written here; may be repeated',
      collect,
    )
    .after(`
For jobs of "run --detach" and of arrays, and for those that "run" could not write, as on a full disk.

Examples:
  onejob artifacts JOB
  onejob --host gpuci artifacts JOB --artifact 'dist/**'`)
    .does(wrongOrFailed, async (session, job: string, flags: ArtifactsFlags) =>
      (await import('../artifacts.ts')).fetchArtifacts(session, job, flags),
    );
}

function addCancelAndMove(program: Cli): void {
  program
    .command('cancel')
    .description('cancel jobs; a waiting job never starts; jobs of a CI service must be cancelled there')
    .argument('[job...]', 'their ids, or the first letters of them, at least four')
    .addOption(new Option('--waiting', 'all waiting jobs').conflicts('all'))
    .option('--all', 'all jobs that have not ended; on a terminal it asks if some run')
    .option('--end', 'with --all: ask nobody')
    .option('--pool <name>', 'with --waiting or --all: only jobs of this pool')
    .does(wrongOrFailed, async (session, ids: string[], flags: CancelFlags) =>
      (await import('../jobs.ts')).cancelJobs(session, ids, flags),
    );

  program
    .command('move')
    .description('move waiting jobs to another pool')
    .argument('[job...]', 'ids of jobs or arrays, or the first letters of a job, at least four')
    .requiredOption('--to <pool>', 'the pool to wait in')
    .option('--waiting', 'all waiting jobs')
    .option('--pool <name>', 'with --waiting: only jobs of this pool, which the config may no longer have')
    .after(`
Examples:
  onejob move JOB --to gpu
  onejob move --waiting --pool old --to new`)
    .does(wrongOrFailed, async (session, ids: string[], flags: MoveFlags) =>
      (await import('../jobs.ts')).moveJobs(session, ids, flags),
    );
}

function addHeldJobs(program: Cli): void {
  program
    .command('shell')
    .description('open a terminal in the files of a failed job, while its pool holds it (hold_failed)')
    .usage('[options] JOB [-- COMMAND [ARG...]]')
    .argument('<job>', 'its id, or the first letters of it, at least four')
    .argument('[command...]', 'a command to run instead of a terminal')
    .option('-t, --terminal', 'give the command a terminal')
    .after(`
The shell has the files of the job, its image and its limits, but none of its devices and none of the variables that were
given with --env. What it changes in the workspace stays until the hold ends.
Exit codes: the shell's own; 125 if it could not start, or was ended.

Examples:
  onejob shell JOB
  onejob shell JOB -- ls -l
  onejob shell JOB -- cat core.log >core.log`)
    .does(notRun, async (session, job: string, command: string[], flags: ShellFlags) =>
      (await import('../shell.ts')).openShell(session, job, command, flags),
    );

  program
    .command('unhold')
    .description('remove the files of failed jobs that are held')
    .argument('<job...>', 'their ids, or the first letters of them, at least four')
    .does(wrongOrFailed, async (session, ids: string[]) => (await import('../shell.ts')).unholdJobs(session, ids));
}

function addRun(program: Cli): void {
  program
    .command('run')
    .description('run a command in a fresh agent, show its output, exit with its exit code')
    .usage('[options] [--] COMMAND [ARG...]')
    .argument('<command...>', 'the command and its arguments')
    .passThroughOptions()
    .option('--pool <name>', 'the pool to run in (default: the pool named default, otherwise the first without devices)')
    .option('--image <image>', "image of the agent, instead of the pool's")
    .option('--name <name>', 'name of the job in lists')
    .option('--memory <size>', "memory limit, such as 8GiB, up to the pool's")
    .option('--cpus <n>', "CPU limit, such as 1.5, up to the pool's", number(0.01, 4096))
    .option('--devices <n>', 'how many devices it needs', integer(0, 1024))
    .option('-e, --env <name[=value]>', 'set a variable, or pass on your own; may be repeated', collect)
    .option(
      '-v, --volume <host:container[:variable][:ro|rw]>',
      'mount a folder of this host into the job, read-only unless :rw; may be repeated',
      collect,
    )
    .option('--priority <n>', 'higher goes first', integer(-1000, 1000))
    .option('--timeout <time>', 'end it after this time, such as 90s, 10m or 1h30m')
    .option('--retries <n>', 'how often to start again if the agent is lost', integer(0, 100))
    .option(
      '--artifact <glob>',
      'copy files of the workspace back afterwards; * matches no dot files, ** does; may be repeated',
      collect,
    )
    .addOption(
      new Option('--workspace <dir>', 'folder to send as the workspace of the job (default: the current folder)').conflicts(
        'noWorkspace',
      ),
    )
    .option('--no-workspace', 'start in an empty folder')
    .option('--array <indices>', 'one job for each index, such as 0-99 or 1,3,7; each finds its own in $ONEJOB_ARRAY_INDEX')
    .option('--needs <job>', 'start only after this job or array has passed; may be repeated', collect)
    .option('-d, --detach', 'print the job id, and do not wait')
    .after(`
Examples:
  onejob run -- sh -c 'echo hello from $(hostname)'
  onejob run --image node:24 --artifact 'dist/**' -- npm run build
  onejob run --array 0-99 -- sh -c './test.sh --shard "$ONEJOB_ARRAY_INDEX"'
  onejob run --needs "$(onejob run --detach -- make)" -- make test
  onejob run --no-workspace --timeout 10m -e MODE=fast -- sh -c 'sleep 3; echo "$MODE"'

Ctrl-C cancels the job; a second one leaves it to the daemon.
Exit codes: the job's own; 128+n when signal n ended it; 124 time limit; 125 it could not run, or was lost;
130 cancelled; 137 out of memory; 153 out of disk; 2 wrong usage.`)
    .does(notRun, async (session, command: string[], flags: RunFlags): Promise<number> => {
      const [{ runJob }, { runOptions }] = await Promise.all([import('../run.ts'), import('../request.ts')]);
      return runJob(session, await runOptions(session.context, command, flags));
    });
}
