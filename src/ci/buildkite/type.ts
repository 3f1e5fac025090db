/** Buildkite as a type of service: what config holds of one. How it is written is `schema.ts`. */
import type { AgentPackageConfig } from '../../config/config.ts';
import { numberIn, packageIn, secretIn } from '../../config/service-keys.ts';
import type { SecretReference } from '../../secrets/reference.ts';
import type { ServiceType } from '../service-type.ts';
import { checkBuildkite, checkBuildkitePool } from './check.ts';

export interface BuildkiteServiceConfig {
  readonly name: string;
  readonly type: 'buildkite';
  /** Of the Agent API, without a slash at its end. */
  readonly endpoint: string;
  /** Of a cluster, or of an organisation without. With it anybody can take any of its jobs, so it enters no sandbox but where `registration` says so. */
  readonly token: SecretReference;
  /**
   * Who makes an agent known to the service: `manager`, onejob itself, with a token for the one job that it has reserved. `in-agent`:
   * the agent, with the token of the service, which is all there is where nothing can be reserved.
   */
  readonly registration: 'manager' | 'in-agent';
  /** Only for counts; null: `token` is used for them too. */
  readonly metricsToken: SecretReference | null;
  /** ms between two looks at the counts of the queues. */
  readonly pollEvery: number;
  /** ms that the agent in a released sandbox may take to acquire its job. */
  readonly bootTimeout: number;
  /** ms that a reserved job may wait for a slot. */
  readonly holdTimeout: number;
  readonly agentPackage: AgentPackageConfig;
}

export const buildkiteDefaults = {
  endpoint: 'https://agent.buildkite.com/v3',
  registration: 'manager',
  poll: 10_000,
  boot_timeout: 60_000,
  hold_timeout: 600_000,
} as const;
/** Version of the agent that this onejob was tried with. */
export const pinnedAgent = '3.137.0';

export const buildkite: ServiceType<BuildkiteServiceConfig> = {
  type: 'buildkite',
  title: 'Buildkite',
  agent: 'mounted',
  poolKeys: ['trust', 'hooks', 'plugins'],
  defaults: buildkiteDefaults,
  init: {
    asks: 'token and queue',
    options: [
      ['--queue <key>', 'the queue that jobs are taken from'],
      ['--endpoint <url>', 'address of the Agent API'],
    ],
    token: { what: 'the agent token', file: 'buildkite.token' },
    force: '; take a queue that is not known',
    example: '--queue gpu',
    hint: 'The token is an agent token of the cluster (Agents, the cluster, Agent Tokens), not an API access token.',
    run: async (...given) => (await import('./init.ts')).initBuildkite(...given),
  },
  filterRules: async () => (await import('./filter-rules.ts')).buildkiteRules,
  schema: async () => (await import('./schema.ts')).schema,
  resolve(name, keys) {
    const token = secretIn(keys.token);
    if (token === null) return null;
    const agent = packageIn(keys.agent);
    return {
      name,
      type: 'buildkite',
      endpoint: typeof keys.endpoint === 'string' ? keys.endpoint : buildkiteDefaults.endpoint,
      token,
      registration: keys.registration === 'in-agent' ? 'in-agent' : buildkiteDefaults.registration,
      metricsToken: secretIn(keys.metrics_token),
      pollEvery: numberIn(keys.poll, buildkiteDefaults.poll),
      bootTimeout: numberIn(keys.boot_timeout, buildkiteDefaults.boot_timeout),
      holdTimeout: numberIn(keys.hold_timeout, buildkiteDefaults.hold_timeout),
      // What an owner brings has the version that it has; what onejob fetches is pinned.
      agentPackage: agent.from === null ? { ...agent, version: agent.version ?? pinnedAgent } : agent,
    };
  },
  secrets: ({ token, metricsToken }) => [
    ['token', token],
    ...(metricsToken === null ? [] : [['metrics_token', metricsToken] as const]),
  ],
  check: checkBuildkite,
  checkPool: checkBuildkitePool,
};
