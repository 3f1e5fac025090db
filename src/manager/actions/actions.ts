/** The executors: the only place where a slot's actions reach a runtime or a CI service. Each may run again after a crash. */

import { attempt, type Failure, isEngineAway, isJobsOwn, OnejobError, toFailure } from '../../base/errors.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { Action, AgentId, Exit, JobId, Slot, SlotEvent } from '../../core/slot.ts';
import type { Device } from '../../gpu/inventory.ts';
import type { LogFollowers } from '../../logs/followers.ts';
import { outputTail } from '../../logs/select.ts';
import {
  type AgentContext,
  type AgentFiles,
  type EndedContext,
  endedWithoutJob,
  type Registration,
} from '../../ports/ci-service.ts';
import type { Made, Recipe, Runtime, SandboxSpec } from '../../ports/runtime.ts';
import { frame } from '../../runtimes/gate.ts';
import type { Caches } from '../caches/caches.ts';
import type { DeviceManager } from '../devices/device-manager.ts';
import type { HeldJobs } from '../held/held-jobs.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import type { Observer } from '../loop/observe.ts';
import { oldRecipe, type Pool, poolRecipe } from '../loop/pool.ts';
import type { Executors } from './action-runner.ts';
import type { MountPlaces } from './places.ts';
import type { SandboxProbe } from './probe-sandbox.ts';
import type { Registrations } from './registrations.ts';

export interface ActParts {
  readonly clock: Clock;
  readonly slots: Places;
  /** Is told that a runtime could not be reached, before anything else is planned. */
  readonly observer: Pick<Observer, 'unreachable' | 'cannotReach'>;
  /** null if no pool needs devices. */
  readonly deviceManager: Pick<DeviceManager, 'registry' | 'verifier' | 'benchmarks'> | null;
  readonly fingerprints: Pick<Fingerprints, 'imageOf' | 'made' | 'withEngine'>;
  readonly caches: Pick<Caches, 'ensure'>;
  readonly mountPlaces: MountPlaces;
  readonly followers: LogFollowers;
  /** Made ahead for agents that bind early. */
  readonly registrations: Registrations;
  /** Resolves when everything committed so far survives a power cut. */
  readonly synced: () => Promise<void>;
  readonly probe: SandboxProbe;
  readonly held: Pick<HeldJobs, 'consider' | 'keep'>;
  /** Aborts when the manager no longer waits for the artifacts and logs of ended jobs. */
  readonly hurry: AbortSignal;
}

/** The slots that actions are about. */
export interface Places {
  place(key: string): { readonly slot: Slot; readonly pool: Pool; readonly name: string; readonly runtime: Runtime };
  /** What the slot is busy with, for people; null when there is nothing to say. */
  note(key: string, line: string | null): void;
  /** Records the job of an agent that is gone, because its CI service has reported it only now. */
  ran(agent: AgentId, job: JobId): void;
}

/** ms that a started sandbox may take until its gate is ready. */
const readyTimeout = 60_000;
/** ms of one wait for the gate's answer. It must take a script within three. */
const heardTimeout = 5_000;
/** ms between *ready* and *released* in the log of an interrupted release, both of which were written long ago. */
const replayTimeout = 500;
/** ms between two TERMs. */
const betweenTerms = 250;
/** ms that reading an ended sandbox's output may take before it is removed anyway. */
const drainTimeout = 60_000;

export class SlotActions implements Executors {
  readonly #parts: ActParts;
  readonly #startedAt: number;
  /** Agents that got one TERM, so that they take no job. */
  readonly #asked = new Set<AgentId>();

  constructor(parts: ActParts) {
    this.#parts = parts;
    this.#startedAt = parts.clock.now();
  }

