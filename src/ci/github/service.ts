/** GitHub Actions binds early: each standby becomes a just-in-time runner, good for one job. The credential stays here. */

import { type Failure, OnejobError } from '../../base/errors.ts';
import type { PoolConfig } from '../../config/config.ts';
import type { Exit } from '../../core/slot.ts';
import { type CiEvent, type CiService, endedWithoutJob } from '../../ports/ci-service.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import { EarlyBound } from '../early/engine.ts';
import type { Queue } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import { choosePackage, settleDiagnostics } from '../kit/in-image.ts';
import { readOnlyMount } from '../kit/mounted.ts';
import type { OpenParts } from '../parts.ts';
import { apiOf, GithubClient } from './client.ts';
import type { GithubServiceConfig } from './config.ts';
import { githubFindings } from './doctor.ts';
import { engineOwner, userFor, whyNoStrangers, whyNotAs } from './engine-owner.ts';
import type { GithubParts } from './parts.ts';
import { GithubRegistry } from './registry.ts';
import { ScaleSets } from './scale-sets.ts';
import { lookInside, mountedAt } from './script.ts';
import { createSharedFiles } from './shared-files.ts';
import { githubPlace } from './type.ts';
import { Webhook } from './webhook.ts';
import type { JobEvent } from './wire.ts';

export function openGithub(config: GithubServiceConfig, parts: OpenParts): CiService {
  const { clock, fetch, onejob, variables, store, log } = parts;
  const { url, credential } = config;
  const secret = () => readSecret(credential.kind === 'token' ? credential.token : credential.privateKey, variables);
  const client = new GithubClient({ base: apiOf(url), credential, secret, clock, fetch, version: onejob.version });
  const base = apiOf(url);
  const owner = `onejob-${store.owner.slice(0, 8)}`;
  const sets =
    config.mode === 'jit' ? null : new ScaleSets({ base, url, client, clock, fetch, version: onejob.version, owner, log });
  return createGithub({ ...parts, config, client, sets, random: Math.random });
}

const howToFit = 'Compare "runs-on" in the workflow with "tags" of the pool, or its name if it has none.';

export function createGithub(parts: GithubParts) {
  const { config, pools, sets, store, clock, log } = parts;
  const { name: service, url } = config;
  const early = { ...parts, service, url, queues: queuesOf(pools), pace: config, compare: howToFit };
  const closing = new AbortController();
  const connect = (known: Registrations) => new GithubRegistry(parts, known, closing.signal);
  const bound = new EarlyBound(early, connect);
  const { common, registry, registrations } = bound;
  const webhook = config.webhook === null ? null : openWebhook(config.webhook);
  const { docker } = config;
  const shared = docker === null ? null : createSharedFiles({ ...parts, docker, agentNames: registrations.agentNames });
  const first = pools[0]?.queue;
  const sessions = new Set<Promise<void>>();

  return {
    ...common,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    check: async (signal) => [
      ...(await githubFindings(parts, registry, registrations, signal)),
      ...(webhook?.findings(`service ${service}`) ?? []),
    ],
    observe(emit, signal) {
      void webhook?.open();
      void shared?.watch(signal);
      if (sets === null) return common.observe(emit, signal);
      const either = AbortSignal.any([signal, closing.signal]);
      for (const one of observeSets(parts, sets, bound, emit, signal, either)) sessions.add(one);
    },
    waiting: (pool) => (sets ?? common).waiting(pool),
    listen: (agent) => (line) => registry.heard(agent, line),
    ...(config.mountedRunner === null && { asks: lookInside }),
    settle: settleDiagnostics(clock, log, store.dir),
    async register(context, signal) {
      refuseEngine(parts, context.pool);
      return common.register(context, signal);
    },
    async deregister(context, signal) {
      const answer = await common.deregister(context, signal);
      shared?.remove(context.agent);
      // The sweep continues with what is known.
      if (registrations.find(context.agent)?.state === 'removed') registry.forget(context.agent);
      return answer;
    },
    equip: (recipe) => equipped(recipe, config),
    describeExit,
    async close() {
      closing.abort();
      await Promise.all([webhook?.close(), shared?.close(), ...sessions]);
    },
    agentPackage: async (platform, signal) => {
      if (first === undefined || config.mountedRunner !== null) return null;
      return choosePackage('github', config.agentPackage, offered(parts, githubPlace(first)), platform, signal);
    },
  } satisfies CiService;

  function openWebhook({ listen, secret }: NonNullable<GithubServiceConfig['webhook']>) {
    const heard = (event: JobEvent): void => {
      const places = registry.hooked(event);
      const over = registry.over(event);
      if (over !== null) bound.had(over.job, over.agent, over.place);
      for (const { name } of early.queues) if (places.includes(githubPlace(name))) bound.lookNow(name);
    };
    return new Webhook({
      service,
      listen,
      secret: () => readSecret(secret, parts.variables),
      clock,
      log,
      heard,
      ports: parts.ports,
    });
  }
}

