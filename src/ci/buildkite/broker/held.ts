/**
 * One agent from its record to its end. Each phase has one step, which looks at the record as it is on disk, does at most one
 * call, writes down what came of it, or waits for a change: a new broker goes on where the last one was killed.
 */
import { OnejobError } from '../../../errors.ts';
import { accept } from './accepting.ts';
import { type AgentParts, forget, type Memory, type Self } from './agent.ts';
import { beat, look } from './beats.ts';
import { sayLast } from './finish.ts';
import { hold, watchOnly } from './holding.ts';
import { stayIdle, stayRegistered } from './idle.ts';
import type { Phase } from './protocol.ts';
import type { AgentRecord } from './record.ts';
import { register } from './registering.ts';
import type { Sign } from './signs.ts';
import { createWaker, retryWait } from './wake.ts';

type Step = (self: Self, record: AgentRecord) => Promise<void>;
type Steps = Readonly<Record<Exclude<Phase, 'gone'>, Step>>;

/** The broker is the agent until one in a sandbox has called in. */
const heldSteps: Steps = {
  expected: async (self, record) => forget(self, record, 'It was expected to call in by itself, and is no such agent.'),
  registering: register,
  registered: stayRegistered,
  idle: stayIdle,
  accepting: accept,
  accepted: hold,
  handed: hold,
  connected: hold,
  running: hold,
  finished: hold,
  ending: sayLast,
};

/** The agent in the sandbox does it all by itself, through the gateway; only its job waits for a decision, and may lose it. */
const carriedSteps: Steps = {
  expected: watchOnly,
  registering: watchOnly,
  registered: watchOnly,
  idle: watchOnly,
  accepting: watchOnly,
  accepted: hold,
  handed: hold,
  connected: hold,
  running: hold,
  finished: hold,
  ending: sayLast,
};

export interface Life {
  /** Something may have changed for it. */
  wake(): void;
  /** The agent inside has called in. */
  heard(sign: Sign): void;
  /** Resolves once it is over or `signal` is aborted. */
  readonly ended: Promise<void>;
}

/** Begins or takes up the life of an agent in the book. */
export function live(id: string, parts: AgentParts, signal: AbortSignal): Life {
  const memory: Memory = {
    failures: 0,
    notBefore: Number.NEGATIVE_INFINITY,
    unwantedSince: null,
    unattendedSince: null,
    phaseSince: parts.clock.now(),
    heardAt: Number.NEGATIVE_INFINITY,
    askedAt: Number.NEGATIVE_INFINITY,
    resultAt: null,
    // Whoever finds it in `accepting` does not know how far that was.
    maybeAccepted: true,
  };
  const wakers = [createWaker(parts.clock), createWaker(parts.clock), createWaker(parts.clock)] as const;
  const selves = wakers.map((waker): Self => ({ id, parts, memory, waker, signal }));
  const wake = (): void => {
    for (const waker of wakers) waker.wake();
  };
  signal.addEventListener('abort', wake, { once: true });
  const [own, heart, eye] = selves as [Self, Self, Self];
  const ended = Promise.all([
    steadily(own, step),
    steadily(heart, async (self) => beat(self)),
    steadily(eye, async (self) => look(self)),
  ]).then(() => signal.removeEventListener('abort', wake));
  return {
    wake,
    heard(sign) {
      const now = parts.clock.now();
      if (sign === 'life') memory.heardAt = now;
      else if (sign === 'state') memory.askedAt = now;
      else memory.resultAt ??= now;
    },
    ended,
  };
}

/** One look, and what follows from it. */
async function step(self: Self): Promise<void> {
  const { parts, memory, id } = self;
  let phase: Phase | null = null;
  for (let record = parts.book.get(id); record !== null && !self.signal.aborted; record = parts.book.get(id)) {
    const { phase: now, kind } = record.shown;
    if (now === 'gone') return;
    if (now !== phase) {
      phase = now;
      memory.phaseSince = parts.clock.now();
      memory.unwantedSince = null;
      memory.unattendedSince = null;
      memory.failures = 0;
      memory.notBefore = Number.NEGATIVE_INFINITY;
    }
    await (kind === 'held' ? heldSteps : carriedSteps)[now](self, record);
  }
}

/** Goes on after an error, such as a disk that is full: the record says where. */
async function steadily(self: Self, work: (self: Self) => Promise<void>): Promise<void> {
  const { parts, signal, id } = self;
  for (let failures = 1; !signal.aborted; failures += 1) {
    try {
      await work(self);
      return;
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof OnejobError && error.code === 'E_AGENT_UNKNOWN' && parts.book.get(id) === null) return;
      parts.log.error('agent stuck', { id, reason: error });
      const until = parts.clock.now() + retryWait(failures, parts.random);
      while (!signal.aborted && parts.clock.now() < until) await self.waker.wait(until);
    }
  }
}
