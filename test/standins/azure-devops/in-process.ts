/**
 * The stand-in without a socket and without time of its own: whoever asks it is in the same process, and says how time passes. For
 * simulations; what it answers is the same.
 */
import { type Answered, enter, type Incoming } from './door.ts';
import type { Fault } from './faults.ts';
import { createOrganisation } from './organisation.ts';
import { sweep } from './queue.ts';
import type { World } from './state.ts';
import type { AzureDevOps, LoggedRequest, StandInOptions } from './types.ts';

export interface InProcessOptions extends StandInOptions {
  /** Its wall clock, ms. */
  readonly now: () => number;
  readonly after: (ms: number, fn: () => void) => () => void;
  /** `http://host:port`, which stands in the URLs of its answers. */
  readonly origin: string;
  /** Told of each request before it is answered; only the last ones are in `log`. */
  readonly heard?: (request: LoggedRequest) => void;
  /** A fault for this request, where no rule has one. */
  readonly fault?: (request: LoggedRequest) => Fault | null;
}

export interface AzureInProcess {
  readonly azure: Omit<AzureDevOps, typeof Symbol.asyncDispose>;
  readonly world: World;
  /** False between `faults.down()` and `faults.up()`: whoever asks then finds nobody. */
  readonly isUp: boolean;
  /** One request and its answer; see `enter`. Whoever finds nobody must not call it. */
  enter(request: Incoming): Promise<Answered | 'cut' | 'silence'>;
  /** Lets locks and sessions run out that have. */
  sweep(): void;
}

/** Requests that are kept in the log. */
const kept = 200;

export function openAzureDevOps(o: InProcessOptions): AzureInProcess {
  let isUp = true;
  const log: LoggedRequest[] = [];
  const { azure, door } = createOrganisation(o, {
    ...{ origin: o.origin, port: 0, elsewhere: 'http://elsewhere.invalid', strays: [], log },
    async down() {
      isUp = false;
    },
    async up() {
      isUp = true;
    },
  });
  const { world } = door;
  const whole = {
    ...door,
    log: {
      push(entry: LoggedRequest) {
        log.push(entry);
        if (log.length > 2 * kept) log.splice(0, kept);
      },
    },
    pick(request: LoggedRequest): Fault | null {
      o.heard?.(request);
      return door.pick(request) ?? o.fault?.(request) ?? null;
    },
  };
  return {
    azure,
    world,
    get isUp() {
      return isUp;
    },
    enter: (request) => enter(whole, request),
    sweep: () => sweep(world),
  };
}
