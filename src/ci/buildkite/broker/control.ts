/**
 * What the manager asks of the broker: each request is a change of the book that is on disk before it is answered, and asking
 * twice is asking once.
 */
import { OnejobError } from '../../../errors.ts';
import { end } from './agent.ts';
import { type Book, noSeals } from './book.ts';
import type { Desired } from './desired.ts';
import { newRecord } from './fleet.ts';
import type {
  CarryRequest,
  EndRequest,
  ExplainRequest,
  HandAnswer,
  HandRequest,
  OffersRequest,
  Phase,
  RefuseRequest,
  RetireAnswer,
} from './protocol.ts';
import type { AgentRecord, Aliases } from './record.ts';

export interface Control {
  offers(request: OffersRequest): void;
  carry(request: CarryRequest): HandAnswer & { readonly id: string };
  hand(id: string, request: HandRequest): HandAnswer;
  refuse(id: string, request: RefuseRequest): void;
  explain(id: string, request: ExplainRequest): void;
  end(id: string, request: EndRequest): void;
  retire(id: string): RetireAnswer;
  leave(): { readonly unfinished: number };
}

export interface ControlParts {
  readonly book: Book;
  readonly aliases: Aliases;
  readonly desired: Desired;
  wall(): number;
}

/** A sandbox may begin, or have begun, what its agent is for. */
const given: ReadonlySet<Phase> = new Set(['handed', 'connected', 'running']);

/** No job is ours yet. With one it was asked for, and the service has not been heard to answer. */
const beforeJob: ReadonlySet<Phase> = new Set(['expected', 'registering', 'registered', 'idle', 'accepting']);

/** Its methods throw OnejobError E_AGENT_UNKNOWN, E_API_REQUEST, E_DAEMON_STOPPING, E_STATE_FULL and the like. */
export function createControl({ book, aliases, desired, wall }: ControlParts): Control {
  const find = (id: string): AgentRecord => {
    const record = book.get(id);
    if (record !== null) return record;
    throw new OnejobError('E_AGENT_UNKNOWN', `The broker has no agent "${id}": it is over, or never was.`);
  };
  const answer = (record: AgentRecord): HandAnswer & { id: string } => ({
    id: record.shown.id,
    token: aliases.make('once', record),
    job: record.shown.job?.id ?? null,
  });

  return {
    offers: (request) => desired.set(request),

    carry(request) {
      const { agent, service, slot, pool, name, metaData, priority, acquisition, secrets, trusted } = request;
      const known = book.all().find(({ shown }) => shown.kind === 'carried' && shown.agent === agent);
      if (known !== undefined) return answer(known);
      if (desired.isLeaving) {
        const options = { hint: 'Ask the next one, once this has ended.', retry: true };
        throw new OnejobError('E_DAEMON_STOPPING', `The broker is being stopped, and takes no new agent ("${agent}").`, options);
      }
      const base = desired.service(service)?.endpoint;
      if (base === undefined) throw wrong(`There is no service "${service}" for agent "${agent}".`, true);
      const record = newRecord(
        { kind: 'carried', service, slot, pool, name, phase: 'expected', agent },
        {
          ...{ metaData, priority, base },
          allowed: secrets !== null,
          trusted,
          sealed: { ...noSeals, acquisition, secrets: secrets ?? [] },
        },
        wall(),
      );
      book.add(record);
      return answer(record);
    },

    hand(id, { agent, secrets, trusted }) {
      const record = find(id);
      const { kind, phase, cancelled } = record.shown;
      if (kind === 'carried') {
        if (record.shown.agent !== agent)
          throw wrong(`Agent "${id}" is that of sandbox "${record.shown.agent}", not of "${agent}".`);
        if (phase === 'ending') throw over(id);
        return answer(record.allowed ? record : book.update(id, { allowed: true, trusted, sealed: { secrets } }));
      }
      if (given.has(phase) && record.shown.agent === agent) return answer(record);
      // Until an agent has called in, another sandbox may take its place: what the first was given is then worth nothing.
      if (phase !== 'accepted' && phase !== 'handed') {
        if (phase === 'ending' || phase === 'finished') throw over(id);
        throw wrong(`Agent "${id}" is ${phase}: its job cannot be handed to "${agent}".`, phase === 'accepting');
      }
      if (cancelled && phase === 'accepted') throw over(id);
      return answer(book.update(id, { shown: { phase: 'handed', agent }, sealed: { secrets }, allowed: true, trusted }));
    },

    refuse(id, verdict) {
      const record = book.get(id);
      if (record === null || record.shown.phase === 'ending') return;
      const { phase } = record.shown;
      const isOurs = phase === 'accepted' || phase === 'handed' || phase === 'connected';
      if (!isOurs) throw wrong(`Agent "${id}" is ${phase}: it has no job that could be refused.`, phase === 'accepting');
      end(book, record, verdict);
    },

    explain(id, { reason }) {
      const phase = book.get(id)?.shown.phase;
      if (phase !== undefined && unfinished.has(phase)) book.update(id, { why: reason });
    },

    end(id, { reason, signalReason }) {
      const record = book.get(id);
      if (record === null || record.shown.phase === 'ending') return;
      const { phase, cancelled } = record.shown;
      // Of a carried one the sandbox is gone: whether its job was ours nobody can find out any more.
      if (record.shown.kind === 'held' && (phase === 'accepting' || phase === 'registering')) {
        throw wrong(`Agent "${id}" is ${phase}, which cannot be broken off.`, true);
      }
      // A manager that was away may know only that the sandbox is gone.
      const verdict = record.why === null ? { reason, signalReason } : { reason: record.why, signalReason: 'agent_stop' };
      end(book, record, cancelled ? { ...verdict, signalReason: 'cancel' } : verdict);
    },

    retire(id) {
      const record = book.get(id);
      if (record === null) return { job: null };
      const { kind, phase, job } = record.shown;
      if (kind === 'held') throw wrong(`Agent "${id}" is the broker's own, and leaves with its slot's offer.`);
      if (!record.retired && beforeJob.has(phase)) book.update(id, { retired: true });
      if (job !== null && beforeJob.has(phase))
        throw wrong(`Agent "${id}" may have been given job ${job.id}: it is being asked for.`, true);
      return { job: job?.id ?? null };
    },

    leave() {
      desired.leave();
      return { unfinished: book.all().filter(({ shown }) => unfinished.has(shown.phase)).length };
    },
  };
}

/** Of these somebody waits for a job's end. */
export const unfinished: ReadonlySet<Phase> = new Set(['expected', 'accepting', 'accepted', 'handed', 'connected', 'running']);

function wrong(message: string, retry = false): OnejobError {
  return new OnejobError('E_API_REQUEST', message, { retry });
}

function over(id: string): OnejobError {
  return new OnejobError('E_AGENT_UNKNOWN', `The job of agent "${id}" is over, or was cancelled.`);
}
