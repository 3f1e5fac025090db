/** `config check`, `config show`, `completion`, the hidden `complete`, `version`, `help`: their options and help. */
import { Argument, type Command, CommanderError } from 'commander';
import type { Completed, Shell } from '../completion.ts';
import type { CheckFlags } from '../config.ts';
import { exitCodes } from '../exit.ts';
import type { GlobalFlags, Session } from '../session.ts';
import { type Act, does, failed, global } from './options.ts';

export function addConfigCommands(program: Command, act: Act): void {
  const config = program.command('config').description('check and show the config');
  const reads = <F extends GlobalFlags>(command: Command, work: (session: Session, flags: F) => Promise<number>) =>
    global(
      command
        .argument('[file]', 'default: the config that a daemon would read')
        .action((file: string | undefined, flags: F) =>
          act((session) => work(session, flags), failed)(file === undefined ? flags : { ...flags, config: file }),
        ),
    );
  const check = config
    .command('check')
    .description('report every problem in the config; exit code 1 if there are errors')
    .option('--no-secrets', 'for the config of another host: check neither its secrets nor what this host has');
  reads<GlobalFlags & CheckFlags>(check, async (session, flags) => (await import('../config.ts')).checkConfigFile(session, flags));
  const show = config.command('show').description('print the whole config in effect, and where each value comes from');
  reads(show, async (session) => (await import('../config.ts')).showConfig(session));

  const completion = program
    .command('completion')
    .description('print a completion script for a shell')
    .addArgument(new Argument('<shell>').choices(['bash', 'zsh', 'fish']))
    .addHelpText('after', '\nExample:\n  source <(onejob completion bash)');
  does(completion, act, failed, async ({ output }, shell: Shell) => {
    const { completionScript } = await import('../completion.ts');
    await output.print(completionScript(shell, program).trimEnd());
    return exitCodes.ok;
  });
  // Hidden, since only completion scripts call it.
  const complete = program
    .command('complete', { hidden: true })
    .description('print names for completion, from the running daemon')
    .addArgument(new Argument('<what...>').choices(['pools', 'slots', 'jobs', 'open-jobs']));
  does(complete, act, failed, async (session, what: Completed[]) => (await import('../completion.ts')).complete(session, what));
}

export function addAboutCommands(program: Command, act: Act): void {
  const version = program.command('version').description('print the version of this program');
  does(version, act, failed, async ({ output, version }) => {
    await (output.json ? output.value({ version }) : output.print(version));
    return exitCodes.ok;
  });
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
