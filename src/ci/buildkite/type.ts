/** Buildkite as a type of service: what config holds of one, and what has to fit. How it is written is `schema.ts`. */

import { acceptedOutsiders, checkTrust } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig, ServiceConfig } from '../../config/config.ts';
import { clearTextHost } from '../../http/address.ts';
import { complete } from '../../schema/key.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';
import { type AgentPackageConfig, packageOf } from '../../schema/service-keys.ts';
import { checkLatePool } from '../kit/checks.ts';
import type { ServiceType } from '../service-type.ts';
import { buildkiteKeys, buildkitePackageKeys, pinnedAgent } from './schema.ts';

export interface BuildkiteServiceConfig {
  readonly name: string;
  readonly type: 'buildkite';
  /** Of the Agent API, without a slash at its end. */
  readonly endpoint: string;
  /** Of a cluster or organisation. It may take any job there, so it enters no sandbox unless `registration` says so. */
  readonly token: SecretReference;
  /**
   * Who registers an agent: `manager`, onejob, with a token for the one job that it has reserved; `in-agent`, the agent, with the
   * service's token, for organisations where nothing can be reserved.
   */
  readonly registration: 'manager' | 'in-agent';
  /** For counts; null: `token`. */
  readonly metricsToken: SecretReference | null;
  /** ms between two looks at the counts of the queues. */
  readonly pollEvery: number;
  /** ms that the agent in a released sandbox may take to acquire its job. */
  readonly bootTimeout: number;
  /** ms that a reserved job may wait for a slot. */
  readonly holdTimeout: number;
  readonly agentPackage: AgentPackageConfig;
}

const onlyWay = 'was removed: onejob now reserves jobs through the Stacks API, with the token of a cluster; remove the line';

export const buildkite: ServiceType<BuildkiteServiceConfig> = {
  type: 'buildkite',
  title: 'Buildkite',
  agent: 'mounted',
  poolKeys: ['trust', 'hooks', 'plugins'],
  keys: buildkiteKeys,
  maps: { agent: buildkitePackageKeys },
  needs: ['token'],
  removed: { mode: onlyWay, binding: onlyWay },
  filterRules: async () => (await import('./agent/filter-rules.ts')).buildkiteRules,
  resolve(name, written) {
    const { token, endpoint, registration, ...keys } = complete(buildkiteKeys, written);
    if (token === undefined) return null;
    const agent = packageOf(keys.agent);
    return {
      name,
      type: 'buildkite',
      endpoint,
      token,
      registration,
      metricsToken: keys.metrics_token ?? null,
      pollEvery: keys.poll,
      bootTimeout: keys.boot_timeout,
      holdTimeout: keys.hold_timeout,
      // onejob pins what it downloads; a file of the owner has its own version.
      agentPackage: agent.from === null ? { ...agent, version: agent.version ?? pinnedAgent } : agent,
    };
  },
  secrets: ({ token, metricsToken }) => [
    ['token', token],
    ...(metricsToken === null ? [] : [['metrics_token', metricsToken] as const]),
  ],
  // Their agents need no counts.
  notOnMachines: ['metrics_token'],
  check: checkBuildkite,
  checkPool: checkBuildkitePool,
};

function checkBuildkitePool(pool: PoolConfig, service: BuildkiteServiceConfig, checking: Checking): void {
  const of = `"service" is ${service.name}`;
  checkLatePool(pool, of, checking);
  if (checking.sound(pool, 'standby') && !pool.standby && pool.devices.count !== 0) {
    const how = 'which takes a job only for a slot that already has its devices: there would be no such slot; remove the key';
    checking.inPool(pool, ['standby'], `is false, but "devices" are asked for and ${of}, ${how}`);
  }
  checkTags(pool, of, checking);
  if (service.registration === 'in-agent') checkTokenInside(pool, service, checking);
  else checkTrust(pool, checking);
}

