/** GitLab as a type of service: what config holds of one, and what has to fit. How it is written is `schema.ts`. */

import { checkTrust } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig } from '../../config/config.ts';
import { complete } from '../../schema/key.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';
import { type AgentPackageConfig, packageOf } from '../../schema/service-keys.ts';
import { checkForge, checkLatePool, checkProjects } from '../kit/checks.ts';
import type { ServiceType } from '../service-type.ts';
import { gitlabKeys, pinnedRunner, runnerKeys } from './schema.ts';

export interface GitlabServiceConfig {
  readonly name: string;
  readonly type: 'gitlab';
  /** Of the server, without a slash at its end. */
  readonly url: string;
  /** Of a runner. It may take any of its jobs, so it enters no sandbox. */
  readonly token: SecretReference;
  /** ms between two questions for a job. */
  readonly pollEvery: number;
  /** Patterns of images that jobs may choose. */
  readonly images: readonly string[];
  readonly agentPackage: AgentPackageConfig;
}

export const gitlab: ServiceType<GitlabServiceConfig> = {
  type: 'gitlab',
  title: 'GitLab',
  agent: 'mounted',
  poolKeys: ['trust'],
  keys: gitlabKeys,
  maps: { agent: runnerKeys },
  needs: ['url', 'token'],
  filterRules: async () => (await import('./filter-rules.ts')).gitlabRules,
  resolve(name, written) {
    const { url, token, poll: pollEvery, images, agent: given } = complete(gitlabKeys, written);
    if (url === undefined || token === undefined) return null;
    const agent = packageOf(given);
    // onejob pins what it downloads; a file of the owner has its own version.
    const agentPackage = agent.from === null ? { ...agent, version: agent.version ?? pinnedRunner } : agent;
    return { name, type: 'gitlab', url, token, pollEvery, images: images ?? [], agentPackage };
  },
  secrets: ({ token }) => [['token', token]],
  check: checkForge,
  checkPool: checkGitlabPool,
};

function checkGitlabPool(pool: PoolConfig, { name }: GitlabServiceConfig, checking: Checking): void {
  const { config, sound, inPool } = checking;
  const of = `"service" is ${name}`;
  const [first] = config.pools.filter(({ service }) => service === name);
  if (first !== undefined && first.name !== pool.name) {
    const why = `which pool ${first.name} uses already: a service of type gitlab is one runner, whose tags choose its jobs, and the server does not say for which pool a job is`;
    inPool(pool, ['service'], `is ${name}, ${why}; create another runner at the server, and write a service of its own for it`);
  }
  const elsewhere = 'belongs to the runner at the server';
  if (sound(pool, 'queue') && pool.queue !== pool.name)
    inPool(pool, ['queue'], `is not used: ${of}, where the choice of jobs ${elsewhere}`, 'warning');
  if (sound(pool, 'tags') && pool.tags.length > 0)
    inPool(pool, ['tags'], `are not used: ${of}, where the tags are those of the runner at the server; set them there`, 'warning');
  checkLatePool(pool, of, checking);
  checkProjects(pool, of, checking);
  checkTrust(pool, checking);
}
