/**
 * Azure Pipelines as a CI service. It binds early: an agent must be online to be given a job, so each standby is made known to the
 * service while it waits, with a key of its own; the credential never leaves the manager.
 */
import type { AzureServiceConfig } from '../../config/config.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import type { Store } from '../../store/store.ts';
import type { CiEvent, CiService } from '../ci-service.ts';
import { seesNoJobs } from '../early-bound.ts';
import { blame } from './blame.ts';
import { createBuilds } from './builds.ts';
import type { AzureClient } from './client.ts';
import { keepDiagnostics } from './diagnostics.ts';
import { findings } from './doctor.ts';
import { createEnlist } from './enlist.ts';
import { createGonePools } from './gone.ts';
import { createJobBook } from './job-book.ts';
import type { AgentKey } from './key.ts';
import type { AgentKind } from './kind.ts';
import { createLook } from './look.ts';
import { createMarks } from './marks.ts';
import { createOutlived } from './outlived.ts';
import { choosePackage } from './package.ts';
import { createParting } from './parting.ts';
import { createPlaceholders } from './placeholder.ts';
import { type AzurePool, createAgentPools, isSameQueue, queuesOf } from './pools.ts';
import { createRegistrar } from './registrar.ts';
import { createSilence } from './silence.ts';
import { createSweep } from './sweep.ts';
import { type Seen, Watch } from './watch.ts';

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
  /** Whether a slot still has this agent, in whatever lane. */
  readonly isLive: (agent: AgentId) => boolean;
  /** The pool that an agent is in; null when no slot has it. */
  readonly poolOf: (agent: AgentId) => string | null;
  /** How long a released agent has not been seen by its service, ms; null for any other. */
  readonly silentFor: (agent: AgentId) => number | null;
  /** Whether the agent's slot counts as busy with its job. */
  readonly isBusy: (agent: AgentId) => boolean;
}

export function createAzurePipelines(parts: AzureParts): CiService {
  const { config, pools, store, client, clock, log, makeKey, isLive, poolOf, silentFor, isBusy } = parts;
  const service = config.name;
  const wall = () => clock.wall();
  const closing = new AbortController();
  const marks = createMarks(store.owner);
  const agentPools = createAgentPools(client, config.url);
  const gone = createGonePools(client, log, () => clock.now());
  const registrar = createRegistrar({ service, store, client, gone, wall, opened: parts.opened });
  const placeholders = createPlaceholders({ service, client, registrar, marks, makeKey });
  const builds = createBuilds(client);
  const jobs = createJobBook({ service, store, client, builds, poolOf, wall });
  const kinds = new Map<AgentId, AgentKind>();
  const retired = new Set<AgentId>();
  const enlist = createEnlist({
    ...{ config, pools, client, log, marks, agentPools, gone, registrar, placeholders, jobs, kinds, retired, makeKey },
    token: parts.token,
    closing: closing.signal,
  });
  const sweep = createSweep({
    ...{ log, client, registrar, marks, isLive },
    before: ({ pool, id }, agent, signal) => jobs.last(pool, id, agent, signal),
    now: () => clock.now(),
  });
  const look = createLook({
    ...{ log, client, marks, registrar, placeholders, jobs, kinds, sweep, poolOf },
    silence: createSilence({
      ...{ clock, log, client, registrar, jobs, silentFor, retired },
      url: config.url,
      bootTimeout: config.bootTimeout,
    }),
    outlived: createOutlived({ clock, log, client, isBusy }),
  });
  /** By the id of the agent pool. */
  const latest = new Map<number, Seen>();

  const watch = (queue: string, emit: (event: CiEvent) => void, signal: AbortSignal): void => {
    const served = pools.filter((pool) => isSameQueue(pool.queue, queue)).map(({ name }) => name);
    const one = new Watch(
      {
        ...{ clock, log, client },
        every: config.pollEvery,
        find: (inner) => agentPools.find(queue, inner),
        agentOf: (name) => {
          const agent = marks.agentOf(name);
          // Another service of this host may have its agents in the same agent pool.
          return agent !== null && registrar.find(agent)?.service === service ? agent : null;
        },
        random: parts.random,
        saw(seen, inner) {
          latest.set(seen.pool.id, seen);
          look.after(seen, served, emit, inner);
        },
        failed(reason) {
          if (reason !== null) agentPools.forget(queue);
          for (const pool of served) emit({ kind: 'hold', pool, reason });
        },
      },
      signal,
    );
    void one.start();
  };

  return {
    ...seesNoJobs,
    name: service,
    capabilities: { binds: 'early', canCountQueue: true, standsForSlots: false, terms: 1, poolTimeout: false, jobOnStdout: false },

    check: (signal) => findings({ config, pools, client, agentPools, registrar, marks, builds, latest, wall, enlist }, signal),

    observe(emit, signal) {
      signal.addEventListener('abort', () => closing.abort(), { once: true });
      for (const queue of queuesOf(pools)) watch(queue, emit, signal);
      if (pools.length === 0) sweep.alone(clock, signal);
    },

    register: (context, signal) => enlist.register(context, signal),

    async settle({ agent }, files, signal) {
      try {
        await keepDiagnostics(clock, store.dir, agent, files, signal);
      } catch (error) {
        signal.throwIfAborted();
        log.warn("the agent's own logs were not kept", { agent, reason: toFailure(error).message });
      }
    },

    deregister: ({ agent }, signal) => enlist.deregister(agent, signal),
    retire: (agent, signal) => enlist.retire(agent, signal),
    ending: createParting({ clock, log, client, registrar, jobs, retired }),
    blame,
    waiting: (pool) => look.waiting(pool),
    serviceJobs: () => jobs.list(),
    agentPackage: (platform, signal) => choosePackage(config.agentPackage, client, platform, signal),
    forget: (signal) => placeholders.forget(signal),

    async close() {},
  };
}