  async prepare({ agent, job }: Action<'prepare'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { slots, fingerprints, followers, registrations, observer } = this.#parts;
    const { pool, runtime } = slots.place(key);
    try {
      const spec = await this.#specOf(key, agent, job, signal);
      let fingerprint: string | null = null;
      const learn = (made: Made): string => fingerprints.made(key, { agent, job, recipe: spec.recipe }, made);
      // A new image is to be known before its gate can fail.
      const chosen = (made: Made): void => {
        if (!signal.aborted) fingerprint = learn(made);
      };
      const made = await runtime.prepare(spec, (line) => slots.note(key, line), signal, chosen);
      fingerprint ??= learn(made);
      followers.follow(agent, runtime);
      const ready = await followers.until(agent, 'ready', readyTimeout, signal);
      if (ready && pool.service.capabilities.binds === 'early')
        registrations.ahead(agent, this.#registering(key, agent, fingerprint));
      // The exit of an ended sandbox is reported separately, with more details.
      return ready ? [{ kind: 'ready', agent, fingerprint }] : [];
    } catch (error) {
      signal.throwIfAborted();
      const failure = toFailure(error);
      if (!isEngineAway(failure)) return [{ kind: 'prepareFailed', agent, failure }];
      // This is not the pool's or the job's fault, so it counts for neither: preparation waits until the runtime is back.
      observer.cannotReach(runtime, failure.message);
      return [{ kind: 'exited', agent, exit: { kind: 'lost', reason: failure.message }, released: false }];
    } finally {
      slots.note(key, null);
    }
  }

  async register({ agent }: Action<'register'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { slots, registrations } = this.#parts;
    const { agent: lane } = slots.place(key).slot;
    const fingerprint = lane.kind === 'registering' ? lane.fingerprint : '';
    try {
      await registrations.take(agent, this.#registering(key, agent, fingerprint), signal);
      return [{ kind: 'registered', agent }];
    } catch (error) {
      signal.throwIfAborted();
      return [{ kind: 'registerFailed', agent, failure: toFailure(error) }];
    }
  }

  async release({ agent, job }: Action<'release'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { slots, followers, registrations, deviceManager, synced: sync } = this.#parts;
    const lane = slots.place(key).slot.agent;
    const { pool, runtime, context } = this.#contextOf(key, agent, job, lane.kind === 'releasing' ? lane.fingerprint : '');
    try {
      followers.follow(agent, runtime);
      // A previous manager began it: files and script may have been handed over. Adopt it if it has begun, otherwise start
      // over.
      if (lane.kind === 'releasing' && lane.since < this.#startedAt) return await this.#interrupted(agent, runtime, signal);
      // Begun now, so that it takes its time while the rest is done.
      const synced = sync();
      synced.catch(() => {});
      const registration = await this.#registered(pool, context, signal);
      if (registration.files !== null) {
        slots.note(key, 'sending the workspace');
        await runtime.putFiles(agent, await registration.files(), signal);
      }
      // Nothing has begun: the job returns to its queue, and the slot waits for its proof.
      if ((await deviceManager?.verifier.before(slots.place(key).slot, agent, signal)) === false)
        return [{ kind: 'stop', agent, why: 'unreleased', grace: 0 }];
      // A power cut that undoes the release would let another agent run the script again (S3).
      await synced;
      signal.throwIfAborted();
      await runtime.release(agent, frame(agent, registration.script), signal).catch(async (error: unknown) => {
        if (!mayHaveArrived(toFailure(error))) throw error;
        await this.#heard(agent, runtime, 'released', 1, signal).catch(() => {
          throw error;
        });
      });
      // Its follower may have heard this before there was a script, when it changed nothing: the gate is the `sh` of an image that
      // a job may choose. Without the event, the job would have no time limit.
      return (await this.#heard(agent, runtime, 'released', 3, signal)) ? [{ kind: 'released', agent }] : [];
    } catch (error) {
      signal.throwIfAborted();
      const failure = toFailure(error);
      return [{ kind: 'releaseFailed', agent, failure, countsAgainst: isJobsOwn(failure) ? 'job' : 'pool' }];
    } finally {
      await registrations.drop(agent);
      slots.note(key, null);
    }
  }

  async retire({ agent }: Action<'retire'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { place, note } = this.#parts.slots;
    const { slot, pool, runtime } = place(key);
    const service = pool.serviceOf(slot);
    const wish = async (): Promise<void> => {
      if (service.capabilities.terms === 1 || this.#asked.has(agent)) return;
      this.#asked.add(agent);
      await runtime.signal(agent, 'TERM');
    };
    try {
      // A previous manager may have sent the first TERM, and a second one would end a job that came anyway: ask first.
      if (slot.agent.kind === 'retiring' && slot.agent.since >= this.#startedAt) await wish();
      const job = await service.retire(agent, signal).catch(async (error: unknown) => {
        if (!signal.aborted) await wish();
        throw error;
      });
      note(key, null);
      return [job === null ? { kind: 'retired', agent } : { kind: 'jobSeen', agent, job, limit: pool.limitOf(slot) }];
    } catch (error) {
      if (!signal.aborted) note(key, `ends once onejob is sure that it has no job: ${toFailure(error).message}`);
      throw error;
    }
  }

  async terminate({ agent }: Action<'terminate'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { slot, pool, runtime } = this.#parts.slots.place(key);
    const service = pool.serviceOf(slot);
    if (slot.agent.kind === 'ending') await service.ending?.(slot.agent, signal);
    for (let left = service.capabilities.terms - (this.#asked.has(agent) ? 1 : 0); left > 0; left -= 1) {
      await runtime.signal(agent, 'TERM');
      // Two TERMs at the same time may count as one.
      if (left > 1) await sleep(this.#parts.clock, betweenTerms, signal);
    }
    return [];
  }

  async kill({ agent }: Action<'kill'>, key: string): Promise<SlotEvent[]> {
    await this.#parts.slots.place(key).runtime.signal(agent, 'KILL');
    return [];
  }

  async settle({ agent, job }: Action<'settle'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { followers, held, hurry } = this.#parts;
    const { pool, service, runtime, context } = this.#endedOf(key, agent, job);
    // A job that was cancelled before its release leaves a sandbox at its gate, whose output never ends.
    if (followers.follow(agent, runtime).state !== 'released') await runtime.signal(agent, 'KILL');
    if (!(await followers.complete(agent, drainTimeout))) followers.lostEnd(agent);
    signal.throwIfAborted();
    await service.settle?.(context, filesOf(agent, runtime), signal, hurry);
    if (service.jobs?.hasFailed?.(job) === true) {
      const { slot, name } = context;
      const recipe = attempt(() => recipeOf(pool, { key, name }, job)) ?? poolRecipe(pool, name);
      const { holdFailed } = pool.config;
      await held.consider({ agent, job, pool: context.pool, slot, name, recipe, holdFailed, runtime }, signal);
    }
    return [{ kind: 'settled', agent }];
  }

  async clear({ agent }: Action<'clear'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { followers, held, registrations, synced } = this.#parts;
    const { slot, runtime } = this.#endedOf(key, agent, null);
    await registrations.drop(agent);
    const left = slot.leaving.find((one) => one.agent === agent);
    const outcome = await this.#ended(key, agent, left?.exit ?? null, signal);
    // A power cut that undoes the end of its job must find how it ended (S7). What was never released has no job.
    if (followers.hasBegun(agent)) await synced();
    if (!(await held.keep(agent))) await runtime.remove(agent);
    await followers.drop(agent);
    this.#asked.delete(agent);
    return [{ kind: 'cleared', agent, outcome }];
  }

  async prove({ agent }: Action<'prove'>, key: string, signal: AbortSignal): Promise<SlotEvent[]> {
    const { deviceManager, slots } = this.#parts;
    if (deviceManager === null) return [{ kind: 'proved', agent }];
    return deviceManager.verifier.prove(slots.place(key).slot, agent, (line) => slots.note(key, line), signal);
  }

  #devicesOf({ devices }: Slot): Device[] {
    return this.#parts.deviceManager?.registry.leasedDevices(devices) ?? [];
  }

  #endedOf(key: string, agent: AgentId, job: JobId | null) {
    const { slot, pool, name, runtime } = this.#parts.slots.place(key);
    const workspace = runtime.capabilities.workspace(agent);
    const context: EndedContext = { agent, pool: pool.config.name, slot: key, name, workspace, job };
    return { slot, pool, service: pool.serviceOf(slot), runtime, context };
  }

  async #specOf(key: string, agent: AgentId, job: JobId | null, signal: AbortSignal): Promise<SandboxSpec> {
    const { slots, mountPlaces, fingerprints, caches, deviceManager } = this.#parts;
    const { slot, pool, name, runtime } = slots.place(key);
    const own = recipeOf(pool, { key, name }, job);
    const places = own.mounts.length === 0 ? null : await mountPlaces.of(own.mounts);
    const named = own.image === null ? await fingerprints.imageOf(pool, (line) => slots.note(key, line), signal) : null;
    const recipe = await fingerprints.withEngine({ ...own, ...named }, (line) => slots.note(key, line), signal);
    await caches.ensure(recipe.mounts);
    const wantsImage =
      recipe.image !== pool.config.recipe.image || (job !== null && (pool.service.jobs?.namesImage?.(job) ?? false));
    if (!runtime.capabilities.images && wantsImage) throw noImages(runtime, recipe);
    const devices = this.#devicesOf(slot);
    // The only CPUs for it; null for all.
    const isHere = runtime.capabilities.grants === 'host';
    const cpuset = isHere ? ((await deviceManager?.benchmarks.cpusFor(slot, agent, recipe.grant.numa)) ?? null) : null;
    const how = { ...(places !== null && { places }), ...(cpuset !== null && { cpuset }) };
    const { asks: look } = pool.service;
    return { agent, pool: pool.config.name, slot: key, name, recipe, devices, ...how, ...(look !== undefined && { look }) };
  }

  /** `fingerprint`: what the agent's sandbox was made from. */
  #contextOf(key: string, agent: AgentId, job: JobId | null, fingerprint: string) {
    const { slot, pool, service, runtime, context: ended } = this.#endedOf(key, agent, job);
    const context: AgentContext = {
      ...ended,
      devices: this.#devicesOf(slot),
      cuda: this.#parts.deviceManager?.registry.inventory?.cuda ?? null,
      ask: async (signal) => {
        const spec = await this.#specOf(key, agent, job, signal);
        return this.#parts.probe.ask({ runtime, spec, fingerprint, script: service.asks ?? ':' }, signal);
      },
      isRemote: runtime.capabilities.elsewhere === true,
      hostAddress: (port, signal) =>
        runtime.hostAddress(recipeOf(pool, { key, name: ended.name }, job).network, port, signal, agent),
    };
    return { pool, service, runtime, context };
  }

  #registering(key: string, agent: AgentId, fingerprint: string): (signal: AbortSignal) => Promise<Registration> {
    return (signal) => {
      const { service, context } = this.#contextOf(key, agent, null, fingerprint);
      return service.register(context, signal);
    };
  }

  async #registered({ service }: Pool, context: AgentContext, signal: AbortSignal): Promise<Registration> {
    if (service.capabilities.binds === 'late') return service.register(context, signal);
    const known = await this.#parts.registrations.get(context.agent);
    if (known !== null) return known;
    // Credentials are only in memory: after a restart the agent is given up, and a new one registered.
    throw new OnejobError('E_REGISTRATION_LOST', `The registration of agent ${context.agent} was lost in a restart.`, {
      retry: true,
    });
  }

