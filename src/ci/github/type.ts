/** GitHub Actions as a type of service: what config holds of one, and what has to fit. How it is written is `schema.ts`. */

import { formatDuration } from '../../base/units.ts';
import type { Checking } from '../../config/checking.ts';
import type { PoolConfig, ServiceConfig } from '../../config/config.ts';
import type { ServiceType } from '../../config/service-type.ts';
import { clearTextHost, isLoopback, type Listen, parseListen } from '../../http/address.ts';
import { addressText } from '../../http/listen.ts';
import { complete, type WrittenKeys } from '../../schema/key.ts';
import { packageOf } from '../../schema/service-keys.ts';
import { isFound } from '../../system/real-path.ts';
import type { GithubCredential, GithubServiceConfig } from './config.ts';
import { engineOwner, userFor, whyNoStrangers, whyNotAs } from './engine-owner.ts';
import { appKeys, dockerKeys, githubKeys, githubPackageKeys, webhookKeys } from './schema.ts';

export const github: ServiceType<GithubServiceConfig> = {
  type: 'github',
  title: 'GitHub Actions',
  agent: 'in-image',
  poolKeys: [],
  keys: githubKeys,
  maps: { app: appKeys, agent: githubPackageKeys, webhook: webhookKeys, docker: dockerKeys },
  needs: [['token', 'app']],
  mapNeeds: { app: ['id', 'private_key'], webhook: ['listen', 'secret'], docker: ['socket', 'folder'] },
  resolve(name, written) {
    const {
      url,
      group,
      mode,
      forks,
      public: open,
      poll: pollEvery,
      boot_timeout: bootTimeout,
      agent,
    } = complete(githubKeys, written);
    const credential = credentialOf(written);
    if (credential === null) return null;
    return {
      name,
      type: 'github',
      url,
      credential,
      group,
      mode,
      forks,
      public: open,
      pollEvery,
      bootTimeout,
      webhook: webhookOf(written),
      docker: dockerOf(written),
      agentPackage: packageOf(agent),
      mountedRunner: agent?.folder ?? null,
    };
  },
  tellsWaiting: knowsWaiting,
  whyOneHost: ({ mode }) =>
    mode === 'jit' ? null : 'with "mode: scale-set" it is a scale set; write "max: 1", or "mode: jit" into the service',
  secrets: ({ credential, webhook }) => [
    credential.kind === 'token' ? ['token', credential.token] : ['app.private_key', credential.privateKey],
    ...(webhook === null ? [] : [['webhook.secret', webhook.secret] as const]),
  ],
  notOnMachines: ['webhook'],
  check: checkGithub,
  checkPool: checkGithubPool,
};

function credentialOf({ token, app }: WrittenKeys<typeof githubKeys>): GithubCredential | null {
  if (token !== undefined) return { kind: 'token', token };
  if (app?.id === undefined || app.private_key === undefined) return null;
  return { kind: 'app', id: app.id, privateKey: app.private_key, installation: app.installation ?? null };
}

function webhookOf({
  webhook: { listen: text = '', secret } = {},
}: WrittenKeys<typeof githubKeys>): GithubServiceConfig['webhook'] {
  const listen = parseListen(text);
  return listen === null || secret === undefined ? null : { listen, secret };
}

function dockerOf({ docker: { socket, folder } = {} }: WrittenKeys<typeof githubKeys>): GithubServiceConfig['docker'] {
  return socket === undefined || folder === undefined ? null : { socket, folder };
}

/** Names of accounts and repositories (docs, "Username considerations"); enterprises by their slug. */
export const queueForm = /^(enterprises\/[\w-]{1,100}|[A-Za-z0-9][A-Za-z0-9-]{0,99}(\/(?!\.{1,2}$)[\w.-]{1,100})?)$/i;

/** Whose runners and jobs a queue means, as a part of the path of calls. Names have no case there. */
export function githubPlace(queue: string): string {
  const name = queue.toLowerCase();
  if (name.startsWith('enterprises/')) return name;
  return name.includes('/') ? `repos/${name}` : `orgs/${name}`;
}

/** Whether onejob hears of every job that waits for the pool. A webhook may be lost, and reports nothing that waited before. */
export function knowsWaiting({ mode }: Pick<GithubServiceConfig, 'mode'>, { queue }: Pick<PoolConfig, 'queue'>): boolean {
  return mode === 'scale-set' || githubPlace(queue).startsWith('repos/');
}

