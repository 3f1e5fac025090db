/** Checks of services of type buildkite, and of pools that take their jobs from one. */

import { checkTrust, isOpenProcess } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import { clearTextHost } from '../../config/clear-text.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { BuildkiteServiceConfig } from './type.ts';

export function checkBuildkitePool(pool: PoolConfig, service: BuildkiteServiceConfig, checking: Checking): void {
  const { sound, inPool } = checking;
  const of = `"service" is ${service.name}`;
  if (sound(pool, 'network') && pool.recipe.network === 'none') {
    const how = 'whose agents must reach the service: no job would ever begin';
    inPool(
      pool,
      ['network'],
      `is none, but ${of}, ${how}; write internet, which keeps them from this host and private ranges otherwise`,
    );
  }
  if (sound(pool, 'standby') && !pool.standby && pool.devices.count !== 0) {
    const how = 'whose jobs are taken for a slot that has its devices already: there would be none to take one for; remove the key';
    inPool(pool, ['standby'], `is false, but "devices" are asked for and ${of}, ${how}`);
  }
  if (sound(pool, 'runtime', 'isolation') && pool.runtime === 'process' && pool.isolation === 'full' && !isOpenProcess(pool)) {
    const how = 'which keeps credentials from other jobs only as root with bubblewrap: elsewhere the pool would start nothing';
    inPool(pool, ['runtime'], `is process, ${how}; write docker, or give it up with "isolation: none"`, 'warning');
  }
  checkTags(pool, of, checking);
  checkTrust(pool, checking);
}

/** The agent takes its tags as one text, split at commas (agent `clicommand/agent_start.go`, `--tags`). */
function checkTags(pool: PoolConfig, of: string, { sound, inPool }: Checking): void {
  if (sound(pool, 'queue') && /[,=\s]/.test(pool.queue)) {
    inPool(
      pool,
      ['queue'],
      `is ${JSON.stringify(pool.queue)}, but ${of}, where a queue has neither commas, "=" nor spaces in its name`,
    );
  }
  if (!sound(pool, 'tags')) return;
  const queue = pool.tags.find((tag) => /^queue\s*(=|$)/.test(tag));
  if (queue !== undefined) {
    const name = queue.replace(/^queue\s*=?\s*/, '');
    inPool(
      pool,
      ['tags'],
      `hold "${queue}": a pool has one queue, and its own key for it; write queue: ${name === '' ? 'NAME' : name}`,
    );
  }
  const torn = pool.tags.find((tag) => tag.includes(','));
  if (torn !== undefined) {
    inPool(pool, ['tags'], `hold ${JSON.stringify(torn)}, but ${of}, where a comma ends a tag; write a list for several values`);
  }
}

export function checkBuildkite(service: BuildkiteServiceConfig, { written, at }: Checking): void {
  const path = ['services', service.name];
  const open = clearTextHost(service.endpoint);
  if (open !== null) {
    at([...path, 'endpoint'], `is not encrypted: the token travels in clear to ${open}; write https`, 'warning');
  }
  const keys = written.services.get(service.name)?.keys ?? {};
  const { from, version, sha256 } = service.agentPackage;
  if (keys.agent === undefined) return;
  if (from === 'image' && sha256 !== null) {
    at([...path, 'agent', 'sha256'], 'is not used: "from" is image, so that each image brings an agent of its own', 'warning');
  }
  if (from?.startsWith('https:') && version === null) {
    at([...path, 'agent', 'from'], 'does not say in its name which version it is, as "…-3.137.0.tar.gz" does; write "version" too');
  }
  if (sha256 === null && from?.startsWith('https:') && !from.startsWith('https://github.com/buildkite/agent/releases/')) {
    at([...path, 'agent', 'from'], 'has no "sha256" beside it: whatever comes from there runs in the sandboxes', 'warning');
  }
}
