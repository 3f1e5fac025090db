/** Checks of config that several services share. */

import { isOpenProcess } from '../../config/check-trust.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig } from '../../config/config.ts';
import { clearTextHost } from '../../http/address.ts';
import type { AgentPackageConfig } from '../../schema/service-keys.ts';
import { isBareName, namesProjects } from './trust.ts';

/** What a pool needs whose service knows a job before there is an agent. `of`: whose pool it is, as `"service" is lab`. */
export function checkLatePool(pool: PoolConfig, of: string, { sound, inPool }: Checking): void {
  if (sound(pool, 'network') && pool.recipe.network === 'none') {
    const how = 'whose agents must reach the service: no job would ever start';
    const instead = 'write internet, which keeps them from this host and private ranges otherwise';
    inPool(pool, ['network'], `is "none", but ${of}, ${how}; ${instead}`);
  }
  if (sound(pool, 'standby', 'devices') && !pool.standby && pool.devices.count !== 0 && pool.devices.count !== 1) {
    const how = 'which asks for a job only with devices for one: several would be kept free for a job that may not exist';
    inPool(
      pool,
      ['standby'],
      `is false, but each agent has several "devices" and ${of}, ${how}; ask for one device, or remove the key`,
    );
  }
  if (sound(pool, 'runtime', 'isolation') && pool.runtime === 'process' && pool.isolation === 'full' && !isOpenProcess(pool)) {
    const how = 'which keeps credentials from other jobs only as root with bubblewrap: otherwise the pool would start nothing';
    inPool(pool, ['runtime'], `is process, ${how}; write docker, or give up this protection with "isolation: none"`, 'warning');
  }
}

/** What the rules of a pool need whose service may give it jobs of any project. `of`: whose pool it is, as `"service" is lab`. */
export function checkProjects(pool: PoolConfig, of: string, { sound, inPool }: Checking): void {
  if (!sound(pool, 'trust')) return;
  const { trust } = pool;
  const key = (['branches', 'tags'] as const).find((one) => trust[one] !== null);
  const write = 'name the project with its owner, as in pipelines: [acme/demo]';
  if (key !== undefined && !namesProjects(trust)) {
    const why = `are trusted in every project, forks too: ${of}, whose runner may be one for the whole instance`;
    inPool(pool, ['trust', key], `${why}; ${write}`);
  }
  const bare = trust.pipelines?.find(isBareName);
  if (bare !== undefined)
    inPool(pool, ['trust', 'pipelines'], `contain ${JSON.stringify(bare)}, which forks of every owner match; ${write}`, 'warning');
}

/** Warns of what a service with these keys would send or run unprotected. */
export function checkForge(
  { name, url, agentPackage }: { readonly name: string; readonly url: string; readonly agentPackage: AgentPackageConfig },
  { written, at }: Pick<Checking, 'written' | 'at'>,
): void {
  const open = clearTextHost(url);
  const sent = `is not encrypted: onejob would send the token in clear text to ${open}; write https`;
  if (open !== null) at(['services', name, 'url'], sent, 'warning');
  const { sha256, from } = agentPackage;
  if (written.services.get(name)?.keys.agent === undefined || sha256 !== null || from?.startsWith('https:') !== true) return;
  const why = 'has no "sha256": whatever onejob downloads from there runs in the sandboxes, unchecked';
  at(['services', name, 'agent', 'from'], why, 'warning');
}