/** What jobs write in `runs-on`, without what devices add. */
export function labelsOf({ name, tags, elsewhere }: Pick<PoolConfig, 'name' | 'tags' | 'elsewhere'>): readonly string[] {
  return tags.length === 0 ? [elsewhere?.pool ?? name] : tags;
}

/** By what GitHub tells the agents of two pools apart, without what devices add. */
const wordsOf = (pool: Pick<PoolConfig, 'name' | 'queue' | 'tags' | 'elsewhere'>): string =>
  [
    githubPlace(pool.queue),
    ...labelsOf(pool)
      .map((label) => label.toLowerCase())
      .toSorted(),
  ].join(' ');

function checkGithubPool(pool: PoolConfig, service: GithubServiceConfig, { config, written, host, sound, inPool }: Checking): void {
  const given = written.pools?.get(pool.name) ?? written.defaults;
  const of = `"service" is ${service.name}`;
  const whose = 'write an organisation (acme), a repository (acme/app), or an enterprise (enterprises/acme)';
  if (given.queue === undefined) inPool(pool, ['queue'], `is missing: ${of}, which must know whose jobs the pool runs; ${whose}`);
  else if (sound(pool, 'queue') && !queueForm.test(pool.queue))
    inPool(pool, ['queue'], `is ${JSON.stringify(pool.queue)}, but ${of}; ${whose}`);
  else if (sound(pool, 'queue') && githubPlace(pool.queue).startsWith('enterprises/') && service.credential.kind === 'app')
    inPool(
      pool,
      ['queue'],
      `is an enterprise, but ${of}, which signs in as an App: GitHub lets Apps manage no runners there; write "token"`,
    );
  else if (sound(pool, 'queue') && githubPlace(pool.queue).startsWith('repos/') && service.group.toLowerCase() !== 'default')
    inPool(pool, ['queue'], `is a repository, but ${of} with "group: ${service.group}": runner groups belong to organisations`);
  const torn = sound(pool, 'tags') ? pool.tags.find((tag) => !/^[^\s,]{1,255}$/.test(tag)) : undefined;
  if (torn !== undefined) inPool(pool, ['tags'], `contain ${JSON.stringify(torn)}, but ${of}, where a label has no comma or space`);
  if (service.mode === 'scale-set' && sound(pool, 'tags') && pool.tags.length > 1)
    inPool(pool, ['tags'], `are several, but ${of} with "mode: scale-set", where jobs name one scale set; write one tag`);
  const twin = config.pools
    .slice(
      0,
      config.pools.findIndex(({ name }) => name === pool.name),
    )
    .find((one) => one.service === service.name && wordsOf(one) === wordsOf(pool));
  if (twin !== undefined && sound(pool, 'queue', 'tags'))
    inPool(
      pool,
      ['tags'],
      `are those of pool ${twin.name}, for the same "queue": GitHub gives the jobs of one to the other; give each pool labels of its own`,
      service.mode === 'scale-set' ? undefined : 'warning',
    );
  if (sound(pool, 'network') && pool.recipe.network === 'none')
    inPool(pool, ['network'], `is "none", but ${of}, which a runner must reach: no agent would ever come online; write internet`);
  if (pool.recipe.wants !== undefined && service.docker !== null && sound(pool, 'runtime')) {
    const how = 'whose "docker" is an Engine and a folder of this host, which jobs on other hosts do not have';
    inPool(pool, ['runtime'], `is ${pool.runtime}, but ${of}, ${how}; use a service without "docker" for this pool`);
  }
  if (pool.recipe.containers !== undefined && service.docker !== null && sound(pool, 'containers')) {
    const how = 'whose "docker" is another Engine for the same jobs; remove one of the two';
    inPool(pool, ['containers'], `is true, but ${of}, ${how}`);
  }
  if (pool.recipe.wants?.folders === false && service.mountedRunner !== null && sound(pool, 'runtime')) {
    const how = 'whose "agent.folder" is a folder of this host, which its sandboxes do not see';
    inPool(pool, ['runtime'], `is ${pool.runtime}, but ${of}, ${how}; use a service without it, and an image with the runner`);
  }
  const whyUser = service.docker === null ? null : whyNotAs(pool, service, userFor(service.docker.socket, host !== null));
  if (sound(pool, 'user') && whyUser !== null) inPool(pool, ['user'], whyUser);
  if (sound(pool, 'standby', 'queue') && !pool.standby && pool.devices.count !== 0 && !knowsWaiting(service, pool)) {
    const how = 'which does not list the jobs of an organisation or an enterprise: none would ever lease a device';
    inPool(pool, ['standby'], `is false, but "devices" are asked for and ${of}, ${how}; write "mode: scale-set" into the service`);
  }
  if (given.timeout !== undefined && pool.timeout !== null)
    inPool(
      pool,
      ['timeout'],
      `is not used: ${of}, where a workflow sets how long its job may run, with timeout-minutes`,
      'warning',
    );
}

