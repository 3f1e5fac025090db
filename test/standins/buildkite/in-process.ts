/**
 * The stand-in without a socket and without time of its own: whoever asks it is in the same process, and says how time passes. For
 * simulations; what it answers is the same. There is no host for artifacts.
 */
import { type Answered, enter, type Incoming } from './door.ts';
import type { Fault } from './faults.ts';
import { createOrganisation, type Organisation } from './organisation.ts';
import { isOver, type World } from './state.ts';
import type { BuildkiteOptions, LoggedRequest } from './types.ts';

export interface InProcessOptions extends BuildkiteOptions {
  /** Its wall clock, ms. */
  readonly now: () => number;
  readonly after: (ms: number, fn: () => void) => () => void;
  /** Told of each request before it is answered; only the last ones are in `requests`. */
  readonly heard?: (request: LoggedRequest) => void;
  /** A fault for this request, where no rule has one. */
  readonly fault?: (request: LoggedRequest) => Fault | null;
}

export interface BuildkiteInProcess {
  readonly buildkite: Organisation;
  readonly world: World;
  /** False between `faults.down()` and `faults.up()`: whoever asks then finds nobody. */
  readonly isUp: boolean;
  /** One request and its answer; see `enter`. Whoever finds nobody must not call it. */
  enter(request: Incoming): Promise<Answered | 'cut' | 'silence'>;
  /** Drops what was over before `time`, by its clock: nothing is ever asked about it again. */
  forget(time: number): void;
}

/** Requests that are kept in the log. */
const kept = 200;

export function openBuildkiteStandin(o: InProcessOptions): BuildkiteInProcess {
  let isUp = true;
  const log: LoggedRequest[] = [];
  const { buildkite, door } = createOrganisation(o, {
    log,
    async down() {
      isUp = false;
    },
    async up() {
      isUp = true;
    },
  });
  const { world } = door;
  const whole = {
    world,
    log: {
      push(entry: LoggedRequest) {
        log.push(entry);
        if (log.length > 2 * kept) log.splice(0, kept);
      },
    },
    // What is asked about is the entry that was just written.
    pick: (asked: Parameters<typeof door.pick>[0]): Fault | null => {
      const entry = asked as LoggedRequest;
      o.heard?.(entry);
      return door.pick(entry) ?? o.fault?.(entry) ?? null;
    },
  };
  return {
    buildkite,
    world,
    get isUp() {
      return isUp;
    },
    enter: (request) => enter(whole, request),
    forget(time) {
      for (const [id, job] of world.jobs) {
        if (!isOver(job) || (job.times.finished ?? time) >= time) continue;
        world.jobs.delete(id);
        world.builds.delete(job.build.id);
        if (job.token !== null) world.jobTokens.delete(job.token);
      }
      for (const [id, agent] of world.agents) {
        if (agent.gone === null || agent.gone >= time) continue;
        world.agents.delete(id);
        world.sessions.delete(agent.session);
      }
      for (const [token, { until }] of world.acquisitionTokens) if (until < o.now()) world.acquisitionTokens.delete(token);
    },
  };
}