/** Another Engine may be at the socket than when the config was checked. @throws OnejobError E_CONFIG */
function refuseEngine({ config, pools }: GithubParts, name: string): void {
  const { docker } = config;
  const pool = pools.find((one) => one.name === name);
  if (docker === null || pool === undefined) return;
  const owner = engineOwner(docker.socket);
  const refused = (key: string, why: string): OnejobError =>
    new OnejobError('E_CONFIG', `Cannot create agents for pool ${name}: ${key} ${why}.`, {
      hint: 'Then run "onejob config check" and "onejob config apply".',
    });
  const why = whyNoStrangers(config, docker.socket, owner);
  if (why !== null) throw refused(`services.${config.name}.docker`, why);
  const whyUser = whyNotAs(pool, config, userFor(docker.socket));
  if (whyUser !== null) throw refused(`pools.${name}.user`, whyUser);
}

/** A pool is held by its scale set, and by the list of runners. */
function observeSets(
  { pools, config }: GithubParts,
  sets: ScaleSets,
  { common, registry }: EarlyBound<GithubRegistry>,
  emit: (event: CiEvent) => void,
  signal: AbortSignal,
  closing: AbortSignal,
): Promise<void>[] {
  const reasons = new Map<string, { set: string | null; list: string | null }>();
  const from = (which: 'set' | 'list') => (event: CiEvent) => {
    if (event.kind !== 'hold') return emit(event);
    const known = reasons.get(event.pool) ?? { set: null, list: null };
    reasons.set(event.pool, known);
    known[which] = event.reason;
    emit({ ...event, reason: known.set ?? known.list });
  };
  common.observe(from('list'), signal);
  return pools.map((pool) => {
    const place = githubPlace(pool.queue);
    const find = (inner: AbortSignal) => registry.setOf(pool, inner);
    // Its machines take the jobs.
    if (pool.elsewhere !== undefined) return sets.count(pool.name, find, config.pollEvery, from('set'), closing);
    return sets.serve(pool.name, find, (job) => registry.told(place, job), from('set'), closing);
  });
}

function offered({ config, client }: GithubParts, place: string) {
  return async (platform: string, signal: AbortSignal) => {
    const { version } = config.agentPackage;
    const newest = await client.packages(place, platform, signal);
    if (version === null || newest.some((one) => one.version === version)) return newest;
    // GitHub lists only the newest, but keeps every release.
    const name = `actions-runner-${platform}-${version}.tar.gz`;
    return [{ version, url: `https://github.com/actions/runner/releases/download/v${version}/${name}`, sha256: null }];
  };
}

/** As `CiService.equip`: the runner of this host, and an Engine where programs look for it, with a folder that has the same path for it. */
function equipped(recipe: Recipe, { docker, mountedRunner }: GithubServiceConfig): Recipe {
  const own = mountedRunner === null ? [] : [readOnlyMount(mountedRunner, mountedAt)];
  const shared = docker === null ? [] : [[docker.socket, '/var/run/docker.sock'] as const, [docker.folder, docker.folder] as const];
  const writable = shared.map(([host, container]) => ({ ...readOnlyMount(host, container), readOnly: false }));
  return { ...recipe, mounts: [...recipe.mounts, ...own, ...writable] };
}

/** Each place once, with its pools. */
function queuesOf(pools: readonly Pick<PoolConfig, 'name' | 'queue'>[]): Queue[] {
  const queues = [...Map.groupBy(pools, ({ queue }) => githubPlace(queue)).values()];
  return queues.map((same) => ({ name: same[0]?.queue ?? '', pools: same.map(({ name }) => name) }));
}

/** As `CiService.describeExit`. Exit codes of the listener: actions/runner, `Constants.cs`. */
export function describeExit(exit: Exit, outputTail: string): Failure {
  if (exit.kind !== 'code' || ![3, 4, 7].includes(exit.code)) return endedWithoutJob(exit, outputTail);
  const why =
    exit.code === 7 ? 'GitHub no longer accepts its version' : 'it wants to update itself, which it would do for every job';
  const message = `The runner ended (exit ${exit.code}): ${why}. Run "onejob image refresh", or put a newer runner into the image.`;
  return { code: 'E_AGENT_OUTDATED', message, retry: true };
}
