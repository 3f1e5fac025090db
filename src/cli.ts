/**
 * The command line: the program, its help, and exit codes of failures. A command's code is imported when it is called, so that
 * `run` and `--help` start without unneeded code.
 */
import { resolve } from 'node:path';
import { CommanderError, Option } from 'commander';
import { addAzureCommands } from './cli/commands/azure.ts';
import { addAboutCommands, addConfigCommands } from './cli/commands/config.ts';
import { addDaemonCommands } from './cli/commands/daemon.ts';
import { addGpuCommands } from './cli/commands/gpus.ts';
import { addImageCommands } from './cli/commands/image.ts';
import { addImportCommands } from './cli/commands/import.ts';
import { addInitCommands } from './cli/commands/init.ts';
import { addJobCommands } from './cli/commands/jobs.ts';
import { type Act, Cli, hostOption } from './cli/commands/options.ts';
import { addSecretCommands } from './cli/commands/secret.ts';
import { addServiceCommands } from './cli/commands/service.ts';
import { exitCodes, wrongUsage } from './cli/exit.ts';
import { createOutput, type Output, OutputClosed } from './cli/output.ts';
import { type CliContext, findPlace, type GlobalFlags, type Place, readVersion, type Session } from './cli/session.ts';
import { usageError } from './cli/usage.ts';
import { hasCode } from './errors.ts';

/** Runs one command line. Resolves to the exit code; never rejects. */
export async function runCli(context: CliContext): Promise<number> {
  let code: number = exitCodes.ok;
  let output: Output = createOutput(context, context.args.includes('--json'));
  const program = buildProgram(context, (work, onError) => async (flags: GlobalFlags) => {
    output = createOutput(context, flags.json === true);
    let session: Session | null = null;
    try {
      session = await createSession(context, output, flags);
      code = await work(session);
    } catch (error) {
      code = error instanceof OutputClosed ? exitCodes.outputClosed : onError(error);
      output.fail(error);
    } finally {
      await session?.remote?.close();
    }
  });
  try {
    await program.parseAsync([...context.args], { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) {
      output.fail(error);
      return hasCode(error, 'E_USAGE') ? exitCodes.usage : exitCodes.failed;
    }
    if (error.exitCode === 0) return exitCodes.ok;
    // Without a command, help is on standard error already.
    if (error.code !== 'commander.help') output.fail(usageError(error, context.args, program));
    return exitCodes.usage;
  }
  return code;
}

/** Every command with its options and help. `act` decides what a command does. */
export function buildProgram(context: Pick<CliContext, 'stdout' | 'stderr'>, act: Act): Cli {
  const version = readVersion();
  const program = new Cli('onejob', act)
    .description('Fresh, single-use CI agents on your own machines: one agent, one job, then gone.')
    .version(version, '-v, --version', 'print the version')
    .addOption(new Option('-V').hideHelp())
    .on('option:V', () => {
      context.stdout.write(`${version}\n`);
      throw new CommanderError(exitCodes.ok, 'commander.version', version);
    })
    .helpOption('-h, --help', 'show this help')
    .addOption(hostOption())
    .enablePositionalOptions()
    .exitOverride()
    .configureOutput({
      writeOut: (text) => context.stdout.write(text),
      writeErr: (text) => context.stderr.write(text),
      outputError: () => {},
      getOutHelpWidth: () => context.stdout.columns ?? 100,
      getErrHelpWidth: () => context.stderr.columns ?? 100,
    })
    .helpCommand(false)
    .after(`
Examples:
  onejob run -- ls -l              run a command in a fresh agent, here and now, on the current folder
  onejob run --detach -- sh -c 'sleep 60; echo done'
  onejob logs -f JOB               follow a job
  onejob up                        run the daemon of this host in the foreground
  onejob status                    show what every slot is doing, problems first
  onejob --host ssh://gpuci status
                                   the same of another host

Exit codes: 0 done, 1 failed, 2 wrong usage; "run" passes on the exit code of the job, or 125 if the job could not run.`);
  program.commandsGroup('Jobs:');
  addJobCommands(program);
  program.commandsGroup('The daemon:');
  addDaemonCommands(program);
  program.commandsGroup('Setting up:');
  addInitCommands(program);
  addServiceCommands(program);
  addAzureCommands(program);
  addImportCommands(program);
  addConfigCommands(program);
  addGpuCommands(program);
  addImageCommands(program);
  addSecretCommands(program);
  addAboutCommands(program);
  return program;
}

async function createSession(context: CliContext, output: Output, given: GlobalFlags): Promise<Session> {
  // Absolute, since a temporary daemon runs in another directory.
  const path = (value: string | undefined) => (value === undefined ? undefined : resolve(context.cwd, value));
  const flags = { config: path(given.config), stateDir: path(given.stateDir), socket: path(given.socket) };
  // A socket on the command line counts more than a host in the environment.
  const usual = (flags.socket ?? flags.stateDir) === undefined ? context.environment.host : null;
  const { host: named = usual } = given;
  const host = named === null ? null : await (await import('./cli/hosts.ts')).findHost(named, context.environment);
  const session = { context, output, flags, version: readVersion() };
  let place: Promise<Place> | null = null;
  if (host === null)
    return { ...session, remote: null, place: () => (place ??= findPlace(flags, context.environment, context.cwd)) };
  const { createRemote } = await import('./cli/remote.ts');
  const { variables } = context;
  const { progress } = output;
  return {
    ...session,
    remote: createRemote({ host, variables, interactive: context.stderr.isTTY === true, progress }),
    place: () => Promise.reject(wrongUsage('This works only with the daemon of this host.', 'Leave out --host and ONEJOB_HOST.')),
  };
}
