/** Every CI service that config can name. Adding one is a folder beside this file and a line here. */

import { type Guarded, mountProblemFor } from '../config/check-mounts.ts';
import type { Config, ServiceConfig } from '../config/config.ts';
import type { Environment } from '../config/environment.ts';
import type { Clock } from '../core/clock.ts';
import { type AgentId, isEmpty, type JobId } from '../core/slot.ts';
import type { Log } from '../log.ts';
import type { Variables } from '../secrets/reference.ts';
import type { Store } from '../store/store.ts';
import { openAzurePipelines } from './azure-pipelines/open.ts';
import type { BrokerDesk } from './buildkite/broker-desk.ts';
import { openBuildkite, openDesk } from './buildkite/open.ts';
import { endStraysOf } from './buildkite/strays.ts';
import type { CiService } from './ci-service.ts';
import { createOwnQueue, type OwnQueue } from './own-queue/own-queue.ts';

export interface CiParts {
  readonly config: Guarded & Pick<Config, 'pools' | 'host' | 'secretsKey'>;
  /** Where the Engine listens, when that is not the usual place. */
  readonly env?: Pick<Environment, 'docker' | 'runtimeDir'>;
  readonly store: Store;
  /** Why jobs of a pool wait, as a sentence; null when there is no more to say. */
  readonly reasonFor: (pool: string) => string | null;
  readonly clock: Clock;
  readonly log: Log;
  /** Of onejob. */
  readonly version: string;
  /** Where secrets are looked up; by default the process' own. */
  readonly variables?: Variables;
  readonly slots: SlotFacts;
  /** Program and arguments that start this onejob again. */
  readonly self: readonly string[];
  /** It ends with its last job, and makes no agents that wait for jobs. */
  readonly temporary?: boolean;
}

/** What a service may know of the loop. */
export interface SlotFacts {
  /** The pool of the slot that an agent is in, in whatever lane; null when none has it. */
  poolOf(agent: AgentId): string | null;
  /** How long a released agent has not been seen by its service, ms; null for any other. */
  silentFor(agent: AgentId): number | null;
  /** Every job that the slot has, in whatever lane. */
  jobsOf(slot: string): readonly JobId[];
}

export interface CiServices {
  readonly own: OwnQueue;
  /** What pools name in `service`; `own` is always there. */
  readonly byName: ReadonlyMap<string, CiService>;
  /** Ends what is left at services that are not among these any more, as far as that can be done without them. Never fails. */
  endStrays(signal: AbortSignal): Promise<void>;
}

type Of<T extends ServiceConfig['type']> = Extract<ServiceConfig, { type: T }>;
type Make<T extends ServiceConfig['type']> = (service: Of<T>, own: OwnQueue, parts: OpenParts) => CiService;

export interface OpenParts extends CiParts {
  /** Names of the services that are opened. */
  readonly opened: ReadonlySet<string>;
  /** The broker's, shared by all services that need one. */
  readonly desk: () => BrokerDesk;
}

const makers: { readonly [T in ServiceConfig['type']]: Make<T> } = {
  'own-queue': (_, own) => own,
  'azure-pipelines': (service, _, parts) => openAzurePipelines(service, parts),
  buildkite: (service, _, parts) => openBuildkite(service, parts),
};

/** @throws OnejobError E_STATE_CORRUPT, E_SOCKET_PATH */
export function createCiServices(parts: CiParts): CiServices {
  const { config, env, store, reasonFor } = parts;
  const ownNames = new Set(['own', ...config.services.filter((one) => one.type === 'own-queue').map((one) => one.name)]);
  const pools = config.pools.filter((pool) => ownNames.has(pool.service));
  const own = createOwnQueue({ store, pools, reasonFor, mountProblem: mountProblemFor(config, env) });
  const inSlots = store.slots.all().filter(({ slot }) => !isEmpty(slot));
  // One that no pool uses any more still has to take back what it made, and to hear of the end of what runs.
  const used = new Set([
    ...config.pools.map((pool) => pool.service),
    ...store.registrations.services(),
    ...inSlots.map(({ slot }) => slot.service),
  ]);
  const others = config.services.filter((one) => used.has(one.name));
  let shared: BrokerDesk | null = null;
  const desk = (): BrokerDesk => (shared ??= openDesk(parts));
  const whole: OpenParts = { ...parts, desk, opened: new Set(others.map(({ name }) => name)) };
  return {
    own,
    byName: new Map<string, CiService>([['own', own], ...others.map((one) => [one.name, make(one, own, whole)] as const)]),
    async endStrays(signal) {
      const opened = new Set(others.filter(({ type }) => type === 'buildkite').map(({ name }) => name));
      const isLive = (agent: AgentId): boolean => parts.slots.poolOf(agent) !== null;
      await endStraysOf(store.dir, { opened, isLive, clock: parts.clock, log: parts.log }, signal);
    },
  };
}

function make<T extends ServiceConfig['type']>(service: Of<T>, own: OwnQueue, parts: OpenParts): CiService {
  return makers[service.type as T](service, own, parts);
}
