/** The executors: the only place where a slot's wishes touch a runtime or a CI service. Each may be run again after a crash. */
import type { CiService, Registration } from '../ci/ci-service.ts';
import { expandRecipe } from '../config/template.ts';
import type { AgentId, DeviceId, JobId, Slot, SlotEvent } from '../core/slot.ts';
import { isJobsOwn, OnejobError, toFailure } from '../errors.ts';
import type { Keepers } from '../logs/keepers.ts';
import { frame } from '../runtimes/gate.ts';
import type { LeasedDevice, Recipe, Runtime, SandboxSpec } from '../runtimes/runtime.ts';
import type { Executors } from './executors.ts';
import type { Pool } from './pool.ts';

export interface ActParts {
  readonly keepers: Keepers;
  readonly place: (key: string) => { readonly slot: Slot; readonly pool: Pool; readonly name: string };
  readonly runtime: (name: string) => Runtime;
  /** Told when a runtime could not be reached, before anything else is planned. */
  readonly unreachable: (runtime: Runtime, why: string) => void;
  /** When this manager started, on the core's clock. */
  readonly startedAt: number;
  /** Whether the runtime cannot be reached right now. */
  readonly isAway: (runtime: Runtime) => boolean;
  /** The slot's devices as they were seen last. @throws OnejobError E_DEVICE_LOST for one that was not there */
  readonly devices: (uuids: readonly DeviceId[]) => LeasedDevice[];
  /** The image of a pool that has one chosen; null for the recipe's own. @throws OnejobError E_IMAGE_CHOICE */
  readonly imageOf: (pool: Pool) => string | null;
  /** The only CPUs for a sandbox of this pool with these devices; null for all. */
  readonly cpuset: (pool: Pool, devices: readonly LeasedDevice[]) => Promise<string | null>;
  /** What a sandbox was made from, with what its devices are driven by. */
  readonly stamp: (pool: Pool, fingerprint: string) => string;
  /** Puts down what the slot's devices show before an agent is let at them; false when they must not be used now. */
  readonly before: (slot: Slot, agent: AgentId, signal: AbortSignal) => Promise<boolean>;
  /** Until the slot's devices are clean or no longer its own. */
  readonly prove: (slot: Slot, agent: AgentId, note: (line: string | null) => void, signal: AbortSignal) => Promise<SlotEvent[]>;
  /** What the slot is busy with, for people; null when there is nothing to say. */
  readonly note: (key: string, line: string | null) => void;
}

/** What errors say of a runtime that cannot be reached at all. */
const notThere: ReadonlySet<string> = new Set(['E_ENGINE_UNREACHABLE', 'E_ENGINE_PERMISSION']);

/** How long a started sandbox may take until its gate is ready, in ms. */
const readyTimeout = 60_000;
/** How long the gate may take to take a script it was handed, in ms; tried three times. */
const releasedTimeout = 5_000;
/** How long the log of an interrupted release may take from *ready* to *released*, both of which were written long ago, in ms. */
const replayTimeout = 500;
/** How long an ended sandbox's output may take to be read to its end before it is removed all the same, in ms. */
const drainTimeout = 60_000;

