/** `config check`, `config show`, `completion`, the hidden `complete`, `version`, `help`: their options and help. */
import { Argument, type Command, CommanderError } from 'commander';
import type { Completed } from '../complete.ts';
import type { Shell } from '../completion.ts';
import { exitCodes } from '../exit.ts';
import type { GlobalFlags } from '../session.ts';
import { type Act, failed, global } from './options.ts';

export function addConfigCommands(program: Command, act: Act): void {
  const config = program.command('config').description('look at the config');
  const file = ['[file]', 'default: the one a daemon would read'] as const;
  const reading = (flags: GlobalFlags, named: string | undefined) => (named === undefined ? flags : { ...flags, config: named });

  const check = config
    .command('check')
    .description('say everything that is wrong with it; exit code 1 when something is')
    .argument(...file)
    .option('--no-secrets', 'for the config of another host: look neither for its secrets nor at what this host has')
    .action((named: string | undefined, flags: GlobalFlags & { secrets: boolean }) =>
      act(
        async (session) => (await import('../config.ts')).checkConfigFile(session, { secrets: flags.secrets }),
        failed,
      )(reading(flags, named)),
    );
  global(check);

  const show = config
    .command('show')
    .description('the whole of it as it is in effect, and where each value comes from')
    .argument(...file)
    .action((named: string | undefined, flags: GlobalFlags) =>
      act(async (session) => (await import('../config.ts')).showConfig(session), failed)(reading(flags, named)),
    );
  global(show);

  const completion = program
    .command('completion')
    .description('print a completion script for a shell')
    .addArgument(new Argument('<shell>').choices(['bash', 'zsh', 'fish']))
    .addHelpText('after', '\nExample:\n  source <(onejob completion bash)')
    .action((shell: Shell, flags: GlobalFlags) =>
      act(async ({ output }) => {
        const { completionScript } = await import('../completion.ts');
        await output.print(completionScript(shell, program).trimEnd());
        return exitCodes.ok;
      }, failed)(flags),
    );
  global(completion);
  addComplete(program, act);
}

/** Hidden, since only completion scripts call it. */
function addComplete(program: Command, act: Act): void {
  const complete = program
    .command('complete', { hidden: true })
    .description('names for completion, of the daemon that is there')
    .addArgument(new Argument('<what...>').choices(['pools', 'slots', 'jobs', 'open-jobs']))
    .action((what: Completed[], flags: GlobalFlags) =>
      act(async (session) => (await import('../complete.ts')).complete(session, what), failed)(flags),
    );
  global(complete);
}

export function addAboutCommands(program: Command, act: Act): void {
  const version = program
    .command('version')
    .description('print the version of this program')
    .action((flags: GlobalFlags) =>
      act(async ({ output, version }) => {
        await (output.json ? output.value({ version }) : output.print(version));
        return exitCodes.ok;
      }, failed)(flags),
    );
  global(version);
  program
    .command('help')
    .description('show the help of a command')
    .argument('[command...]', 'such as "run", or "gpus reserve"')
    .action((names: string[]) => {
      let command = program;
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
