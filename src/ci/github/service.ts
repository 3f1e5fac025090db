/** GitHub Actions binds early: each standby becomes a just-in-time runner, good for one job. The credential stays here. */
import type { PoolConfig } from '../../config/config.ts';
import type { Exit, Failure } from '../../core/slot.ts';
import { readSecret } from '../../secrets/reference.ts';
import type { Store } from '../../store/store.ts';
import { type CiService, endedWithoutJob } from '../ci-service.ts';
import { createEarlyBound } from '../early/engine.ts';
import type { EarlyParts, Queue } from '../early/port.ts';
import type { Registrations } from '../early/registrations.ts';
import { choosePackage, settleDiagnostics } from '../kit/in-image.ts';
import type { OpenParts } from '../parts.ts';
import { apiOf, createGithubClient, type GithubClient } from './client.ts';
import { findings } from './doctor.ts';
import { createGithubRegistry } from './registry.ts';
import { type GithubServiceConfig, placeOf } from './type.ts';

export function openGithub(config: GithubServiceConfig, parts: OpenParts): CiService {
  const { clock, fetch, onejob, variables } = parts;
  const { url, credential } = config;
  const secret = () => readSecret(credential.kind === 'token' ? credential.token : credential.privateKey, variables);
  const client = createGithubClient({ base: apiOf(url), credential, secret, clock, fetch, version: onejob.version });
  return createGithub({ ...parts, config, client, random: Math.random });
}

export interface GithubParts extends Omit<EarlyParts, 'service' | 'url' | 'queues' | 'pace'> {
  readonly config: GithubServiceConfig;
  readonly pools: readonly PoolConfig[];
  readonly store: EarlyParts['store'] & Pick<Store, 'dir'>;
  readonly client: GithubClient;
}

export function createGithub(parts: GithubParts) {
  const { config, pools, client, store, clock, log } = parts;
  const { name: service, url } = config;
  const early = { ...parts, service, url, queues: queuesOf(pools), pace: config };
  const connect = (known: Registrations) => createGithubRegistry(parts, known);
  const { common, registry, registrations } = createEarlyBound(early, connect);
  const first = pools[0]?.queue;

  return {
    ...common,
    capabilities: { binds: 'early', standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },
    check: (signal) => findings(parts, registry, registrations, signal),
    listen: (agent) => (line) => registry.heard(agent, line),
    settle: settleDiagnostics(clock, log, store.dir),
    async deregister(context, signal) {
      const answer = await common.deregister(context, signal);
      // The sweep continues with what is known.
      if (answer.ran !== undefined) registry.forget(context.agent);
      return answer;
    },
    describeExit,
    agentPackage: async (platform, signal) => {
      if (first === undefined) return null;
      return choosePackage('github', config.agentPackage, offered(placeOf(first)), platform, signal);
    },
  } satisfies CiService;

  function offered(place: string) {
    return async (platform: string, signal: AbortSignal) => {
      const { version } = config.agentPackage;
      const newest = await client.packages(place, platform, signal);
      if (version === null || newest.some((one) => one.version === version)) return newest;
      // GitHub lists only the newest, but keeps every release.
      const name = `actions-runner-${platform}-${version}.tar.gz`;
      return [{ version, url: `https://github.com/actions/runner/releases/download/v${version}/${name}`, sha256: null }];
    };
  }
}

/** Each place once, with its pools. */
function queuesOf(pools: readonly Pick<PoolConfig, 'name' | 'queue'>[]): Queue[] {
  const queues = [...Map.groupBy(pools, ({ queue }) => placeOf(queue)).values()];
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
