/** `gitlab-executor`: its options and help. */
import { Argument } from 'commander';
import { exitCodes } from '../exit.ts';
import type { DriverFlags } from '../gitlab-executor.ts';
import { type Cli, integer } from './options.ts';

const steps = ['config', 'prepare', 'run', 'cleanup'] as const;

export function addGitlabCommands(program: Cli): void {
  program
    .command('gitlab-executor')
    .description("run jobs of a gitlab-runner in fresh agents: the driver of GitLab's custom executor")
    .usage('[options] config|prepare|run|cleanup')
    .addArgument(new Argument('<step>', 'what gitlab-runner calls it for').choices(steps))
    .argument('[script]', 'with run: the file that gitlab-runner has written')
    .argument('[stage]', "with run: the script's name")
    .option('--pool <name>', 'the pool to run in, as for "onejob run"')
    .option('--devices <n>', 'how many devices a job needs, as for "onejob run"', integer(0, 1024))
    .option('--job-images', 'use the image that a job names ("image:"), instead of the pool\'s')
    .after(`
gitlab-runner calls it, with the section [runners.custom] in its config.toml:
  [runners.custom]
    config_exec = "onejob"
    config_args = ["gitlab-executor", "config"]
    prepare_exec = "onejob"
    prepare_args = ["gitlab-executor", "prepare", "--pool", "gpu"]
    run_exec = "onejob"
    run_args = ["gitlab-executor", "run"]
    cleanup_exec = "onejob"
    cleanup_args = ["gitlab-executor", "cleanup"]

Exit codes: 0 done; $BUILD_FAILURE_EXIT_CODE the job is to blame; $SYSTEM_FAILURE_EXIT_CODE anything else is.`)
    .does(
      // It is also the SYSTEM_FAILURE_EXIT_CODE of every gitlab-runner so far.
      () => exitCodes.usage,
      async (session, step: (typeof steps)[number], script: string | undefined, stage: string | undefined, flags: DriverFlags) =>
        (await import('../gitlab-executor.ts')).gitlabExecutor(session, step, { script, stage }, flags),
    );
}
