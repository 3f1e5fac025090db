/**
 * What a service that binds early must be able to do for the engine beside this file: an agent has to be online there to be given a
 * job, so each standby is made known while it waits. An adapter turns these calls into the service's own, and keeps nothing of agents.
 */
import type { Clock } from '../../core/clock.ts';
import type { JobId } from '../../core/slot.ts';
import type { Log } from '../../log.ts';
import type { Store } from '../../store/store.ts';
import type { AgentContext, CiEvent, Registration, ServiceJob } from '../ci-service.ts';
import type { SlotFacts } from '../parts.ts';

/** Where an entry is at the service, in the service's own words. */
export interface Remote {
  readonly place: string;
  readonly id: string;
}

/** One agent as the service shows it. */
export interface Entry extends Remote {
  readonly name: string;
  /** null: in a word that nobody knows here, so nothing follows from it. */
  readonly status: 'online' | 'offline' | null;
  /** The job it has. One that cannot be read must not look like none; where the service only says "busy", its id may be the entry's. */
  readonly job: RemoteJob | null;
}

/** A job as the service shows it now. */
export interface RemoteJob {
  /** Same for the same job, and begins with the name of the service in the config. */
  readonly id: JobId;
  readonly state: ServiceJob['state'];
  /** For people: as much as is known by now. */
  facts(): Omit<ServiceJob, 'id' | 'state' | 'service' | 'pool' | 'agent' | 'note'>;
  /** Finds out more for `facts`, with calls that nobody waits for; answers whether there is more now. Absent: it is all there. */
  describe?(signal: AbortSignal): Promise<boolean>;
}

/** One list of agents at the service, and the pools of the config whose agents are in it. */
export interface Queue {
  readonly name: string;
  readonly pools: readonly string[];
}

/** What one look at a queue shows. */
export interface Shown {
  readonly place: string;
  /** For people. */
  readonly title: string;
  /** Everyone's: one that is left out looks as if it were gone. */
  readonly entries: readonly Entry[];
  /** Jobs that are not over. Absent: those that entries have. */
  readonly unfinished?: readonly JobId[];
  /** Jobs that no agent has, and the pools that they wait for. Absent: the service does not say. */
  readonly waiting?: readonly { readonly job: RemoteJob; readonly pools: readonly string[] }[];
}

/** How one agent will be made known. */
export interface Draft {
  readonly place: string;
  /**
   * Sent once: an entry that was made though the answer was lost is found by its name. An agent that makes itself known has no id yet.
   * @throws OnejobError E_CI_NAME_TAKEN when there is an entry of that name
   */
  create(signal: AbortSignal): Promise<Registration>;
}

/** Every call throws OnejobError E_CI_* when the service cannot be asked, or does not answer in time. */
export interface Registry {
  /** The service removes an entry itself once its agent's job is over, also where the agent does not hear of that, as of a cancelled one. */
  readonly isSingleUse?: boolean;
  list(queue: Queue, signal: AbortSignal): Promise<Shown>;
  /** Whatever has to be known before; makes no entry of the agent. */
  create(context: AgentContext, name: string, signal: AbortSignal): Promise<Draft>;
  find(which: Remote | { readonly place: string; readonly name: string }, signal: AbortSignal): Promise<Entry | null>;
  /** `busy`: the service does not give it up, as it runs a job as far as it knows. */
  remove(remote: Remote, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'>;
  /** Keeps jobs from it, or gives it back to them. Absent: only `remove` keeps jobs from an agent. */
  disable?(remote: Remote, disabled: boolean, signal: AbortSignal): Promise<'done' | 'absent'>;
  /** The newest job that this agent began. Absent: what looks have shown is all that is known. */
  lastJob?(remote: Remote, signal: AbortSignal): Promise<RemoteJob | null>;

  /** A look has succeeded: before anything follows from it. */
  saw?(shown: Shown): void;
  /** What more has to be told or done after a look, beside the looks, before anything is removed. */
  follow?(shown: Shown, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void>;
}

/** What the engine is made from beside its adapter. */
export interface EarlyParts {
  /** Name of the service in the config. */
  readonly service: string;
  /** Where agents have to reach it. */
  readonly url: string;
  readonly queues: readonly Queue[];
  /** ms between two looks at a queue. */
  readonly pollEvery: number;
  /** ms until a released agent must be online. */
  readonly bootTimeout: number;
  readonly store: Pick<Store, 'registrations' | 'serviceJobs' | 'transaction' | 'owner'>;
  readonly clock: Clock;
  readonly log: Log;
  /** [0, 1): spreads the looks of many hosts. */
  readonly random: () => number;
  /** Names of the services that this manager has opened, this one among them. */
  readonly opened: ReadonlySet<string>;
  readonly slots: Pick<SlotFacts, 'poolOf' | 'silentFor' | 'isBusy'>;
}