  /** An idle agent ended by itself: its service may know whether it had a job; otherwise, what was wrong. */
  async #ended(key: string, agent: AgentId, how: Exit | null, signal: AbortSignal): Promise<'worked' | Failure | null> {
    // What was lost says nothing of the agent itself.
    const exit = how?.kind === 'lost' ? null : how;
    const { followers, slots, hurry } = this.#parts;
    const { service, runtime, context } = this.#endedOf(key, agent, null);
    const isEarly = service.capabilities.binds === 'early';
    // A sandbox that was never released has nothing to keep.
    if (isEarly && (followers.follow(agent, runtime).state === 'released' || exit !== null)) {
      await followers.complete(agent, drainTimeout);
      await service.settle?.(context, filesOf(agent, runtime), signal, hurry);
    }
    const { ran } = await service.deregister(context, signal);
    if (typeof ran === 'string') slots.ran(agent, ran);
    if (exit === null) return null;
    if (typeof ran === 'string') return 'worked';
    if (this.#asked.has(agent)) return null;
    // Nobody knows, so an agent that itself reports an error is believed.
    if (ran === undefined && exit.kind === 'code' && exit.code === 0) return null;
    const words = await outputTail(followers.read(agent));
    return service.describeExit?.(exit, words) ?? endedWithoutJob(exit, words);
  }