export function createExecutors(parts: ActParts): Executors {
  const registrations = new Map<AgentId, Registration>();

  const contextOf = (key: string, agent: AgentId, job: JobId | null) => {
    const { slot, pool, name } = parts.place(key);
    const runtime = parts.runtime(slot.runtime);
    const context = { agent, pool: pool.config.name, slot: key, name, workspace: runtime.capabilities.workspace(agent), job };
    return { pool, runtime, context };
  };

  async function interrupted(agent: AgentId, signal: AbortSignal): Promise<SlotEvent[]> {
    await parts.keepers.until(agent, 'ready', readyTimeout, signal);
    const begun = await parts.keepers.until(agent, 'released', replayTimeout, signal).catch(() => false);
    signal.throwIfAborted();
    return begun ? [] : [{ kind: 'stop', agent, why: 'unreleased', grace: 0 }];
  }

  /** A script that was handed over may have begun: only a log that can be read and does not say so speaks against it. */
  async function untilReleased(agent: AgentId, runtime: Runtime, signal: AbortSignal): Promise<void> {
    for (let silent = 1; ; silent = parts.isAway(runtime) ? 1 : silent + 1) {
      try {
        await parts.keepers.until(agent, 'released', releasedTimeout, signal);
        return;
      } catch (error) {
        signal.throwIfAborted();
        // Not at the first time: after a pause of the whole machine timers come before what was sent meanwhile.
        if (silent >= 3 && !parts.isAway(runtime)) throw error;
      }
    }
  }

  return {
    async prepare({ agent, job }, key, signal) {
      const { slot, pool, name } = parts.place(key);
      const runtime = parts.runtime(slot.runtime);
      try {
        const own = recipeOf(pool, name, job);
        const recipe = own.image === null ? { ...own, image: parts.imageOf(pool) } : own;
        if (!runtime.capabilities.images && recipe.image !== pool.config.recipe.image) throw noImages(runtime, recipe);
        const devices = parts.devices(slot.devices);
        const cpuset = await parts.cpuset(pool, devices);
        const about = { agent, pool: pool.config.name, slot: key, name };
        const spec: SandboxSpec = { ...about, recipe, devices, ...(cpuset !== null && { cpuset }) };
        const made = await runtime.prepare(spec, (line) => parts.note(key, line), signal);
        const fingerprint = parts.stamp(pool, made.fingerprint);
        if (job === null) pool.learn(key, fingerprint);
        parts.keepers.follow(agent, runtime);
        const ready = await parts.keepers.until(agent, 'ready', readyTimeout, signal);
        // A sandbox that ended instead says so by its exit, with more to tell than we know here.
        return ready ? [{ kind: 'ready', agent, fingerprint }] : [];
      } catch (error) {
        signal.throwIfAborted();
        const failure = toFailure(error);
        if (!notThere.has(failure.code)) return [{ kind: 'prepareFailed', agent, failure }];
        // No fault of the pool's or the job's, so it counts for neither: what is to be made waits until the runtime is back.
        parts.unreachable(runtime, failure.message);
        return [{ kind: 'exited', agent, exit: { kind: 'lost', reason: failure.message }, released: false }];
      } finally {
        parts.note(key, null);
      }
    },

    async register({ agent }, key, signal) {
      const { pool, context } = contextOf(key, agent, null);
      try {
        registrations.set(agent, await pool.service.register(context, signal));
        return [{ kind: 'registered', agent }];
      } catch (error) {
        signal.throwIfAborted();
        return [{ kind: 'registerFailed', agent, failure: toFailure(error) }];
      }
    },

    async release({ agent, job }, key, signal) {
      const { pool, runtime, context } = contextOf(key, agent, job);
      const lane = parts.place(key).slot.agent;
      try {
        parts.keepers.follow(agent, runtime);
        // Begun by a manager that is gone: files and script may have been handed over. Adopt what has begun, start over
        // what has not.
        if (lane.kind === 'releasing' && lane.since < parts.startedAt) return await interrupted(agent, signal);
        const registration = await registrationFor(pool.service);
        if (registration.files !== null) {
          parts.note(key, 'sending the workspace');
          await runtime.putFiles(agent, await registration.files(), signal);
        }
        // Nothing has begun: the job goes back, and the slot waits in its proof until the device can be used.
        if (!(await parts.before(parts.place(key).slot, agent, signal)))
          return [{ kind: 'stop', agent, why: 'unreleased', grace: 0 }];
        await runtime.release(agent, frame(agent, registration.script), signal);
        await untilReleased(agent, runtime, signal);
        return [];
      } catch (error) {
        signal.throwIfAborted();
        const failure = toFailure(error);
        return [{ kind: 'releaseFailed', agent, failure, blame: isJobsOwn(failure) ? 'job' : 'pool' }];
      } finally {
        registrations.delete(agent);
        parts.note(key, null);
      }

      async function registrationFor(service: CiService): Promise<Registration> {
        if (service.capabilities.binds === 'late') return service.register(context, signal);
        const known = registrations.get(agent);
        if (known !== undefined) return known;
        // Credentials are in memory only: after a restart the agent is given up and a new one registered.
        throw new OnejobError('E_REGISTRATION_LOST', `The registration of agent ${agent} was lost in a restart.`, { retry: true });
      }
    },

    async terminate({ agent }, key) {
      await parts.runtime(parts.place(key).slot.runtime).signal(agent, 'TERM');
      return [];
    },

    async kill({ agent }, key) {
      await parts.runtime(parts.place(key).slot.runtime).signal(agent, 'KILL');
      return [];
    },

    async settle({ agent, job }, key, signal) {
      const { pool, runtime, context } = contextOf(key, agent, job);
      parts.keepers.follow(agent, runtime);
      await parts.keepers.complete(agent, drainTimeout);
      signal.throwIfAborted();
      await pool.service.settle(context, (inner) => runtime.getFiles(agent, inner), signal);
      return [{ kind: 'settled', agent }];
    },

    async clear({ agent }, key, signal) {
      const { pool, runtime } = contextOf(key, agent, null);
      registrations.delete(agent);
      await pool.service.deregister(agent, signal);
      await runtime.remove(agent);
      await parts.keepers.drop(agent);
      return [{ kind: 'cleared', agent }];
    },

    prove: ({ agent }, key, signal) => parts.prove(parts.place(key).slot, agent, (line) => parts.note(key, line), signal),
  };
}

/** What a job asks for itself is given or refused, never left out in silence; a pool's image only says what images it would use. */
function noImages({ name }: Runtime, { image }: Recipe): OnejobError {
  return new OnejobError('E_RECIPE', `Cannot run the job in image "${image}": the ${name} runtime has no images.`, {
    hint: 'Leave --image out to run it with the programs of this host, or use a pool whose runtime is docker; "onejob doctor" says what that needs.',
  });
}

/** What a slot's next sandbox is made from: the pool's recipe, or the one a job brought. */
export function recipeOf(pool: Pool, name: string, job: JobId | null): Recipe {
  const base = expandRecipe(pool.config, name);
  return (job === null ? null : pool.service.recipeFor(job, base)) ?? base;
}
