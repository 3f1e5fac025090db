/** What CI services are made from: config, the store, and what they may know of the loop. */

import type { Log } from '../base/log.ts';
import type { Variables } from '../base/variables.ts';
import type { Guarded } from '../config/check-mounts.ts';
import type { Config } from '../config/config.ts';
import type { Environment } from '../config/environment.ts';
import type { PeopleTable } from '../config/people.ts';
import type { Clock } from '../core/clock.ts';
import type { AgentId, JobId } from '../core/slot.ts';
import type { Ports } from '../http/ports.ts';
import type { Store } from '../store/store.ts';
import type { CallResult } from './calls.ts';
import type { Filter } from './filter/filter.ts';

export interface CiParts {
  readonly config: Guarded &
    Pick<Config, 'pools' | 'host' | 'places' | 'secretsKey' | 'services' | 'origins'> &
    Partial<Pick<Config, 'path' | 'diskMinFree'>>;
  /** Where the Engine listens, and how services are reached, if not as usual. */
  readonly env?: Pick<Environment, 'docker' | 'runtimeDir' | 'proxies' | 'handedOn'>;
  readonly store: Store;
  readonly clock: Clock;
  readonly log: Log;
  readonly onejob: ThisOnejob;
  readonly slots: SlotFacts & {
    /** Why jobs of a pool wait, as a sentence, or null. */
    reasonFor(pool: string): string | null;
  };
  /** Where secrets are looked up; by default the process' own. */
  readonly variables?: Variables;
  /** Who may submit what; default: everybody who asks. */
  readonly people?: PeopleTable | null;
  /** How services are reached over HTTP; by default Node's own. */
  readonly fetch?: typeof fetch;
  /** Told how each call of a service ended. */
  readonly called?: (service: string, result: CallResult) => void;
  /** Of the daemon. By default a service that listens has a port of its own. */
  readonly ports?: Ports | undefined;
  /** By default one with a process of its own. */
  readonly filter?: Filter;
}

/** The program that is running. */
export interface ThisOnejob {
  readonly version: string;
  /** Program and arguments that start it again. */
  readonly self: readonly string[];
  /** It ends with its last job, and makes no standbys. */
  readonly temporary?: boolean;
}

export interface SlotFacts {
  /** The pool of the agent's slot, in any lane, or null. */
  poolOf(agent: AgentId): string | null;
  /** ms for which a released agent has not been online; null: it was, or is not released. */
  silentFor(agent: AgentId): number | null;
  /** Whether its slot counts it as busy with a job. */
  isBusy(agent: AgentId): boolean;
  /** How many slots the pool has. */
  sizeOf(pool: string): number;
  /** All jobs of the slot, in any lane. */
  jobsOf(slot: string): readonly JobId[];
  /** The agent that is to run the job in the slot, or runs it, or null. */
  agentOf(slot: string, job: JobId): AgentId | null;
}

/** Of a command that starts no agents. */
export const noSlots: SlotFacts & { reasonFor(pool: string): string | null } = {
  poolOf: () => null,
  silentFor: () => null,
  isBusy: () => false,
  sizeOf: () => 0,
  jobsOf: () => [],
  agentOf: () => null,
  reasonFor: () => null,
};

export interface OpenParts extends CiParts {
  /** Names of the services that this manager has opened, including this one. */
  readonly opened: ReadonlySet<string>;
  /** Those of the service. */
  readonly pools: Config['pools'];
  readonly fetch: typeof fetch;
}
