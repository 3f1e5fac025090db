/**
 * What is remembered of an agent between its calls, and its own connections to the service: all of it ends with the agent. No
 * connection is ever shared: should a service and this broker once read the same bytes differently, it is the same agent's.
 */
import type { Answer } from './forward-call.ts';
import { createUpstreams, type Upstreams } from './forward-upstreams.ts';
import type { AgentBook } from './record.ts';

/** All of it may be lost. */
export interface AgentMemory {
  readonly upstreams: Upstreams;
  /** Calls under way. */
  open: number;
  /** Its agent is; what is under way may still have something to end at the service. */
  isOver: boolean;
  /** Of them, those whose body is being read whole. */
  reading: number;
  /** What its log has been told already, so that a job cannot fill it. */
  readonly said: Set<string>;
  /** The service did not let its job start: it is told to leave, not given the job again. */
  startRefused: boolean;
  /** The service may have its result, and was not heard to say so. */
  finishUnsure: boolean;
  /** When its leaving in the middle of its job was written down last, ms since the epoch; null: never. */
  leftAt: number | null;
  registering: Promise<Answer | null> | null;
  accepting: { readonly job: string; readonly done: Promise<Answer | null> } | null;
}

export interface Memories {
  /** For the time of a call of an agent that is in the book; null when it has `most` under way already. */
  enter(id: string, most: number): AgentMemory | null;
  leave(memory: AgentMemory): void;
  /** Of an agent that may be over already: then nothing is kept. */
  upstreams(id: string): Upstreams;
  close(): void;
}

/** `idleMs`: how long an unused connection is kept. */
export function createMemories(book: AgentBook, idleMs: number): Memories {
  const memories = new Map<string, AgentMemory>();
  const unkept = createUpstreams(idleMs);
  unkept.close();
  const made = (id: string): AgentMemory => {
    const memory = fresh(createUpstreams(idleMs));
    memories.set(id, memory);
    const unwatch = book.watch(id, ({ shown }) => {
      if (shown.phase !== 'gone') return;
      unwatch();
      memories.delete(id);
      memory.isOver = true;
      if (memory.open === 0) memory.upstreams.close();
    });
    return memory;
  };
  return {
    enter(id, most) {
      const memory = memories.get(id) ?? made(id);
      if (memory.open >= most) return null;
      memory.open += 1;
      return memory;
    },
    leave(memory) {
      memory.open -= 1;
      if (memory.isOver && memory.open === 0) memory.upstreams.close();
    },
    upstreams: (id) => memories.get(id)?.upstreams ?? unkept,
    close() {
      for (const { upstreams } of memories.values()) upstreams.close();
    },
  };
}

function fresh(upstreams: Upstreams): AgentMemory {
  return {
    upstreams,
    open: 0,
    isOver: false,
    reading: 0,
    said: new Set(),
    startRefused: false,
    finishUnsure: false,
    leftAt: null,
    registering: null,
    accepting: null,
  };
}
