/**
 * A stand-in without a socket and without time of its own: anyone who asks it is in the same process, and says how time passes. For
 * simulations; what it answers is the same.
 */
import { enter, type Incoming, type Passage, type Service } from './door.ts';

export interface InProcessOptions<Entry, Fault> {
  /** Its wall clock, ms. */
  readonly now: () => number;
  readonly after: (ms: number, fn: () => void) => () => void;
  /** Told of each request before it is answered; only the last ones are in the log. */
  readonly heard?: (request: Entry) => void;
  /** A fault for this request, where no rule has one. */
  readonly fault?: (request: Entry) => Fault | null;
}

export interface InProcess {
  /** False between `faults.down()` and `faults.up()`: anyone who asks then finds nobody. */
  readonly isUp: boolean;
  /** One request and its answer; see `door.ts`. Anyone who finds nobody must not call it. */
  enter(request: Incoming): Promise<Passage>;
}

/** What a stand-in is made with, and what it comes to once it is. */
export interface Entrance<Entry> {
  readonly log: Entry[];
  down(): Promise<void>;
  up(): Promise<void>;
}

/** Requests that are kept in the log. */
const kept = 200;

export function openInProcess<
  Route,
  Caller,
  Entry extends { status: number },
  Fault extends { readonly kind: string },
  Made extends { readonly service: Service<Route, Caller, Entry, Fault> },
>(
  o: InProcessOptions<Entry, Fault>,
  create: (entrance: Entrance<Entry>) => Made,
): { readonly made: Made; readonly reached: InProcess } {
  let isUp = true;
  const log: Entry[] = [];
  const made = create({
    log,
    async down() {
      isUp = false;
    },
    async up() {
      isUp = true;
    },
  });
  const { service } = made;
  const heard: Service<Route, Caller, Entry, Fault> = {
    ...service,
    log: {
      push(entry) {
        log.push(entry);
        if (log.length > 2 * kept) log.splice(0, kept);
      },
    },
    pick(entry) {
      o.heard?.(entry);
      return service.pick(entry) ?? o.fault?.(entry) ?? null;
    },
  };
  return {
    made,
    reached: {
      get isUp() {
        return isUp;
      },
      enter: (request) => enter(heard, request),
    },
  };
}
