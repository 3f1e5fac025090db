/**
 * The manager's end of the broker, shared by all services that need it: keeps one running, tells it what slots could do, and
 * hears of its agents. Whoever comes back, this manager or the broker, is told everything again.
 */

import { z } from 'zod';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { AgentId, JobId } from '../../core/slot.ts';
import { OnejobError, toFailure } from '../../errors.ts';
import type { Log } from '../../log.ts';
import {
  type BrokerAgent,
  type BrokerEvent,
  type CarryRequest,
  type EndRequest,
  type ExplainRequest,
  type HandAnswer,
  handAnswer,
  leaveAnswer,
  listenAnswer,
  longestReason,
  type Offer,
  protocolVersion,
  type RefuseRequest,
  retireAnswer,
  type ServiceDesired,
  type ServiceHealth,
} from './broker/protocol.ts';
import type { BrokerCalls } from './broker-calls.ts';

export interface DeskParts {
  readonly calls: BrokerCalls;
  /** Starts a broker; resolves with how it ended. */
  readonly start: () => Promise<string>;
  readonly clock: Clock;
  readonly log: Log;
}

/** A broker that is somewhere else than in a process of its own, for tests. */
export interface BrokerAccess {
  readonly calls: BrokerCalls;
  /** Starts one; resolves with how it ended. */
  readonly start: () => Promise<string>;
  /** All agents that it has. @throws OnejobError E_BROKER when it does not answer */
  readonly agents: (signal: AbortSignal) => Promise<readonly Pick<BrokerAgent, 'id' | 'service' | 'phase' | 'agent'>[]>;
}

/** What a service hears of its agents. */
export interface DeskListener {
  /** Every agent of the service, after a silence of any length. */
  all(agents: readonly BrokerAgent[]): void;
  agent(agent: BrokerAgent): void;
  health(health: ServiceHealth): void;
  /** Why the broker is not there; null once it is. `beginning`: the first one is only being started. */
  away(why: string | null, beginning?: boolean): void;
}

export interface BrokerDesk {
  /** Begins with the first one. */
  listen(service: string, listener: DeskListener): void;
  /** What is to be known of a service; sent at once, and to every new broker. */
  serve(service: ServiceDesired): void;
  offer(offer: Offer): void;
  /** The slot has no agent any more. */
  withdraw(slot: string): void;
  /** The port on which agents call in at `address`. */
  door(address: string, signal: AbortSignal): Promise<number>;
  hand(id: string, agent: AgentId, may: May, signal: AbortSignal): Promise<HandAnswer>;
  carry(request: CarryRequest, signal: AbortSignal): Promise<HandAnswer & { readonly id: string }>;
  refuse(id: string, request: RefuseRequest, signal: AbortSignal): Promise<void>;
  end(id: string, request: EndRequest, signal: AbortSignal): Promise<void>;
  explain(id: string, request: ExplainRequest, signal: AbortSignal): Promise<void>;
  /** The job that a carried agent has. @throws OnejobError E_BROKER; with `retry` while nobody can say whether it has one */
  retire(id: string, signal: AbortSignal): Promise<JobId | null>;
  /** Port of the broker that is there; null while there is none. */
  readonly port: number | null;
  /** `leaving`: the broker stays, and is found again. */
  close(leaving: boolean): Promise<void>;
}

/** What a job may, as it was decided. */
export interface May {
  readonly trusted: boolean;
  readonly secrets: Secrets;
}

export type Secrets = readonly { readonly name: string; readonly value: string }[];

/** ms between two tries to find a broker. */
const lookAgain = 100;
/** ms within which a broker that was started must be there, before another is started. */
const startPatience = 5_000;
/** ms that a close waits for the broker's end. */
const leavePatience = 5_000;
/** ms between two looks whether a broker of another version has ended. */
const lookAtOther = 2_000;

const nothing = z.unknown().transform(() => {});
const carried = handAnswer.extend({ id: z.string() });