  async #interrupted(agent: AgentId, runtime: Runtime, signal: AbortSignal): Promise<SlotEvent[]> {
    await this.#heard(agent, runtime, 'ready', readyTimeout / heardTimeout, signal);
    const begun = await this.#parts.followers.until(agent, 'released', replayTimeout, signal).catch(() => false);
    signal.throwIfAborted();
    return begun ? [{ kind: 'released', agent }] : [{ kind: 'stop', agent, why: 'unreleased', grace: 0 }];
  }

  /**
   * False: its output has ended before. A script that was handed over may have begun. Only a readable log without the marker is
   * evidence against it.
   */
  async #heard(agent: AgentId, runtime: Runtime, what: 'ready' | 'released', times: number, signal: AbortSignal) {
    const isAway = (): boolean => this.#parts.observer.unreachable(runtime.name) !== null;
    for (let silent = 1; ; silent = isAway() ? 1 : silent + 1) {
      try {
        return await this.#parts.followers.until(agent, what, heardTimeout, signal);
      } catch (error) {
        signal.throwIfAborted();
        // Not the first time: after a pause of the whole machine timers fire before data that arrived meanwhile.
        if (silent >= times && !isAway()) throw error;
      }
    }
  }
}

function filesOf(agent: AgentId, runtime: Runtime): AgentFiles {
  return {
    all: (signal, only) => runtime.getFiles(agent, signal, only),
    folder: (name, signal) => runtime.getFolder(agent, name, signal),
  };
}

