/** Checks of services of type azure-pipelines, and of pools that take their jobs from one. */

import type { Checking } from '../../config/check.ts';
import type { PoolConfig } from '../../config/config.ts';
import { clearTextHost } from '../../config/service-keys.ts';
import { formatDuration } from '../../config/units.ts';
import type { AzureServiceConfig } from './type.ts';
import { isHostedAzure } from './url.ts';

/** The agent of Azure Pipelines is a program in an image, which must write into its folder and reach the service. */
export function checkAzurePool(pool: PoolConfig, { name }: AzureServiceConfig, { written, sound, inPool }: Checking): void {
  const given = written.pools?.get(pool.name) ?? written.defaults;
  const of = `"service" is ${name}`;
  if (sound(pool, 'runtime') && pool.runtime === 'process') {
    inPool(pool, ['runtime'], `is process, but ${of}, whose agent stands in an image: there would be none; write docker`);
  }
  if (sound(pool, 'read_only') && pool.recipe.readOnly) {
    inPool(pool, ['read_only'], `is true, but ${of}, whose agent writes into its own folder: it would not start; remove the key`);
  }
  if (sound(pool, 'standby') && !pool.standby && pool.devices.count !== 0) {
    const how = 'whose agents wait on their devices for a job: there would be none to lease them for; remove the key';
    inPool(pool, ['standby'], `is false, but "devices" are asked for and ${of}, ${how}`);
  }
  if (sound(pool, 'network') && pool.recipe.network === 'none') {
    inPool(pool, ['network'], `is none, but ${of}, which an agent must reach: none would ever come online; write internet`);
  }
  if (given.timeout !== undefined && pool.timeout !== null) {
    const how = 'where a pipeline says how long its job may run, with timeoutInMinutes';
    inPool(pool, ['timeout'], `is not used: ${of}, ${how}`, 'warning');
  }
}

export function checkAzure(service: AzureServiceConfig, { written, at }: Checking): void {
  const { name, url, credential, registration, pollEvery, bootTimeout } = service;
  const path = ['services', name];
  const keys = written.services.get(name)?.keys ?? {};
  if (keys.token !== undefined && keys.principal !== undefined) {
    at([...path, 'principal'], 'and "token" are both given: onejob signs in with one of them only; remove the other');
  }
  if (credential.kind === 'principal' && !isHostedAzure(url)) {
    const why = 'an Azure DevOps Server, as "url" seems to be, knows no Entra applications; write "token" instead';
    at([...path, 'principal'], `may not work: ${why}`, 'warning');
  }
  const secret = credential.kind === 'pat' ? 'token' : 'secret';
  const open = clearTextHost(url);
  if (open !== null) {
    at([...path, 'url'], `is not encrypted: the ${secret} travels in clear to ${open}; write https`, 'warning');
  }
  if (credential.kind === 'principal') {
    const host = clearTextHost(credential.authority);
    if (host !== null)
      at([...path, 'principal', 'authority'], `is not encrypted: the secret travels in clear to ${host}`, 'warning');
  }
  if (registration === 'in-agent' || registration === 'image') {
    const who = registration === 'image' ? 'jobs may be able to read it' : 'it is removed before a job, which an image can spoil';
    at(
      [...path, 'registration'],
      `is ${registration}: the credential enters every sandbox, and ${who}; manager keeps it outside`,
      'warning',
    );
  }
  if (bootTimeout < 2 * pollEvery) {
    const [boot, poll] = [formatDuration(bootTimeout), formatDuration(pollEvery)];
    at(
      [...path, 'boot_timeout'],
      `is ${boot}, but "poll" is ${poll}: an agent would be ended before it is seen; write at least two polls`,
    );
  }
  checkPackage(path, service, keys.agent, at);
}

function checkPackage(path: readonly string[], { agentPackage }: AzureServiceConfig, written: unknown, at: Checking['at']): void {
  if (written === undefined) return;
  const { version, from, sha256 } = agentPackage;
  if (from !== null && version === null) {
    at([...path, 'agent', 'from'], 'does not say in its name which version it is, as "…-5.278.0.tar.gz" does; write "version" too');
  }
  if (sha256 !== null && version === null && from === null) {
    at(
      [...path, 'agent', 'sha256'],
      'is of one package, but "version" is latest: the next one would be refused; write "version" too',
    );
  }
  if (sha256 === null && from?.startsWith('https:') && !from.startsWith('https://download.agent.dev.azure.com/')) {
    at([...path, 'agent', 'from'], 'has no "sha256" beside it: whatever comes from there is put into the image', 'warning');
  }
}
