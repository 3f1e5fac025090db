/** `azure`, and its hidden name `manager`: its options and help. */
import { type Cli, integer, wrongOrFailed } from './options.ts';

interface Flags {
  readonly n: number;
  readonly name?: string;
  readonly docker?: string;
  readonly timeout?: number;
  readonly pollTime?: number;
  readonly volume?: readonly string[];
  readonly printConfig?: boolean;
}

/** Number of agents of the Python manager without `-n`. */
const usualAgents = 2;
const aDay = 86_400;

/** Long options of the Python manager, whose parser accepted unique prefixes. */
const long = ['--docker', '--help', '--name', '--poll-time', '--timeout', '--volume'];

export function addAzureCommands(program: Cli): void {
  define(program.command('azure'));
  define(program.command('manager', { hidden: true }));
}

function define(command: Cli): void {
  command
    .local()
    .description('run agents for an agent pool of Azure Pipelines, with the arguments of the Python manager')
    .usage('[options] <PAT|@FILE|-> <URL> <POOL>')
    .argument('<pat>', 'personal access token; @FILE: read it from that file; -: from AZP_TOKEN_FILE or AZP_TOKEN')
    .argument('<url>', 'URL of the organisation, such as https://dev.azure.com/acme')
    .argument('<pool>', 'the agent pool there')
    .option('-n <n>', 'number of agents', integer(1, 512), usualAgents)
    .option('--name <name>', "name the agents NAME_0, NAME_1, … (default: the host's name)")
    .option('-d, --docker <image>', 'image of the agents (default: one that onejob builds to suit the cards)')
    .option(
      '--volume <host:container:var...>',
      'mount a folder of this host into all jobs, read-only, with its path in the variable; may be repeated',
    )
    .option('--poll-time <s>', 'how often to ask the service, 2 s or more (default: 10)', integer(0, aDay))
    .option('--timeout <s>', 'no effect; accepted because the Python manager accepted it', integer(0, aDay))
    .option('--print-config', 'print the equivalent config file, and exit')
    .after(`
Examples:
  onejob azure @/etc/onejob/azure.pat https://dev.azure.com/acme gpu
  AZP_TOKEN_FILE=~/pat onejob azure - https://dev.azure.com/acme gpu -n 4 --name lab
  onejob azure @pat https://dev.azure.com/acme gpu --volume /data/a:/a:DATA_A /data/b:/b:DATA_B
  onejob azure @pat https://dev.azure.com/acme gpu --print-config >config.yml

It stays in the foreground; Ctrl-C ends its agents and removes them from the service. One entry that is never online stays
there, so that jobs wait for the next start: "onejob down --forget" in another terminal ends everything and removes it too.
The token stays with onejob: no agent
sees it, unless an image of your own (-d) signs in by itself. With more agents than cards, agents share cards; otherwise
each agent has its own cards.
Exit codes: 0 stopped; 1 could not run; 2 wrong usage.`);
  command.does(
    wrongOrFailed,
    async (session, token: string, url: string, pool: string, flags: Flags): Promise<number> =>
      (await import('../init/azure-drop-in.ts')).azure(session, {
        token,
        url,
        pool,
        agents: flags.n,
        name: flags.name ?? null,
        image: flags.docker ?? null,
        timeout: flags.timeout ?? null,
        pollTime: flags.pollTime ?? null,
        volumes: flags.volume ?? [],
        printConfig: flags.printConfig === true,
      }),
  );
  const parse = command.parseOptions.bind(command);
  const known = new Set(command.options.map((option) => option.long));
  command.parseOptions = (args) => parse(args.map((arg) => inFull(arg, known)));
}

/** `--vol=x` as `--volume=x`; everything else unchanged. */
function inFull(arg: string, known: ReadonlySet<string | undefined>): string {
  const [, name = '', rest = ''] = /^(--[a-z-]+)(=.*)?$/s.exec(arg) ?? [];
  const [full, ...others] = name === '' || known.has(name) ? [] : long.filter((each) => each.startsWith(name));
  return full === undefined || others.length > 0 ? arg : full + rest;
}
