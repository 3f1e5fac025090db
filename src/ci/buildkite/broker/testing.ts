/** For tests: the broker's agents against the small service, in time that is moved by hand, and killed wherever one likes. */
import { type HandClock, handClock } from '../../../core/testing.ts';
import type { Log } from '../../../log.ts';
import { createAliases } from './aliases.ts';
import { type Book, openBook } from './book.ts';
import { type Control, createControl } from './control.ts';
import { createDesired, type Desired } from './desired.ts';
import { type Fleet, startFleet } from './fleet.ts';
import { createHealth } from './health.ts';
import { createPace } from './pace.ts';
import type { BrokerAgent, Offer, Phase, ServiceHealth } from './protocol.ts';
import { createSeal, installationKey } from './seal.ts';
import { type BrokerStore, openBrokerStore } from './store.ts';
import { serviceToken, type TestService, testService } from './testing-service.ts';

export interface LogLine {
  readonly level: 'info' | 'warn' | 'error';
  readonly event: string;
  readonly fields: unknown;
}

export function keptLog(): Log & { readonly lines: LogLine[] } {
  const lines: LogLine[] = [];
  const say = (level: LogLine['level']) => (event: string, fields: unknown) => void lines.push({ level, event, fields });
  return { lines, info: say('info'), warn: say('warn'), error: say('error') };
}

export const slotOffer: Offer = {
  slot: 'gpu/0',
  pool: 'gpu',
  service: 'bk',
  name: 'host-gpu-0',
  metaData: ['queue=gpu', 'cuda=12', 'cuda=13'],
  priority: 3,
  open: true,
};

/** One broker's life; a world sees several. */
export interface Running {
  readonly book: Book;
  readonly control: Control;
  readonly desired: Desired;
  readonly fleet: Fleet;
  readonly health: ServiceHealth[];
  /** What a manager heard, since it joined. */
  readonly heard: BrokerAgent[];
  part(): void;
  /** As a kill: nothing is said or written any more. */
  kill(): Promise<void>;
}

export interface World {
  readonly service: TestService;
  readonly clock: HandClock;
  readonly log: ReturnType<typeof keptLog>;
  /** Starts a broker. `book`: what stands between it and its book. */
  start(options?: { readonly manager?: boolean; readonly wrap?: (book: Book) => Book }): Running;
  /** Lets everything that is under way come to rest. */
  settle(): Promise<void>;
  /** Moves time in steps of at most a second, and settles in between. */
  pass(ms: number): Promise<void>;
}

/** `dir`: an empty folder. */
export function world(dir: string): World {
  const service = testService();
  const clock = handClock();
  const log = keptLog();
  let busy = 0;
  const upstream = {
    ...service.upstream,
    call: async (...args: Parameters<typeof service.upstream.call>) => {
      busy += 1;
      try {
        return await service.upstream.call(...args);
      } finally {
        busy -= 1;
      }
    },
  };
  const settle = async (): Promise<void> => {
    for (let quiet = 0; quiet < 4; quiet = busy === 0 ? quiet + 1 : 0) await new Promise((resolve) => setImmediate(resolve));
  };
  return {
    service,
    clock,
    log,
    settle,
    async pass(ms) {
      await settle();
      for (let left = ms; left > 0; left -= 250) {
        clock.advance(Math.min(250, left));
        await settle();
      }
    },
    start({ manager = true, wrap = (book: Book) => book } = {}) {
      const seal = createSeal(installationKey(dir));
      const store: BrokerStore = openBrokerStore(dir);
      const book = wrap(openBook({ store, seal, log, wall: clock.wall }));
      const health: ServiceHealth[] = [];
      const heard: BrokerAgent[] = [];
      book.watchAll(({ shown }) => void heard.push(shown));
      let fleet: Fleet | null = null;
      const desired = createDesired(clock, () => fleet?.look());
      const parts = {
        ...{ book, desired, upstream, clock, log },
        health: createHealth((changed) => void health.push(changed)),
        pace: createPace(clock, () => 0),
        host: { hostname: 'host', os: 'linux', arch: 'amd64', machineId: 'm', pid: 1 },
        random: () => 0,
      };
      fleet = startFleet(parts);
      const part = manager ? desired.join() : () => {};
      book.setHeard(manager);
      return {
        ...{ book, desired, fleet, health, heard },
        control: createControl({ book, aliases: createAliases(book, seal), desired, wall: clock.wall }),
        part() {
          book.setHeard(false);
          part();
        },
        async kill() {
          await fleet?.close();
          store.close();
        },
      };
    },
  };
}

/** Everything that a manager says: one service with its token, and these offers. */
export function say(running: Pick<Running, 'desired'>, offers: readonly Offer[], token: string | null = serviceToken): void {
  running.desired.set({ services: [{ name: 'bk', endpoint: 'http://service', token }], offers: [...offers], complete: true });
}

/** Phases of the agents in the book, in the order in which they were made. */
export function phasesOf({ book }: Pick<Running, 'book'>): readonly Phase[] {
  return book.all().map(({ shown }) => shown.phase);
}
