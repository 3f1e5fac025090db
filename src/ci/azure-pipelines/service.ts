/**
 * Azure Pipelines as a CI service. It binds early: an agent must be online to be given a job, so each standby is made known to the
 * service while it waits, with a key of its own; the credential never leaves the manager.
 */

import type { Clock } from '../../core/clock.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Store } from '../../store/store.ts';
import type { CiService } from '../ci-service.ts';
import { createEarlyBound } from '../early/engine.ts';
import type { SlotFacts } from '../parts.ts';
import { blame } from './blame.ts';
import { createBuilds } from './builds.ts';
import type { AzureClient } from './client.ts';
import { keepDiagnostics } from './diagnostics.ts';
import { findings } from './doctor.ts';
import type { AgentKey } from './key.ts';
import { choosePackage } from './package.ts';
import { type AzurePool, createAgentPools, isSameQueue, queuesOf } from './pools.ts';
import { createAzureRegistry } from './registry.ts';
import type { AzureServiceConfig } from './type.ts';

export interface AzureParts {
  readonly config: AzureServiceConfig;
  readonly pools: readonly AzurePool[];
  readonly store: Pick<Store, 'registrations' | 'serviceJobs' | 'transaction' | 'owner' | 'dir'>;
  readonly client: AzureClient;
  /** The token itself, for agents that make themselves known. */
  readonly token: (signal: AbortSignal) => Promise<string>;
  readonly makeKey: () => Promise<AgentKey>;
  readonly clock: Clock;
  readonly log: Log;
  readonly random: () => number;
  /** Names of the services that this manager has opened, this one among them. */
  readonly opened: ReadonlySet<string>;
  readonly slots: Pick<SlotFacts, 'poolOf' | 'silentFor' | 'isBusy'>;
}

/** Of what services may leave out it has these. */
export type AzureService = CiService &
  Required<Pick<CiService, 'ending' | 'settle' | 'blame' | 'waiting' | 'serviceJobs' | 'agentPackage' | 'forget'>>;

export function createAzurePipelines(parts: AzureParts): AzureService {
  const { config, pools, store, client, clock, log } = parts;
  const closing = new AbortController();
  const agentPools = createAgentPools(client, config.url);
  const builds = createBuilds(client);
  const queues = queuesOf(pools).map((name) => {
    return { name, pools: pools.filter(({ queue }) => isSameQueue(queue, name)).map((pool) => pool.name) };
  });
  const { common, registry, books } = createEarlyBound(
    { ...parts, service: config.name, url: config.url, queues, pollEvery: config.pollEvery, bootTimeout: config.bootTimeout },
    (known) => createAzureRegistry({ ...parts, books: known, agentPools, builds, closing: closing.signal }),
  );

  return {
    ...common,
    capabilities: { binds: 'early', canCountQueue: true, standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },

    check: (signal) => findings({ config, pools, client, agentPools, books, builds, registry, wall: () => clock.wall() }, signal),

    observe(emit, signal) {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      common.observe(emit, signal);
    },

    async settle({ agent }, files, signal) {
      try {
        await keepDiagnostics(clock, store.dir, agent, files, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn("the agent's own logs were not kept", { agent, reason: toFailure(error).message });
      }
    },

    deregister(context, signal) {
      registry.forget(context.agent);
      return common.deregister(context, signal);
    },

    blame,
    agentPackage: (platform, signal) => choosePackage(config.agentPackage, client, platform, signal),
    forget: (signal) => registry.placeholders.forget(signal),
  };
}