/** A job's own wishes are fulfilled or refused, never ignored. A pool's image only says what it would use. */
function noImages({ name }: Runtime, { image }: Recipe): OnejobError {
  return new OnejobError('E_JOB_REQUEST', `Cannot run the job in image "${image}": the ${name} runtime has no images.`, {
    hint: 'Omit --image to run it with the programs of this host, or use a pool whose runtime is docker; "onejob doctor" says what that needs.',
  });
}

/** Whether a gate may have taken the script although handing it over failed: only the answer was lost (S6). */
function mayHaveArrived({ code, retry }: Failure): boolean {
  return retry && code !== 'E_GATE_ENDED';
}

/** The recipe of a slot's next sandbox: the pool's, or the job's own. While another slot tries a new image it has the old one. */
export function recipeOf(pool: Pool, { key, name }: { readonly key: string; readonly name: string }, job: JobId | null): Recipe {
  const old = pool.rollout.oldOrigin(key);
  const base = old === null ? poolRecipe(pool, name) : oldRecipe(pool, name, old);
  const own = (job === null ? null : pool.service.jobs?.recipeFor?.(job, base)) ?? base;
  // Nothing is made from an id that is gone, but its name can be pulled again.
  const isGone = pool.rollout.fingerprintOf(key) === null && own !== base;
  if (own.imageId === undefined || (own.image === base.image && !isGone)) return own;
  const { imageId: _, ...named } = own;
  return named;
}