const isGithub = (one: ServiceConfig): one is GithubServiceConfig => one.type === github.type;

function checkGithub(service: GithubServiceConfig, { config, written, host, whyHidden, at: report }: Checking): void {
  const { name, url, pollEvery, bootTimeout, agentPackage } = service;
  const keys = written.services.get(name)?.keys ?? {};
  const at = (path: readonly string[], message: string, severity?: 'warning') =>
    report(['services', name, ...path], message, severity);
  /** Of something that sandboxes mount. */
  const checkPath = (path: readonly string[], place: string): void => {
    const why = whyHidden(place);
    if (why !== null) at(path, why);
    else if (host !== null && isFound(place) === false) at(path, `is ${place}, which is not there: no agent can start`, 'warning');
  };
  if (keys.token !== undefined && keys.app !== undefined)
    at(['app'], 'and "token" are both set: onejob signs in with only one of them; remove the other');
  const { hostname, pathname } = new URL(url);
  if (/^(www|api)\.github\.com$/.test(hostname) || pathname !== '/')
    at(
      ['url'],
      `is ${url}, but must be the address of the server alone, such as https://github.com; "queue" of a pool says whose jobs it runs`,
    );
  const open = clearTextHost(url);
  if (open !== null)
    at(['url'], `is not encrypted: onejob would send its credential in clear text to ${open}; write https`, 'warning');
  if (bootTimeout < 2 * pollEvery) {
    const [boot, poll] = [formatDuration(bootTimeout), formatDuration(pollEvery)];
    const why = 'onejob would end an agent before it sees it; write at least twice "poll"';
    at(['boot_timeout'], `is ${boot}, but "poll" is ${poll}: ${why}`);
  }
  if (service.webhook !== null) {
    const { listen } = service.webhook;
    const isSame = (other: Listen | undefined) => other !== undefined && addressText(other) === addressText(listen);
    const twin = config.services.find((one) => one !== service && isGithub(one) && isSame(one.webhook?.listen));
    if (isSame(config.api?.listen) || twin !== undefined)
      at(
        ['webhook', 'listen'],
        `is ${addressText(listen)}, as ${twin === undefined ? 'that of "api"' : `that of service ${twin.name}`}: only one can listen there`,
      );
    if (!isLoopback(listen.host))
      at(
        ['webhook', 'listen'],
        `is ${listen.host}, which others can reach without encryption; listen on 127.0.0.1, behind a proxy on this host`,
        'warning',
      );
  }
  if (service.docker !== null) {
    for (const [key, path] of Object.entries(service.docker)) checkPath(['docker', key], path);
    const { socket } = service.docker;
    const owner = engineOwner(socket, host !== null);
    const why = whyNoStrangers(service, socket, owner);
    let whose = owner === 0 ? 'root' : `user ${owner}`;
    if (owner === null) whose = `the owner of ${socket}`;
    if (why !== null && (owner === 0 || host !== null)) at(['docker'], why);
    else
      at(
        ['docker'],
        `gives every job of its pools all rights of ${whose} on this host: only for jobs of people whom you trust`,
        'warning',
      );
  }
  if (keys.agent === undefined) return;
  const { version, from, sha256 } = agentPackage;
  if (service.mountedRunner !== null) {
    checkPath(['agent', 'folder'], service.mountedRunner);
    const other = Object.entries(agentPackage).find(([, value]) => value !== null);
    if (other !== undefined) at(['agent', other[0]], 'is not used: "folder" is set, whose runner agents get', 'warning');
    return;
  }
  if (from !== null && version === null)
    at(['agent', 'from'], 'does not contain the version in its name, as "…-2.336.0.tar.gz" does; write "version" too');
  if (sha256 !== null && version === null && from === null)
    at(
      ['agent', 'sha256'],
      'is the checksum of one package, but "version" is latest: onejob would refuse the next one; write "version" too',
    );
  if (sha256 === null && from?.startsWith('https:') && !from.startsWith('https://github.com/actions/runner/releases/'))
    at(['agent', 'from'], 'has no "sha256": onejob puts whatever it downloads from there into the image, unchecked', 'warning');
}
