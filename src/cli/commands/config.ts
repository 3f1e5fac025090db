/** `config check`, `config show`, `completion`: their options and help. */
import { Argument, type Command } from 'commander';
import type { Shell } from '../completion.ts';
import { exitCodes } from '../exit.ts';
import type { GlobalFlags } from '../session.ts';
import { type Act, failed, global } from './options.ts';

export function addConfigCommands(program: Command, act: Act): void {
  const config = program.command('config').description('look at the config');
  for (const [what, description] of [
    ['check', 'say everything that is wrong with it; exit code 1 when something is'],
    ['show', 'the whole of it as it is in effect, and where each value comes from'],
  ] as const) {
    const command = config
      .command(what)
      .description(description)
      .argument('[file]', 'default: the one a daemon would read')
      .action((file: string | undefined, flags: GlobalFlags) =>
        act(
          async (session) => (await import('../config.ts')).lookAtConfig(session, what),
          failed,
        )(file === undefined ? flags : { ...flags, config: file }),
      );
    global(command);
  }

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
}
