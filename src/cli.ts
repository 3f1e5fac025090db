/**
 * The command line: the program, its help, and exit codes of failures. A command and its definition are imported when it is called,
 * so that it starts without unneeded code.
 */
import { resolve } from 'node:path';
import { CommanderError, Option } from 'commander';
import { hasCode } from './base/errors.ts';
import { type Act, Cli, hostOption } from './cli/commands/options.ts';
import type { CliContext } from './cli/context.ts';
import { exitCodes, notUtf8, wrongUsage } from './cli/exit.ts';
import { createOutput, type Output, OutputClosed } from './cli/output.ts';
import { type DaemonPlace, findPlace, type GlobalFlags, readVersion, type Session } from './cli/session.ts';
import { commandWord, usageError, withOptionsBehind, withoutHelpOfUnknown } from './cli/usage.ts';

/** Runs one command line. Resolves to the exit code; never rejects. */
export async function runCli(context: CliContext): Promise<number> {
  let code: number = exitCodes.ok;
  let output: Output = createOutput(context, context.args.includes('--json'));
  const act: Act = (work, onError) => async (flags: GlobalFlags) => {
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
  };
  const program = await buildProgram(context, act, commandWord(context.args));
  const args = withOptionsBehind(context.args, program);
  try {
    const changed = context.args.find((each) => !context.isGiven(each, 'cmdline'));
    if (changed !== undefined) throw notUtf8(`the argument ${JSON.stringify(changed)}`);
    await program.parseAsync(withoutHelpOfUnknown(args, program), { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) {
      output.fail(error);
      return hasCode(error, 'E_USAGE') ? exitCodes.usage : exitCodes.failed;
    }
    if (error.exitCode === 0) return exitCodes.ok;
    // Without a command, help is on standard error already.
    if (error.code !== 'commander.help') output.fail(usageError(error, args, program));
    else if (args.length === 0) {
      const next = (await import('./cli/service.ts')).nextStepHere(context);
      if (next !== null) output.say(`next: "${next}" starts the daemon now and at every boot`);
    }
    return exitCodes.usage;
  }
  return code;
}

const setup = 'Setting up:';

interface Definition {
  readonly group: string;
  /** Commands that need no other definition than this one. */
  readonly commands: readonly string[];
  load(): Promise<(program: Cli) => void>;
}

/** In the order of the help. */
const definitions: readonly Definition[] = [
  {
    group: 'Jobs:',
    commands: ['run', 'jobs', 'wait', 'history', 'logs', 'artifacts', 'cancel', 'move', 'shell', 'unhold'],
    load: async () => (await import('./cli/commands/jobs.ts')).addJobCommands,
  },
  {
    group: 'The daemon:',
    commands: [
      'up',
      'down',
      'status',
      'top',
      'plan',
      'doctor',
      'report',
      'dashboard',
      'pause',
      'resume',
      'drain',
      'relay',
      'filter',
    ],
    load: async () => (await import('./cli/commands/daemon.ts')).addDaemonCommands,
  },
  { group: setup, commands: ['init'], load: async () => (await import('./cli/commands/init.ts')).addInitCommands },
  { group: setup, commands: ['service'], load: async () => (await import('./cli/commands/service.ts')).addServiceCommands },
  { group: setup, commands: ['azure', 'manager'], load: async () => (await import('./cli/commands/azure.ts')).addAzureCommands },
  {
    group: setup,
    commands: ['gitlab-executor'],
    load: async () => (await import('./cli/commands/gitlab-executor.ts')).addGitlabCommands,
  },
  { group: setup, commands: ['import'], load: async () => (await import('./cli/commands/import.ts')).addImportCommands },
  {
    group: setup,
    commands: ['config', 'notify', 'complete'],
    load: async () => (await import('./cli/commands/config.ts')).addConfigCommands,
  },
  { group: setup, commands: ['gpus', 'proofs'], load: async () => (await import('./cli/commands/gpus.ts')).addGpuCommands },
  { group: setup, commands: ['image'], load: async () => (await import('./cli/commands/image.ts')).addImageCommands },
  { group: setup, commands: ['caches'], load: async () => (await import('./cli/commands/caches.ts')).addCacheCommands },
  { group: setup, commands: ['secret'], load: async () => (await import('./cli/commands/secret.ts')).addSecretCommands },
  { group: 'Clouds:', commands: ['cloud'], load: async () => (await import('./cli/commands/cloud.ts')).addCloudCommands },
  // "help" is about all commands, as is "completion".
  { group: setup, commands: ['version'], load: async () => (await import('./cli/commands/config.ts')).addAboutCommands },
];

/**
 * The program with its options and help. `act` decides what a command does. `name`: the command, if only that one will be called;
 * with any other word, the program has all commands.
 */
export async function buildProgram(context: Pick<CliContext, 'stdout' | 'stderr'>, act: Act, name?: string): Promise<Cli> {
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
  const own = definitions.find(({ commands }) => name !== undefined && commands.includes(name));
  const needed = own === undefined ? definitions : [own];
  const loaded = await Promise.all(needed.map(async ({ group, load }) => ({ group, add: await load() })));
  for (const { group, add } of loaded) add(program.commandsGroup(group));
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
  let place: Promise<DaemonPlace> | null = null;
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
