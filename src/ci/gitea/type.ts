/** Gitea as a type of service: what config holds of one, and what has to fit. How it is written is `schema.ts`. */

import { formatDuration } from '../../base/units.ts';
import { checkTrust } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig } from '../../config/config.ts';
import { complete } from '../../schema/key.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';
import { type AgentPackageConfig, packageOf } from '../../schema/service-keys.ts';
import { checkForge, checkLatePool, checkProjects } from '../kit/checks.ts';
import type { ServiceType } from '../service-type.ts';
import { giteaKeys, pinnedRunner, runnerKeys } from './schema.ts';

export interface GiteaServiceConfig {
  readonly name: string;
  readonly type: 'gitea';
  /** Of the server, without a slash at its end. */
  readonly url: string;
  readonly token: SecretReference;
  /** ms between two looks at the server. */
  readonly pollEvery: number;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  /** Whether a job is known before there is a sandbox for it. */
  readonly binding: 'early' | 'late';
  readonly agentPackage: AgentPackageConfig;
}

export const gitea: ServiceType<GiteaServiceConfig> = {
  type: 'gitea',
  title: 'Gitea',
  agent: 'mounted',
  poolKeys: ['trust'],
  fixed: ['binding'],
  tellsOrigin: ({ binding }) => binding === 'late',
  keys: giteaKeys,
  maps: { agent: runnerKeys },
  needs: ['url', 'token'],
  filterRules: async () => (await import('./filter-rules.ts')).giteaRules,
  resolve(name, written) {
    const { url, token, poll: pollEvery, boot_timeout: bootTimeout, binding, agent: given } = complete(giteaKeys, written);
    if (url === undefined || token === undefined) return null;
    const agent = packageOf(given);
    // onejob pins what it downloads; a file of the owner has its own version.
    const agentPackage = agent.from === null ? { ...agent, version: agent.version ?? pinnedRunner } : agent;
    return { name, type: 'gitea', url, token, pollEvery, bootTimeout, binding, agentPackage };
  },
  secrets: ({ token }) => [['token', token]],
  check: checkGitea,
  checkPool: checkGiteaPool,
};

/** Names of owners and repositories (Gitea, `modules/validation`); `*`: everything. */
export const queueForm = /^(\*|[A-Za-z0-9][\w.-]{0,99}(\/[\w.-]{1,100})?)$/;

/** What jobs write in `runs-on`. */
export function labelsOf({ name, tags, elsewhere }: Pick<PoolConfig, 'name' | 'tags' | 'elsewhere'>): readonly string[] {
  return tags.length === 0 ? [elsewhere?.pool ?? name] : tags;
}

function checkGiteaPool(pool: PoolConfig, { name, binding }: GiteaServiceConfig, checking: Checking): void {
  const { config, written, sound, own, inPool } = checking;
  const given = written.pools?.get(pool.name) ?? written.defaults;
  const of = `"service" is ${name}`;
  const whose = 'write an organisation (acme), a repository (acme/app), or "*" for the whole instance';
  if (given.queue === undefined) inPool(pool, ['queue'], `is missing: ${of}, which must know whose jobs the pool runs; ${whose}`);
  else if (sound(pool, 'queue') && !queueForm.test(pool.queue))
    inPool(pool, ['queue'], `is ${JSON.stringify(pool.queue)}, but ${of}; ${whose}`);
  const torn = sound(pool, 'tags') ? pool.tags.find((tag) => !/^[^\s:,]{1,255}$/.test(tag)) : undefined;
  if (torn !== undefined)
    inPool(pool, ['tags'], `contain ${JSON.stringify(torn)}, but ${of}, where a label has no colon, comma or space`);
  if (binding === 'late') {
    const [first] = config.pools.filter(({ service }) => service === name);
    if (first !== undefined && first.name !== pool.name) {
      const why = `which pool ${first.name} uses already: with "binding: late" a service asks for the jobs of one pool`;
      inPool(pool, ['service'], `is ${name}, ${why}; write another service with the same url and token`);
    }
    checkLatePool(pool, of, checking);
    if (sound(pool, 'queue') && pool.queue === '*') checkProjects(pool, of, checking);
    checkTrust(pool, checking);
    return;
  }
  if (own(pool, 'trust')) {
    const why = `${of}, which gives its jobs to agents that wait already: the rules would come too late`;
    inPool(pool, ['trust'], `cannot be kept: ${why}; write "binding: late" into the service`);
  }
  if (sound(pool, 'network') && pool.recipe.network === 'none')
    inPool(pool, ['network'], `is "none", but ${of}, which an agent must reach: no agent would ever come online; write internet`);
}

function checkGitea(service: GiteaServiceConfig, checking: Checking): void {
  const { name, pollEvery, bootTimeout, binding } = service;
  checkForge(service, checking);
  if (binding === 'late') {
    if (checking.written.services.get(name)?.keys.boot_timeout === undefined) return;
    const why = 'is not used: with "binding: late" no agent waits online for a job';
    checking.at(['services', name, 'boot_timeout'], why, 'warning');
    return;
  }
  if (bootTimeout >= 2 * pollEvery) return;
  const [boot, poll] = [formatDuration(bootTimeout), formatDuration(pollEvery)];
  const why = 'onejob would end an agent before it sees it; write at least twice "poll"';
  checking.at(['services', name, 'boot_timeout'], `is ${boot}, but "poll" is ${poll}: ${why}`);
}
