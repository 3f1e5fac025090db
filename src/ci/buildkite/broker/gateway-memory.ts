/**
 * What is remembered of an agent between its calls, and its own connections to the service: all of it ends with the agent. No
 * connection is ever shared: should a service and this broker once read the same bytes differently, it is the same agent's.
 */
import type { Answer } from './forward-call.ts';
import type { Upstreams } from './forward-upstreams.ts';
import type { GatewayLimits } from './gateway-limits.ts';
import { createRate, type Rate } from './gateway-rate.ts';
import { createTurns, type Turns } from './gateway-turns.ts';
import type { AgentBook } from './record.ts';

/** Calls that are counted together: none of one lane is in the way of one in another. */
export type Lane = 'agent' | 'job' | 'upload';

/** All of it may be lost. */
export interface AgentMemory {
  readonly upstreams: Upstreams;
  /** Calls under way. */
  readonly open: Record<Lane, number>;
  readonly rates: Readonly<Record<Lane, Rate>>;
  /** Its agent is; what is under way may still have something to end at the service. */
  isOver: boolean;
  /** Of them, those whose body is being read whole. */
  readonly reading: Record<Lane, number>;
  readonly uploads: Turns;
  /** What its log has been told already, so that a job cannot fill it. */
  readonly said: Set<string>;
  /** The service did not let its job start: it is told to leave, not given the job again. */
  startRefused: boolean;
  /** When its leaving in the middle of its job was written down last, ms since the epoch; null: never. */
  leftAt: number | null;
  registering: Promise<Answer | null> | null;
  accepting: { readonly job: string; readonly done: Promise<Answer | null> } | null;
}

export interface Memories {
  /** For the time of a call of an agent that is in the book; null when it has `most` of the lane under way already. */
  enter(id: string, lane: Lane, most: number): AgentMemory | null;
  leave(memory: AgentMemory, lane: Lane): void;
  /** Of an agent that may be over already: then nothing is kept. */
  upstreams(id: string): Upstreams;
  close(): void;
}

/** `connections` makes those of one agent. */
export function createMemories(
  book: AgentBook,
  limits: Pick<GatewayLimits, 'perSecond' | 'burst'>,
  connections: () => Upstreams,
): Memories {
  const memories = new Map<string, AgentMemory>();
  const unkept = connections();
  unkept.close();
  const made = (id: string): AgentMemory => {
    const memory = fresh(connections(), () => createRate(limits.perSecond, limits.burst));
    memories.set(id, memory);
    const unwatch = book.watch(id, ({ shown }) => {
      if (shown.phase !== 'gone') return;
      unwatch();
      memories.delete(id);
      memory.isOver = true;
      if (isIdle(memory)) memory.upstreams.close();
    });
    return memory;
  };
  return {
    enter(id, lane, most) {
      const memory = memories.get(id) ?? made(id);
      if (memory.open[lane] >= most) return null;
      memory.open[lane] += 1;
      return memory;
    },
    leave(memory, lane) {
      memory.open[lane] -= 1;
      if (memory.isOver && isIdle(memory)) memory.upstreams.close();
    },
    upstreams: (id) => memories.get(id)?.upstreams ?? unkept,
    close() {
      for (const { upstreams } of memories.values()) upstreams.close();
    },
  };
}

function isIdle({ open }: AgentMemory): boolean {
  return open.agent + open.job + open.upload === 0;
}

function fresh(upstreams: Upstreams, rate: () => Rate): AgentMemory {
  return {
    upstreams,
    open: { agent: 0, job: 0, upload: 0 },
    rates: { agent: rate(), job: rate(), upload: rate() },
    isOver: false,
    reading: { agent: 0, job: 0, upload: 0 },
    uploads: createTurns(),
    said: new Set(),
    startRefused: false,
    leftAt: null,
    registering: null,
    accepting: null,
  };
}
