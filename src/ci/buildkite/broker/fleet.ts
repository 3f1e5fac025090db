/** All agents of this broker: takes up those in the book, and sees that each slot that is wanted has one ahead of its job. */
import { randomBytes } from 'node:crypto';
import type { AgentParts } from './agent.ts';
import { noSeals } from './book.ts';
import { type Life, live } from './held.ts';
import type { BrokerAgent, Offer, Phase } from './protocol.ts';
import type { AgentRecord } from './record.ts';
import type { Sign } from './signs.ts';

export interface Fleet {
  /** The manager wants something else, or there is none any more. */
  look(): void;
  /** What the agent in the sandbox of this one said, or somebody in its name. */
  heard(id: string, sign: Sign): void;
  /** Ends every loop; the agents stay as they are. */
  close(): Promise<void>;
}

/** Without a job yet: the slot has its next agent. */
const ahead: ReadonlySet<Phase> = new Set(['registering', 'registered', 'idle', 'accepting']);

export function startFleet(parts: AgentParts): Fleet {
  const { book, desired, clock, pace, log } = parts;
  const abort = new AbortController();
  const lives = new Map<string, Life>();
  let callOff = (): void => {};
  let isLooking = false;

  const start = (id: string): void => {
    if (lives.has(id) || abort.signal.aborted) return;
    const life = live(id, parts, abort.signal);
    lives.set(id, life);
    void life.ended.finally(() => lives.delete(id));
  };

  const populate = (): void => {
    const taken = new Set(book.all().flatMap(({ shown }) => (shown.kind === 'held' && ahead.has(shown.phase) ? [shown.slot] : [])));
    let next: number | null = null;
    for (const offer of desired.offers()) {
      const service = desired.service(offer.service);
      if (taken.has(offer.slot) || service === null) continue;
      const notBefore = pace.notBefore(offer.slot);
      if (clock.now() >= notBefore) book.add(newAgent(offer, clock.wall(), service.endpoint));
      else next = Math.min(next ?? notBefore, notBefore);
    }
    callOff();
    if (next !== null) callOff = clock.after(next - clock.now(), look);
  };

  function look(): void {
    if (abort.signal.aborted || isLooking) return;
    isLooking = true;
    // What changes together is looked at together, and never inside the change.
    queueMicrotask(() => {
      isLooking = false;
      if (abort.signal.aborted) return;
      try {
        populate();
      } catch (error) {
        log.error('no new agents', { reason: error });
        callOff();
        callOff = clock.after(5_000, look);
      }
      for (const life of lives.values()) life.wake();
    });
  }

  const unwatch = book.watchAll(({ shown }, before) => {
    if (before === null) start(shown.id);
    if (before?.shown.phase !== shown.phase) look();
    else lives.get(shown.id)?.wake();
  });
  for (const { shown } of book.all()) start(shown.id);
  look();

  return {
    look,
    heard: (id, sign) => lives.get(id)?.heard(sign),
    async close() {
      unwatch();
      callOff();
      abort.abort();
      await Promise.all([...lives.values()].map(({ ended }) => ended));
    },
  };
}

/** The record that an agent begins with. */
export function newRecord(
  shown: Pick<BrokerAgent, 'kind' | 'service' | 'slot' | 'pool' | 'name' | 'phase' | 'agent'>,
  rest: Pick<AgentRecord, 'metaData' | 'priority' | 'base' | 'allowed' | 'trusted'> & Partial<Pick<AgentRecord, 'sealed'>>,
  wall: number,
): AgentRecord {
  return {
    sealed: noSeals,
    endpoint: rest.base,
    ...rest,
    shown: {
      id: randomBytes(8).toString('hex'),
      ...shown,
      job: null,
      cancelled: false,
      finished: null,
      problem: null,
      since: wall,
    },
    requestHeaders: {},
    log: { sequence: 0, offset: 0 },
    livesAlone: false,
    retired: false,
    why: null,
    finishing: null,
    ending: null,
  };
}

function newAgent({ service, slot, pool, name, metaData, priority }: Offer, wall: number, base: string): AgentRecord {
  const shown = { kind: 'held', service, slot, pool, name, phase: 'registering', agent: null } as const;
  return newRecord(shown, { metaData, priority, base, allowed: false, trusted: false }, wall);
}
