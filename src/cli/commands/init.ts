/** `init`: its options and help. */
import type { Command } from 'commander';
import type { CommonFlags } from '../init-frame.ts';
import type { GlobalFlags, Session } from '../session.ts';
import { type Act, failed, global, wrongOrFailed } from './options.ts';

interface Options extends GlobalFlags {
  readonly tokenFile?: string;
  readonly agents?: string;
  readonly expires?: string;
  readonly yes?: boolean;
  readonly force?: boolean;
  readonly check: boolean;
}

type AzureOptions = Options & { readonly url?: string; readonly pool?: string };
type BuildkiteOptions = Options & { readonly endpoint?: string; readonly queue?: string };

export function addInitCommands(program: Command, act: Act): void {
  const init = program
    .command('init')
    .description('write a first config, for the own queue or a CI service; alone it says for which')
    .enablePositionalOptions()
    .action((flags: GlobalFlags) => act(async (session) => (await import('../init.ts')).listServices(session), failed)(flags));
  global(init);

  const ownQueue = init
    .command('own-queue')
    .description('look at the cards of this host, and write a config for jobs of "onejob run"')
    .option('--force', 'overwrite the config')
    .addHelpText('after', `\nExample:\n  onejob init own-queue\n\n${ending}`)
    .action((flags: GlobalFlags & { force?: boolean }) =>
      act(
        async (session) => (await import('../init-own-queue.ts')).initOwnQueue(session, { force: flags.force === true }),
        wrongOrFailed,
      )(flags),
    );
  global(ownQueue);

  const azure = init
    .command('azure-pipelines')
    .description('ask for organisation, token and pool, check them, write config and token file')
    .option('--url <url>', 'address of the organisation or collection')
    .option('--pool <name>', 'the agent pool there');
  usual(azure, { token: 'the personal access token', file: 'azure.pat' })
    .addHelpText(
      'after',
      `
Examples:
  onejob init azure-pipelines
  onejob init azure-pipelines --url https://dev.azure.com/acme --pool gpu --token-file /etc/onejob/azure.pat --yes

The token needs the scope "Agent Pools (Read & manage)", and whoever it belongs to the role Administrator in the pool.
${ending}`,
    )
    .action((flags: AzureOptions) => {
      const { url = null, pool = null } = flags;
      const work = async (session: Session) => (await import('../init.ts')).initAzure(session, { ...common(flags), url, pool });
      return act(interruptible(work), wrongOrFailed)(flags);
    });
  global(azure);

  const buildkite = init
    .command('buildkite')
    .description('ask for token and queue, check them, write config and token file')
    .option('--queue <key>', 'the queue that jobs are taken from')
    .option('--endpoint <url>', 'address of the Agent API');
  usual(buildkite, { token: 'the agent token', file: 'buildkite.token', force: '; take a queue that is not known' })
    .addHelpText(
      'after',
      `
Examples:
  onejob init buildkite
  onejob init buildkite --queue gpu --token-file /etc/onejob/buildkite.token --yes

The token is an agent token of the cluster (Agents, the cluster, Agent Tokens), not an API access token.
${ending}`,
    )
    .action((flags: BuildkiteOptions) => {
      const { endpoint = null, queue = null } = flags;
      const work = async (session: Session) =>
        (await import('../init-buildkite.ts')).initBuildkite(session, { ...common(flags), endpoint, queue });
      return act(interruptible(work), wrongOrFailed)(flags);
    });
  global(buildkite);
}

const ending = `The config is written to --config FILE, else to where a daemon looks for it.
Exit codes: 0 written; 1 not written, or it has problems; 2 wrong usage; 130 after Ctrl-C.`;

/** Options of every service. `force`: what else it does. */
function usual(command: Command, { token, file, force = '' }: { token: string; file: string; force?: string }): Command {
  return command
    .option('--token-file <file>', `where ${token} is, or is to be written (default: ${file} beside the config)`)
    .option('--agents <n>', 'number of agents, or per-device')
    .option('--expires <day>', 'last day of the token, such as 2027-05-01')
    .option('-y, --yes', 'take what is usual where nothing was said, and ask for no consent')
    .option('--force', `overwrite the config, and on a terminal its token file${force}`)
    .option('--no-check', 'do not ask the service whether all of it is right');
}

function common(flags: Options): CommonFlags {
  const { tokenFile = null, agents = null, expires = null, yes, force, check } = flags;
  return { tokenFile, agents, expires, yes: yes === true, force: force === true, check };
}

function interruptible(work: (session: Session) => Promise<number>): (session: Session) => Promise<number> {
  return async (session) => (await import('../init-ask.ts')).unlessInterrupted(session.output, () => work(session));
}
