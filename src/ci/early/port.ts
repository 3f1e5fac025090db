/**
 * What a service that binds early must do for the engine: an agent must be online there to get a job, so each standby is registered
 * while it waits. An adapter turns these calls into the service's own, and keeps no state of agents.
 */
import type { JobId } from '../../core/slot.ts';
import type { AgentContext, CiEvent, Registration } from '../../ports/ci-service.ts';
import type { ServiceJob } from '../../ports/service-job.ts';
import type { Store } from '../../store/store.ts';
import type { OutcomeStore } from '../../verdict/outcomes.ts';
import type { OpenParts, SlotFacts } from '../parts.ts';

/** Where an entry is at the service, in the service's own words. */
export interface Remote {
  readonly place: string;
  readonly id: string;
}

/** An entry whose id, or only whose name, is known. */
export type EntryKey = Remote | { readonly place: string; readonly name: string };

export interface Entry extends Remote {
  readonly name: string;
  /** null: a word that onejob does not know, so nothing follows from it. */
  readonly status: 'online' | 'offline' | null;
  /** The job it has. An unreadable job must not look like null; where the service only says "busy", its id may be the entry's. */
  readonly job: RemoteJob | null;
}

/** What a service says of a job, and what the adapter keeps with it (`unsettled`) to ask for more of its end after a restart. */
export type JobFacts = Omit<ServiceJob, 'id' | 'state' | 'service' | 'pool' | 'agent' | 'note'> & Partial<Pick<ServiceJob, 'note'>>;

export interface RemoteJob {
  /** The same for the same job; begins with the name of the service in the config. */
  readonly id: JobId;
  readonly state: ServiceJob['state'];
  /** For people: what is known by now. */
  facts(): JobFacts;
  /** Finds out more for `facts`; nobody waits for it. Answers whether there is more now. Absent: there is no more. */
  describe?(signal: AbortSignal): Promise<boolean>;
}

/** One list of agents at the service, and the pools of the config whose agents are in it. */
export interface Queue {
  readonly name: string;
  readonly pools: readonly string[];
}

export interface WaitingJob {
  readonly job: RemoteJob;
  /** Those of the queue that it waits for. */
  readonly pools: readonly string[];
  /** Whether others may run it, as far as the service shows: another host's agents, or its own. */
  readonly isForOthers: boolean;
}

export interface Shown {
  readonly place: string;
  readonly title: string;
  /** All, also other hosts': an entry that is left out looks as if it were gone. */
  readonly entries: readonly Entry[];
  /** Jobs that are not over. Absent: those that entries have. */
  readonly unfinished?: readonly JobId[];
  /** Jobs that no agent has. Absent: the service does not say. */
  readonly waiting?: readonly WaitingJob[];
}

export interface Draft {
  readonly place: string;
  /**
   * Sent once: if the answer is lost, the entry is found by its name. An agent that registers itself has no id yet.
   * @throws OnejobError E_CI_NAME_TAKEN when there is an entry with that name
   */
  create(signal: AbortSignal): Promise<Registration>;
}

/** Every call throws OnejobError E_CI_* when the service cannot be asked, or does not answer in time. */
export interface Registry {
  list(queue: Queue, signal: AbortSignal): Promise<Shown>;
  /** Finds out what must be known before; makes no entry. */
  create(context: AgentContext, name: string, signal: AbortSignal): Promise<Draft>;
  find(which: EntryKey, signal: AbortSignal): Promise<Entry | null>;
  /** `busy`: the service keeps the entry, because it believes that the agent runs a job. */
  remove(remote: Remote, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'>;
  /** Keeps jobs from it, or allows them again. Absent: only `remove` keeps jobs from an agent. */
  disable?(remote: Remote, disabled: boolean, signal: AbortSignal): Promise<'done' | 'absent'>;
  /** The newest job that this agent began. Absent: only looks show an agent's jobs. */
  lastJob?(remote: Remote, signal: AbortSignal): Promise<RemoteJob | null>;
  /**
   * A job that is over and that an earlier manager left unsettled; `describe` asks for its end. null: that cannot be asked any more.
   * Absent: the adapter leaves none.
   */
  reopen?(job: ServiceJob): RemoteJob | null;
  /** More work after a look, before anything is removed. It does not delay the next look. */
  follow?(shown: Shown, emit: (event: CiEvent) => void, signal: AbortSignal): Promise<void>;
}

/** What the engine needs besides its adapter. */
export interface EarlyParts extends Pick<OpenParts, 'clock' | 'log' | 'opened'> {
  readonly service: string;
  /** Where agents have to reach it. */
  readonly url: string;
  readonly queues: readonly Queue[];
  /** What people compare if jobs fit no pool, as a sentence. */
  readonly compare: string;
  /** ms between two looks, and until a released agent must be online. */
  readonly pace: { readonly pollEvery: number; readonly bootTimeout: number };
  readonly store: Pick<Store, 'registrations' | 'serviceJobs' | 'transaction' | 'sync' | 'owner'> & OutcomeStore;
  /** [0, 1): spreads the looks of many hosts. */
  readonly random: () => number;
  readonly slots: Pick<SlotFacts, 'poolOf' | 'silentFor' | 'isBusy'>;
}
