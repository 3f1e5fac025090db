/** `init`: its options and help. */
import type { Command } from 'commander';
import type { GlobalFlags, Session } from '../session.ts';
import { type Act, failed, global, wrongOrFailed } from './options.ts';

interface Flags extends GlobalFlags {
  readonly url?: string;
  readonly pool?: string;
  readonly tokenFile?: string;
  readonly agents?: string;
  readonly expires?: string;
  readonly yes?: boolean;
  readonly force?: boolean;
  readonly check: boolean;
}

type BuildkiteOptions = Omit<Flags, 'url' | 'pool'> & { readonly endpoint?: string; readonly queue?: string };

export function addInitCommands(program: Command, act: Act): void {
  const init = program
    .command('init')
    .description('write a first config for a CI service; alone it says for which')
    .enablePositionalOptions()
    .action((flags: GlobalFlags) => act(async (session) => (await import('../init.ts')).listServices(session), failed)(flags));
  global(init);

  const azure = init
    .command('azure-pipelines')
    .description('ask for organisation, token and pool, check them, write config and token file')
    .option('--url <url>', 'address of the organisation or collection')
    .option('--pool <name>', 'the agent pool there')
    .option('--token-file <file>', 'where the personal access token is, or is to be written (default: azure.pat beside the config)')
    .option('--agents <n>', 'number of agents, or per-device')
    .option('--expires <day>', 'last day of the token, such as 2027-05-01')
    .option('-y, --yes', 'take what is usual where nothing was said, and ask for no consent')
    .option('--force', 'overwrite the config, and on a terminal its token file')
    .option('--no-check', 'do not ask the service whether all of it is right')
    .addHelpText(
      'after',
      `
Examples:
  onejob init azure-pipelines
  onejob init azure-pipelines --url https://dev.azure.com/acme --pool gpu --token-file /etc/onejob/azure.pat --yes

The token needs the scope "Agent Pools (Read & manage)", and whoever it belongs to the role Administrator in the pool.
The config is written to --config FILE, else to where a daemon looks for it.
Exit codes: 0 written; 1 not written, or it has problems; 2 wrong usage; 130 after Ctrl-C.`,
    )
    .action((flags: Flags) =>
      act(
        interruptible(async (session) =>
          (await import('../init.ts')).initAzure(session, {
            url: flags.url ?? null,
            pool: flags.pool ?? null,
            tokenFile: flags.tokenFile ?? null,
            agents: flags.agents ?? null,
            expires: flags.expires ?? null,
            yes: flags.yes === true,
            force: flags.force === true,
            check: flags.check,
          }),
        ),
        wrongOrFailed,
      )(flags),
    );
  global(azure);
  const buildkite = init
    .command('buildkite')
    .description('ask for token and queue, check them, write config and token file')
    .option('--queue <key>', 'the queue that jobs are taken from')
    .option('--token-file <file>', 'where the agent token is, or is to be written (default: buildkite.token beside the config)')
    .option('--agents <n>', 'number of agents, or per-device')
    .option('--expires <day>', 'last day of the token, such as 2027-05-01')
    .option('--endpoint <url>', 'address of the Agent API')
    .option('-y, --yes', 'take what is usual where nothing was said, and ask for no consent')
    .option('--force', 'overwrite the config, and on a terminal its token file; take a queue that is not known')
    .option('--no-check', 'do not ask the service whether all of it is right')
    .addHelpText(
      'after',
      `
Examples:
  onejob init buildkite
  onejob init buildkite --queue gpu --token-file /etc/onejob/buildkite.token --yes

The token is an agent token of the cluster (Agents, the cluster, Agent Tokens), not an API access token.
The config is written to --config FILE, else to where a daemon looks for it.
Exit codes: 0 written; 1 not written, or it has problems; 2 wrong usage; 130 after Ctrl-C.`,
    )
    .action((flags: BuildkiteOptions) =>
      act(
        interruptible(async (session) =>
          (await import('../init-buildkite.ts')).initBuildkite(session, {
            endpoint: flags.endpoint ?? null,
            queue: flags.queue ?? null,
            tokenFile: flags.tokenFile ?? null,
            agents: flags.agents ?? null,
            expires: flags.expires ?? null,
            yes: flags.yes === true,
            force: flags.force === true,
            check: flags.check,
          }),
        ),
        wrongOrFailed,
      )(flags),
    );
  global(buildkite);
}

function interruptible(work: (session: Session) => Promise<number>): (session: Session) => Promise<number> {
  return async (session) => (await import('../init-ask.ts')).unlessInterrupted(session.output, () => work(session));
}
