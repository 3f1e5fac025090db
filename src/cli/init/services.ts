/** What `onejob init` knows of each CI service: a new one is a line here, and a file that asks. */
import { exampleUrl } from '../../ci/gitlab/schema.ts';
import type { serviceTypes } from '../../ci/types.ts';
import type { InitFlags, OpenFrame, TokenAsked } from './steps.ts';

/** How `onejob init` asks about a service. */
export interface InitSteps {
  readonly asks: string;
  /** Its own options, each with its meaning. */
  readonly options: readonly (readonly [flags: string, about: string])[];
  /** Default name of the file next to the config. */
  readonly token: TokenAsked;
  /** What `--force` does in addition. */
  readonly force?: string;
  /** An example of its options. */
  readonly example: string;
  readonly hint: string;
  run(flags: InitFlags, open: OpenFrame): Promise<number>;
}

/** By type of service. The own queue has a command of its own. */
export const initSteps: Readonly<Record<Exclude<(typeof serviceTypes)[number]['type'], 'own-queue'>, InitSteps>> = {
  'azure-pipelines': {
    asks: 'organisation, token and pool',
    options: [
      ['--url <url>', 'address of the organisation or collection'],
      ['--pool <name>', 'the agent pool there'],
    ],
    token: { what: 'the personal access token', file: 'azure.pat' },
    example: '--url https://dev.azure.com/acme --pool gpu',
    hint: 'The token needs the scope "Agent Pools (Read & manage)", and its owner needs the role Administrator in the pool.',
    run: async (...given) => (await import('./azure-pipelines.ts')).initAzure(...given),
  },
  buildkite: {
    asks: 'token and queue',
    options: [
      ['--queue <key>', 'the queue that jobs are taken from'],
      ['--endpoint <url>', 'address of the Agent API'],
    ],
    token: { what: 'the agent token', file: 'buildkite.token' },
    force: '; use a queue that the service does not list',
    example: '--queue gpu',
    hint: 'The token is an agent token of the cluster (Agents, the cluster, Agent Tokens), not an API access token.',
    run: async (...given) => (await import('./buildkite.ts')).initBuildkite(...given),
  },
  gitea: {
    asks: 'address, token and whose jobs to run',
    options: [
      ['--url <url>', 'address of the server'],
      ['--queue <name>', 'an organisation, a repository such as acme/app, or "*" for the whole instance'],
    ],
    token: { what: 'the access token', file: 'gitea.token' },
    example: '--url https://git.example.org --queue acme',
    hint: 'Create the token on the website (Settings, Applications) with the scopes write:organization and read:repository, or write:repository for one repository.',
    run: async (...given) => (await import('./gitea.ts')).initGitea(...given),
  },
  github: {
    asks: 'whose jobs to run, and an App or a token',
    options: [
      ['--queue <name>', 'an organisation, a repository such as acme/app, or enterprises/acme'],
      ['--app <id>', 'sign in as this GitHub App, with the private key in --token-file'],
      ['--url <url>', 'address of a GitHub Enterprise Server'],
    ],
    token: { what: "the access token, or the App's private key", file: 'github.token' },
    example: '--queue acme --app 123456',
    hint: 'An App needs the permission Self-hosted runners (organisation) or Administration (repository), read and write, and Actions, read.',
    run: async (...given) => (await import('./github.ts')).initGithub(...given),
  },
  gitlab: {
    asks: "address and a runner's token",
    options: [['--url <url>', 'address of the server']],
    token: { what: "the runner's authentication token", file: 'gitlab.token' },
    example: `--url ${exampleUrl}`,
    hint: 'Create a runner on the website (Settings, CI/CD, Runners, New runner), with its tags; its token begins with "glrt-".',
    run: async (...given) => (await import('./gitlab.ts')).initGitlab(...given),
  },
};