/** Trust rules need a job before it has an agent, so agents that take their jobs themselves cannot enforce them. */
function checkTokenInside(pool: PoolConfig, { name }: BuildkiteServiceConfig, { sound, inPool }: Checking): void {
  if (!sound(pool, 'trust')) return;
  const { trust } = pool;
  const why = `"service" is ${name} with "registration: in-agent", whose agents take jobs that onejob sees only once they run`;
  const open = acceptedOutsiders(trust).map((outsider) => `"${outsider}"`);
  if (open.length > 0) {
    const how = `${why}, in sandboxes that contain the agent token: any job could take every other job of the queue`;
    const write = 'write trust: { forks: refuse, others: refuse }, and build no forks in pipelines of this queue';
    inPool(pool, ['trust'], `accepts untrusted jobs, because of ${open.join(' and ')}, but ${how}; ${write}`);
  }
  for (const key of ['pipelines', 'branches', 'tags', 'sources', 'repositories'] as const) {
    if (trust[key] === null) continue;
    const instead = 'remove it, and restrict at the service which pipelines use this queue';
    inPool(pool, ['trust', key], `cannot be enforced: ${why}; ${instead}`);
  }
  if (trust.triggered === 'trust') inPool(pool, ['trust', 'triggered'], `cannot be enforced: ${why}; remove it`);
}

const isBuildkite = (one: ServiceConfig): one is BuildkiteServiceConfig => one.type === buildkite.type;

function checkKeyOf({ name }: BuildkiteServiceConfig, { config, at }: Pick<Checking, 'config' | 'at'>): void {
  if (config.services.some((one) => isBuildkite(one) && one.registration === 'manager')) {
    at(['services', name, 'registration'], 'is in-agent: "secrets.key" decrypts no secrets for its jobs', 'warning');
    return;
  }
  const why = `agents of ${name} take their jobs themselves ("registration: in-agent")`;
  const instead = 'remove it, and provide secrets with "hooks" or through the service itself';
  at(['secrets', 'key'], `would decrypt nothing: ${why}; ${instead}`);
}

/** The agent splits its tags at commas (agent `clicommand/agent_start.go`, `--tags`). */
function checkTags(pool: PoolConfig, of: string, { sound, inPool }: Checking): void {
  if (sound(pool, 'queue') && /[,=\s]/.test(pool.queue))
    inPool(pool, ['queue'], `is ${JSON.stringify(pool.queue)}, but ${of}, where the name of a queue has no commas, "=" or spaces`);
  if (!sound(pool, 'tags')) return;
  const queue = pool.tags.find((tag) => /^queue\s*(=|$)/.test(tag));
  if (queue !== undefined) {
    const name = queue.replace(/^queue\s*=?\s*/, '');
    const instead = `write queue: ${name === '' ? 'NAME' : name}`;
    inPool(pool, ['tags'], `contain "${queue}": a pool has one queue, and a separate key for it; ${instead}`);
  }
  const torn = pool.tags.find((tag) => tag.includes(','));
  if (torn !== undefined)
    inPool(pool, ['tags'], `contain ${JSON.stringify(torn)}, but ${of}, where a comma ends a tag; write a list for several values`);
}

function checkBuildkite(service: BuildkiteServiceConfig, { config, written, at }: Checking): void {
  const path = ['services', service.name];
  const open = clearTextHost(service.endpoint);
  if (open !== null)
    at([...path, 'endpoint'], `is not encrypted: onejob would send the token in clear text to ${open}; write https`, 'warning');
  const keys = written.services.get(service.name)?.keys ?? {};
  if (service.registration === 'in-agent') {
    const how = 'the agent token enters every sandbox, and every job can read it';
    at([...path, 'registration'], `is in-agent: ${how}; if the organisation has clusters, manager keeps it outside`, 'warning');
    if (keys.hold_timeout !== undefined)
      at([...path, 'hold_timeout'], 'is not used: with "registration: in-agent" onejob reserves no jobs', 'warning');
    if (config.secretsKey !== null) checkKeyOf(service, { config, at });
  }
  const { from, version, sha256 } = service.agentPackage;
  if (keys.agent === undefined) return;
  if (from === 'image' && sha256 !== null)
    at([...path, 'agent', 'sha256'], 'is not used: "from" is image, so each image brings an agent of its own', 'warning');
  if (from?.startsWith('https:') && version === null)
    at([...path, 'agent', 'from'], 'does not contain the version in its name, as "…-3.137.0.tar.gz" does; write "version" too');
  if (sha256 === null && from?.startsWith('https:') && !from.startsWith('https://github.com/buildkite/agent/releases/')) {
    const why = 'has no "sha256": whatever onejob downloads from there runs in the sandboxes, unchecked';
    at([...path, 'agent', 'from'], why, 'warning');
  }
}
