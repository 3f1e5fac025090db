/** `config check`, `config show`, `config apply`, `notify test`, `completion`, the hidden `complete`, `version`, `help`: their options and help. */
import { Argument, type Command, CommanderError } from 'commander';
import type { Completed, Shell } from '../completion.ts';
import type { CheckFlags } from '../config.ts';
import { exitCodes } from '../exit.ts';
import { type Cli, configFile, failed } from './options.ts';

export function addConfigCommands(program: Cli): void {
  const config = program.command('config').description('check, show and apply the config');
  const usual = 'default: the config that a daemon would read';
  config
    .command('check')
    .local()
    .description('report every problem in the config; exit code 1 if there are errors')
    .option('--no-secrets', 'for the config of another host: check neither its secrets nor what this host has')
    .argument('[file]', usual)
    .does(
      failed,
      async (session, _file: unknown, flags: CheckFlags) => (await import('../config.ts')).checkConfigFile(session, flags),
      configFile,
    );
  config
    .command('show')
    .local()
    .description('print the whole config in effect, and where each value comes from')
    .option('--changed', 'leave out what has its default value')
    .argument('[file]', usual)
    .does(
      failed,
      async (session, _file: unknown, flags: { changed?: boolean }) => (await import('../config.ts')).showConfig(session, flags),
      configFile,
    );
  config
    .command('apply')
    .description('make the running daemon load its changed config file; running jobs continue')
    .option('--dry-run', 'only show what would change')
    .after(`
The config is checked first: if it is invalid, nothing changes. A SIGHUP does the same, as does "systemctl reload onejob".
Exit codes: 0; 1 when there is a problem, or no daemon runs here; 2 wrong usage.`)
    .does(failed, async (session, flags: { dryRun?: boolean }) => (await import('../config.ts')).applyConfig(session, flags));

  const notify = program.command('notify').description('messages for the few things that need a person');
  notify
    .command('test')
    .local()
    .description('send a test message to where "notify" in the config points, and show the answer')
    .after(`
It is sent by this command, not by the daemon: type it as the daemon's user, who can read the same files.
Exit codes: 0; 1 when nobody accepted the message, or the config has no "notify"; 2 wrong usage.`)
    .does(failed, async (session) => (await import('../notify.ts')).notifyTest(session));

  program
    .command('completion')
    .local()
    .description('print a completion script for a shell')
    .addArgument(new Argument('<shell>').choices(['bash', 'zsh', 'fish']))
    .after('\nExample:\n  source <(onejob completion bash)')
    .does(failed, async ({ output }, shell: Shell) => {
      const { completionScript } = await import('../completion.ts');
      await output.print(completionScript(shell, program).trimEnd());
      return exitCodes.ok;
    });
  // Hidden, since only completion scripts call it.
  program
    .command('complete', { hidden: true })
    .description('print names for completion, from the running daemon or the config')
    .addArgument(new Argument('<what...>').choices(['pools', 'slots', 'jobs', 'open-jobs', 'held-jobs', 'clouds', 'cloud-hosts']))
    .does(failed, async (session, what: Completed[]) => (await import('../completion.ts')).complete(session, what));
}

export function addAboutCommands(program: Cli): void {
  program
    .command('version')
    .local()
    .description('print the version of this program')
    .does(failed, async ({ output, version }) => {
      await (output.json ? output.value({ version }) : output.print(version));
      return exitCodes.ok;
    });
  program
    .command('help')
    .description('show the help of a command')
    .argument('[command...]', 'such as "run", or "gpus reserve"')
    .action((names: string[]) => {
      let command: Command = program;
      for (const name of names) {
        const found = command.commands.find((each) => each.name() === name);
        if (found === undefined) {
          throw new CommanderError(exitCodes.usage, 'commander.unknownCommand', `error: unknown command '${name}'`);
        }
        command = found;
      }
      command.outputHelp();
    });
}