export function createBrokerDesk({ calls, start, clock, log }: DeskParts): BrokerDesk {
  const services = new Map<string, ServiceDesired>();
  const offers = new Map<string, Offer>();
  const listeners = new Map<string, DeskListener>();
  const abort = new AbortController();
  const { signal } = abort;
  let port: number | null = null;
  let running: Promise<void> | null = null;
  /** How the one that was started here ends; null once it has. */
  let ended: Promise<string> | null = null;
  let arrival = Promise.withResolvers<void>();
  /** From now on none is started. */
  let isClosing = false;
  /** The broker was told to leave: one that this manager came back to would stay for it. */
  let isLeft = false;
  /** The one that is there speaks otherwise. */
  let isOther = false;
  /** Slots whose offer has changed since it was sent; null: everything has. */
  let unsent: Set<string> | null = null;
  let sending = false;

  const pause = (ms: number): Promise<void> => sleep(clock, ms, signal);

  const tellAway = (why: string | null): void => {
    for (const listener of listeners.values()) listener.away(why);
  };

  function hear(event: BrokerEvent): void {
    switch (event.kind) {
      case 'state': {
        isOther = event.protocol !== protocolVersion;
        if (isOther) {
          throw new OnejobError(
            'E_BROKER',
            `A broker of onejob ${event.version} is still at work, which this version cannot speak to.`,
            {
              hint: 'It ends with its last job; until then its service gets no new agents.',
              retry: true,
            },
          );
        }
        port = event.port;
        arrival.resolve();
        unsent = null;
        for (const [name, listener] of listeners) {
          // Whatever may begin once it is there must find the agents that are there.
          listener.all(event.agents.filter(({ service }) => service === name));
          listener.away(null);
        }
        for (const health of event.services) listeners.get(health.service)?.health(health);
        void send();
        return;
      }
      case 'agent':
        listeners.get(event.agent.service)?.agent(event.agent);
        return;
      case 'service':
        listeners.get(event.health.service)?.health(event.health);
        return;
      case 'alive':
        return;
    }
  }

  /** One request at a time, so that an older offer never comes after a newer one. */
  async function send(): Promise<void> {
    if (sending) return;
    sending = true;
    try {
      // What is asked for in one step is sent in one.
      await Promise.resolve();
      while (port !== null && !signal.aborted && (unsent === null || unsent.size > 0)) {
        const changed = unsent;
        unsent = new Set();
        const body =
          changed === null
            ? { services: [...services.values()], offers: [...offers.values()], complete: true }
            : changed.size > 0 && [...changed].every((slot) => offers.has(slot))
              ? { offers: [...changed].flatMap((slot) => offers.get(slot) ?? []), complete: false }
              : { offers: [...offers.values()], complete: true };
        try {
          await calls.post('/v1/offers', body, nothing, signal);
        } catch (error) {
          unsent = null;
          if (signal.aborted || port === null) return;
          log.warn('broker did not take offers', { reason: toFailure(error).message });
          await pause(1_000);
        }
      }
    } finally {
      sending = false;
    }
  }

  async function run(): Promise<void> {
    let startedAt: number | null = null;
    let wait = lookAgain;
    while (!signal.aborted) {
      let why = 'the broker has ended, and is being started again';
      isOther = false;
      // One that is there, and says what cannot be taken in here, is not started anew: that would be done for ever.
      let isThere = false;
      try {
        await calls.events((event) => {
          wait = lookAgain;
          startedAt = null;
          isThere = true;
          hear(event);
        }, signal);
        isThere = false;
      } catch (error) {
        why = toFailure(error).message;
        if (isThere && !isOther) log.warn('broker not understood', { reason: why });
      }
      if (signal.aborted || isLeft) return;
      if (isOther || (port !== null && !isClosing)) tellAway(why);
      if (port !== null) arrival = Promise.withResolvers();
      port = null;
      // Nothing that it does not understand is asked of it; this every version does. Then it ends with its last job.
      if (isOther) await calls.post('/v1/leave', {}, nothing, signal).catch(() => {});
      else if (!isClosing && !isThere && (startedAt === null || clock.now() - startedAt > startPatience)) {
        startedAt = clock.now();
        startOne();
      }
      await pause(isOther ? lookAtOther : wait);
      wait = Math.min(wait * 1.5, 2_000);
    }
  }

  function startOne(): void {
    const started = start();
    ended = started;
    void started.then((how) => {
      if (ended === started) ended = null;
      if (signal.aborted || isClosing || port !== null) return;
      log.warn('broker', { reason: how });
      tellAway(`the broker ${how}, and is started again; "broker.log" in the state directory says why`);
    });
  }

  const post = <T>(path: string, body: unknown, answer: z.ZodType<T>, inner: AbortSignal): Promise<T> =>
    calls.post(path, body, answer, inner);
  const agentPath = (id: string, what: string): string => `/v1/agents/${encodeURIComponent(id)}/${what}`;

  return {
    listen(service, listener) {
      listeners.set(service, listener);
      listener.away('the broker is being started', true);
      running ??= run();
    },
    serve(service) {
      if (JSON.stringify(services.get(service.name)) === JSON.stringify(service)) return;
      services.set(service.name, service);
      unsent = null;
      void send();
    },
    offer(one) {
      offers.set(one.slot, one);
      unsent?.add(one.slot);
      void send();
    },
    withdraw(slot) {
      offers.delete(slot);
      unsent?.add(slot);
      void send();
    },
    door: async (address, inner) => (await post('/v1/listen', { address }, listenAnswer, inner)).port,
    hand: (id, agent, { trusted, secrets }, inner) => post(agentPath(id, 'hand'), { agent, trusted, secrets }, handAnswer, inner),
    carry: (request, inner) => post('/v1/agents', request, carried, inner),
    refuse: (id, request, inner) => post(agentPath(id, 'refuse'), bounded(request), nothing, inner),
    end: (id, request, inner) => post(agentPath(id, 'end'), bounded(request), nothing, inner),
    explain: (id, request, inner) => post(agentPath(id, 'explain'), bounded(request), nothing, inner),
    retire: async (id, inner) => (await post(agentPath(id, 'retire'), {}, retireAnswer, inner)).job,
    get port() {
      return port;
    },
    async close(leaving) {
      isClosing = true;
      const patience = leaving ? null : pause(leavePatience);
      // One that is only being started would be told by nobody else to end.
      if (patience !== null && port === null && ended !== null) await Promise.race([arrival.promise, ended, patience]);
      if (patience !== null && port !== null) {
        isLeft = true;
        using limit = deadline(clock, leavePatience);
        await calls.post('/v1/leave', {}, leaveAnswer, limit.signal).catch(() => {});
        // Of one that another manager started nobody here hears the end.
        if (ended !== null) await Promise.race([ended, patience]);
      }
      abort.abort();
      await running;
    },
  };
}

/** As much of a reason as the broker takes. */
function bounded<T extends { readonly reason: string }>(request: T): T {
  const { reason } = request;
  return reason.length <= longestReason ? request : { ...request, reason: `${reason.slice(0, longestReason - 2)} …` };
}
