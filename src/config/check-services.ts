/** Checks of services, and of pools that take their jobs from one. */
import { clearTextHost, isHostedAzure } from './azure-url.ts';
import { checkBuildkite, checkBuildkitePool } from './check-buildkite.ts';
import type { Checking } from './checking.ts';
import type { AzureServiceConfig, PoolConfig } from './config.ts';
import { suggest } from './problem.ts';
import { formatDuration } from './units.ts';

export function checkPoolService(pool: PoolConfig, checking: Checking): void {
  const { config, written, sound, own, inPool } = checking;
  if (!sound(pool, 'service')) return;
  const known = ['own', ...Object.keys(written.top.services ?? {})];
  if (pool.service !== 'own' && !known.includes(pool.service)) {
    inPool(pool, ['service'], `"services" has no ${JSON.stringify(pool.service)}; ${suggest(pool.service, known)}`);
  }
  if (pool.service === 'own' && own(pool, 'queue')) {
    inPool(pool, ['queue'], 'is not used: "service" is the own queue, whose jobs ask for a pool by its name', 'warning');
  }
  const service = config.services.find((one) => one.name === pool.service);
  if (service?.type === 'azure-pipelines') checkAzurePool(pool, service, checking);
  if (service?.type === 'buildkite') checkBuildkitePool(pool, service, checking);
  else if (service !== undefined || pool.service === 'own' || isOtherKnown(written.top.services?.[pool.service]))
    checkUnused(pool, checking);
}

/** Whether a service that has a problem of its own says all the same that it is of a type, and of another one than these. */
function isOtherKnown(written: unknown): boolean {
  if (typeof written !== 'object' || written === null || !('type' in written)) return false;
  return written.type === 'own-queue' || written.type === 'azure-pipelines';
}

/** What only some services know. `defaults` may hold it for pools of others. */
function checkUnused(pool: PoolConfig, { own, inPool }: Checking): void {
  const of =
    pool.service === 'own' ? 'jobs of the own queue come from users of this host' : `service ${pool.service} does not tell it`;
  if (own(pool, 'trust')) inPool(pool, ['trust'], `is not used: it is about where jobs come from, and ${of}`, 'warning');
  for (const key of ['hooks', 'plugins'] as const) {
    if (own(pool, key) && pool[key] !== null) inPool(pool, [key], `is not used: only agents of Buildkite know ${key}`, 'warning');
  }
  if (own(pool, 'isolation') && pool.isolation === 'none' && pool.service === 'own') {
    inPool(pool, ['isolation'], 'is not used: the own queue has no credentials that a job could read', 'warning');
  }
}

/** The agent of Azure Pipelines is a program in an image, which must write into its folder and reach the service. */
function checkAzurePool(pool: PoolConfig, { name }: AzureServiceConfig, { written, sound, inPool }: Checking): void {
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

export function checkServices(checking: Checking): void {
  const { config, at } = checking;
  for (const service of config.services) {
    if (service.type === 'azure-pipelines') checkAzure(service, checking);
    if (service.type === 'buildkite') checkBuildkite(service, checking);
  }
  const buildkite = config.services.filter((one) => one.type === 'buildkite');
  if (config.secretsKey === null || buildkite.some(({ registration }) => registration === 'manager')) return;
  if (buildkite.length === 0) {
    at(['secrets', 'key'], 'is not used: only jobs of a service of type buildkite bring encrypted secrets', 'warning');
    return;
  }
  const why = `agents of ${buildkite.map(({ name }) => name).join(', ')} take their jobs themselves ("registration: in-agent")`;
  at(['secrets', 'key'], `would open nothing: ${why}; take it out, and give secrets by "hooks" or by the service itself`);
}

function checkAzure(service: AzureServiceConfig, { written, at }: Checking): void {
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
