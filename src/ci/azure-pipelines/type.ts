/** Azure Pipelines as a type of service: what config holds of one. How it is written is `schema.ts`. */

import { formatDuration } from '../../base/units.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { ServiceType } from '../../config/service-type.ts';
import { clearTextHost } from '../../http/address.ts';
import { complete, type WrittenKeys } from '../../schema/key.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';
import { type AgentPackageConfig, packageOf } from '../../schema/service-keys.ts';
import { azureKeys, azurePackageKeys, principalKeys } from './schema.ts';
import { isHostedAzure } from './url.ts';

export interface AzureServiceConfig {
  readonly name: string;
  readonly type: 'azure-pipelines';
  /** Of the organisation or collection, without a slash at its end. */
  readonly url: string;
  readonly credential: AzureCredential;
  /**
   * Who registers an agent: `manager`, onejob, so that no credential enters a sandbox; `in-agent`, the agent's `config.sh`;
   * `image`, the image's start script; `auto`, `manager` for an image with an agent, else `image`: only the drop-in says that.
   */
  readonly registration: 'manager' | 'in-agent' | 'image' | 'auto';
  /** ms between two looks at the service. */
  readonly pollEvery: number;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly agentPackage: AgentPackageConfig;
}

export type AzureCredential =
  | { readonly kind: 'pat'; readonly token: SecretReference }
  /** An Entra application. `authority`: where its tokens are made, without a slash at its end. */
  | {
      readonly kind: 'principal';
      readonly tenant: string;
      readonly client: string;
      readonly secret: SecretReference;
      readonly authority: string;
    };

export const azurePipelines: ServiceType<AzureServiceConfig> = {
  type: 'azure-pipelines',
  title: 'Azure Pipelines',
  agent: 'in-image',
  poolKeys: [],
  keys: azureKeys,
  maps: { principal: principalKeys, agent: azurePackageKeys },
  needs: ['url', ['token', 'principal']],
  mapNeeds: { principal: ['tenant', 'client', 'secret'] },
  resolve(name, written) {
    const { url, registration, poll: pollEvery, boot_timeout: bootTimeout, agent } = complete(azureKeys, written);
    const credential = resolveCredential(written);
    if (url === undefined || credential === null) return null;
    return { name, type: 'azure-pipelines', url, credential, registration, pollEvery, bootTimeout, agentPackage: packageOf(agent) };
  },
  secrets: ({ credential }) => [credential.kind === 'pat' ? ['token', credential.token] : ['principal.secret', credential.secret]],
  check: checkAzure,
  checkPool: checkAzurePool,
};

function resolveCredential({ token, principal }: WrittenKeys<typeof azureKeys>): AzureCredential | null {
  if (token !== undefined) return { kind: 'pat', token };
  const { tenant, client, secret, authority } = complete(principalKeys, principal);
  if (tenant === undefined || client === undefined || secret === undefined) return null;
  return { kind: 'principal', tenant, client, secret, authority };
}

function checkAzurePool(pool: PoolConfig, { name }: AzureServiceConfig, { written, sound, inPool }: Checking): void {
  const given = written.pools?.get(pool.name) ?? written.defaults;
  const of = `"service" is ${name}`;
  if (sound(pool, 'read_only') && pool.recipe.readOnly)
    inPool(pool, ['read_only'], `is true, but ${of}, whose agent writes into its own folder and would not start; remove the key`);
  if (sound(pool, 'standby') && !pool.standby && pool.devices.count !== 0) {
    const how =
      'whose agents hold their devices while they wait for a job: there would be no job to lease them for; remove the key';
    inPool(pool, ['standby'], `is false, but "devices" are asked for and ${of}, ${how}`);
  }
  if (sound(pool, 'network') && pool.recipe.network === 'none')
    inPool(pool, ['network'], `is "none", but ${of}, which an agent must reach: no agent would ever come online; write internet`);
  if (given.timeout !== undefined && pool.timeout !== null) {
    const how = 'where a pipeline sets how long its job may run, with timeoutInMinutes';
    inPool(pool, ['timeout'], `is not used: ${of}, ${how}`, 'warning');
  }
}

function checkAzure(service: AzureServiceConfig, checking: Checking): void {
  const { name, url, credential, registration, pollEvery, bootTimeout } = service;
  const keys = checking.written.services.get(name)?.keys ?? {};
  const at = (path: readonly string[], message: string, severity?: 'warning') =>
    checking.at(['services', name, ...path], message, severity);
  if (keys.token !== undefined && keys.principal !== undefined)
    at(['principal'], 'and "token" are both set: onejob signs in with only one of them; remove the other');
  if (credential.kind === 'principal' && !isHostedAzure(url)) {
    const why = '"url" seems to be an Azure DevOps Server, which does not support Entra applications; write "token" instead';
    at(['principal'], `may not work: ${why}`, 'warning');
  }
  const secret = credential.kind === 'pat' ? 'token' : 'secret';
  const open = clearTextHost(url);
  if (open !== null)
    at(['url'], `is not encrypted: onejob would send the ${secret} in clear text to ${open}; write https`, 'warning');
  const host = credential.kind === 'principal' ? clearTextHost(credential.authority) : null;
  if (host !== null)
    at(['principal', 'authority'], `is not encrypted: onejob would send the secret in clear text to ${host}`, 'warning');
  if (registration === 'in-agent' || registration === 'image') {
    const who = registration === 'image' ? 'jobs may be able to read it' : 'it is removed before a job, which an image can prevent';
    const why = `the credential enters every sandbox, and ${who}; manager keeps it outside`;
    at(['registration'], `is ${registration}: ${why}`, 'warning');
  }
  if (bootTimeout < 2 * pollEvery) {
    const [boot, poll] = [formatDuration(bootTimeout), formatDuration(pollEvery)];
    const why = 'onejob would end an agent before it sees it; write at least twice "poll"';
    at(['boot_timeout'], `is ${boot}, but "poll" is ${poll}: ${why}`);
  }
  if (keys.agent === undefined) return;
  const { version, from, sha256 } = service.agentPackage;
  if (from !== null && version === null)
    at(['agent', 'from'], 'does not contain the version in its name, as "…-5.278.0.tar.gz" does; write "version" too');
  if (sha256 !== null && version === null && from === null) {
    const why = 'onejob would refuse the next one; write "version" too';
    at(['agent', 'sha256'], `is the checksum of one package, but "version" is latest: ${why}`);
  }
  if (sha256 === null && from?.startsWith('https:') && !from.startsWith('https://download.agent.dev.azure.com/'))
    at(['agent', 'from'], 'has no "sha256": onejob puts whatever it downloads from there into the image, unchecked', 'warning');
}
