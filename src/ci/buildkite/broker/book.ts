/**
 * Every agent of the broker, in memory and on disk. A change is on disk before anybody hears of it. What an agent is over
 * with is wiped at once; only how its job ended is kept until a manager has read it.
 */
import { z } from 'zod';
import { OnejobError } from '../../../errors.ts';
import type { Log } from '../../../log.ts';
import { type BrokerAgent, phases } from './protocol.ts';
import type { AgentBook, AgentRecord, RecordPatch, Sealed } from './record.ts';
import type { Seal } from './seal.ts';
import type { BrokerStore } from './store.ts';

export interface Book extends AgentBook {
  /** Writes a new agent down. @throws OnejobError E_STATE_FULL and the like */
  add(record: AgentRecord): void;
  /** Agents that were given a job and are over, while no manager has been told. */
  farewells(): readonly BrokerAgent[];
  /** A manager has been told of all of them. */
  farewellsSaid(): void;
  /** Whether anybody hears of agents right now; while not, those that are over are kept. */
  setHeard(isHeard: boolean): void;
  /** Calls `listener` after every change of any agent, `before` null for a new one. The returned function ends that. */
  watchAll(listener: (record: AgentRecord, before: AgentRecord | null) => void): () => void;
}

export interface BookParts {
  readonly store: BrokerStore;
  readonly seal: Seal;
  readonly log: Log;
  wall(): number;
}

export const noSeals: Sealed = {
  session: null,
  registerAnswer: null,
  jobAnswer: null,
  jobToken: null,
  secrets: [],
  acquisition: null,
};

/** Agents that are over and were not told of; the oldest go first. */
const mostFarewells = 500;

export function openBook({ store, seal, log, wall }: BookParts): Book {
  const records = new Map<string, AgentRecord>();
  const over = new Map<string, BrokerAgent>();
  const listeners = new Map<string, Set<(record: AgentRecord) => void>>();
  const everywhere = new Set<(record: AgentRecord, before: AgentRecord | null) => void>();
  let isHeard = false;

  for (const { id, shown, sealed } of store.all()) {
    const record = readRow(id, shown, sealed, seal);
    if (record === null) {
      log.warn('agent forgotten', { id, reason: 'its row in the broker cannot be unsealed' });
      store.remove(id);
    } else if (record.shown.phase === 'gone') over.set(id, record.shown);
    else records.set(id, record);
  }

  const write = (record: AgentRecord, isSealNew: boolean, durable: boolean): void => {
    const { sealed, shown, requestHeaders, ...rest } = record;
    const { job, ...open } = shown;
    const bytes = isSealNew ? seal.close(shown.id, { sealed, job, requestHeaders }) : null;
    store.put({ id: shown.id, shown: JSON.stringify({ shown: open, ...rest }), sealed: bytes }, durable);
  };

  const bury = (record: AgentRecord): void => {
    // First all that is secret, then the row: what is left of it after a crash in between says nothing.
    store.remove(record.shown.id);
    if (isHeard || record.shown.job === null) return;
    write(record, true, true);
    over.set(record.shown.id, record.shown);
    for (const id of [...over.keys()].slice(0, Math.max(0, over.size - mostFarewells))) {
      over.delete(id);
      store.remove(id);
    }
  };

  const tell = (record: AgentRecord, before: AgentRecord | null): void => {
    const { id } = record.shown;
    for (const listener of [...(listeners.get(id) ?? [])]) listener(record);
    for (const listener of [...everywhere]) listener(record, before);
    if (record.shown.phase === 'gone') listeners.delete(id);
  };

  return {
    get: (id) => records.get(id) ?? null,
    all: () => [...records.values()],
    add(record) {
      write(record, true, true);
      records.set(record.shown.id, record);
      tell(record, null);
    },
    update(id, patch, lazily = false) {
      const before = records.get(id);
      if (before === undefined)
        throw new OnejobError('E_AGENT_UNKNOWN', `The broker has no agent "${id}": it is over, or never was.`);
      const record = changed(before, patch, wall());
      if (record.shown.phase === 'gone') {
        bury(record);
        records.delete(id);
      } else {
        const isSealNew = patch.sealed !== undefined || patch.requestHeaders !== undefined || patch.shown?.job !== undefined;
        write(record, isSealNew, !lazily);
        records.set(id, record);
      }
      tell(record, before);
      return record;
    },
    watch(id, listener) {
      const set = listeners.get(id) ?? new Set();
      listeners.set(id, set.add(listener));
      return () => {
        set.delete(listener);
        if (set.size === 0 && listeners.get(id) === set) listeners.delete(id);
      };
    },
    farewells: () => [...over.values()],
    farewellsSaid() {
      for (const id of over.keys()) store.remove(id);
      over.clear();
    },
    setHeard(now) {
      isHeard = now;
    },
    watchAll(listener) {
      everywhere.add(listener);
      return () => everywhere.delete(listener);
    },
  };
}

function changed(before: AgentRecord, { shown, sealed, ...rest }: RecordPatch, now: number): AgentRecord {
  const isMoved = shown?.phase !== undefined && shown.phase !== before.shown.phase;
  const after = {
    ...before,
    ...rest,
    shown: shown === undefined ? before.shown : { ...before.shown, ...shown, ...(isMoved && { since: now }) },
    sealed: { ...before.sealed, ...sealed },
  };
  return after.shown.phase === 'gone' ? { ...after, sealed: noSeals, requestHeaders: {} } : after;
}

const stored = z.object({
  shown: z.looseObject({ id: z.string(), phase: z.enum(phases), slot: z.string(), service: z.string() }),
});

/** Null when it cannot be believed. What is inside was written by this broker: the seal vouches for it. */
function readRow(id: string, text: string, bytes: Uint8Array, seal: Seal): AgentRecord | null {
  try {
    const open = JSON.parse(text) as Omit<AgentRecord, 'finishing'> & Partial<Pick<AgentRecord, 'finishing'>>;
    if (stored.parse(open).shown.id !== id) return null;
    const { sealed, job, requestHeaders } = seal.open(id, bytes) as {
      sealed: Sealed;
      job: BrokerAgent['job'];
      requestHeaders: AgentRecord['requestHeaders'];
    };
    // Brokers of before wrote less.
    return { finishing: null, ...open, shown: { ...open.shown, job }, sealed, requestHeaders };
  } catch {
    return null;
  }
}
