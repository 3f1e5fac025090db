/**
 * A runtime whose sandboxes are values: gates, jobs, output and exits happen in virtual time. Sandboxes belong to the
 * simulated Engine (`SimEngine`) and outlive managers; a `simRuntime` is one manager's connection to it and dies with it.
 *
 * A job is acted out from its command, `sim {"ms":2000,"exit":3}` (see `Act`). It keeps the contract of all runtimes
 * (`runtime.contract.test.ts`), also in what it cannot see and what it must not touch.
 */
import type { Readable } from 'node:stream';
import { OnejobError } from '../../src/base/errors.ts';
import type { Clock } from '../../src/core/clock.ts';
import type { AgentId } from '../../src/core/slot.ts';
import {
  advance,
  type Made,
  type Recipe,
  type Runtime,
  type RuntimeEvent,
  type SandboxSeen,
  type SandboxSpec,
} from '../../src/ports/runtime.ts';
import { ours, type SimEngine, type SimImage } from './engine/engine.ts';
import { type Sandbox, workspacePath } from './engine/sandbox.ts';
import { Workspace } from './engine/workspace.ts';
import type { ProcessClock } from './time.ts';

export type { Act } from './engine/act.ts';
export { scriptOfAct } from './engine/act.ts';
export { type EngineWatcher, type Faults, noFaults, ours, type Seen, SimEngine, type SimImage } from './engine/engine.ts';
export type { Program, Stage } from './engine/sandbox.ts';

export interface SimRuntimeOptions {
  readonly name?: string | undefined;
  /** Whose sandboxes it makes and sees; default ours. */
  readonly owner?: string;
  /** Whether sandboxes are made from images; default not. */
  readonly images?: boolean;
  /** Whether the Engine starts sandboxes, in turn, as it has room; default not. */
  readonly grants?: boolean;
}

/** ms that an Engine may take over a call. */
const patience = 60_000;
/** ms until what was printed is read. */
const reading = 20;

/** One manager's view of the Engine. After its clock was killed none of its calls ever ends. */
export function simRuntime(
  engine: SimEngine,
  clock: ProcessClock,
  { name = 'process', owner = ours, images = false, grants = false }: SimRuntimeOptions = {},
): Runtime {
  const connection = createConnection(engine, clock);
  const { call, wait } = connection;
  const find = (agent: AgentId): Sandbox | undefined => engine.of(owner).get(agent);
  const known = (agent: AgentId): Sandbox => {
    const sandbox = find(agent);
    if (sandbox !== undefined) return sandbox;
    throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} has no sandbox.`);
  };
  // Asked for every half minute of each day, and of few recipes.
  const fingerprints = new Map<string, string>();
  const fingerprintOf = ({ imageId: _, pull: __, ...recipe }: Recipe, image: SimImage | null): string => {
    const text = `${image?.id} ${JSON.stringify(recipe)}`;
    const known = fingerprints.get(text) ?? digest(text);
    fingerprints.set(text, known);
    return known;
  };
  const imageOf = ({ image, imageId }: Recipe): SimImage | null => {
    if (!images || image === null) return null;
    return imageId === undefined ? engine.image(image) : engine.imageWith(image, imageId);
  };

  /** The image of a recipe, pulled if its policy says so. */
  const pull = async (recipe: Recipe, progress: (line: string) => void, signal: AbortSignal): Promise<SimImage | null> => {
    const image = imageOf(recipe);
    if (image === null || (image.isHere && (recipe.pull !== 'always' || recipe.imageId !== undefined))) return image;
    if (recipe.pull === 'never' || recipe.imageId !== undefined)
      throw new OnejobError('E_IMAGE_NOT_FOUND', `Image "${recipe.image}" is not on the Engine.`);
    progress(`pulling ${recipe.image}`);
    await wait(clock, image.pull, signal);
    await call(10, signal, () => {
      if (image.trouble !== null) throw image.trouble;
      image.isHere = true;
    });
    progress(`pulled ${recipe.image}`);
    return image;
  };
  const join = (network: string): void => {
    if (network !== 'default' && network !== 'internet') return;
    const networks = engine.networks.get(owner) ?? new Set();
    engine.networks.set(owner, networks.add(network));
  };
  const remove = (agent: AgentId): Promise<void> => call(50, null, () => engine.remove(agent, owner));

  /** Resolves once it was started, or is gone; looks at it as long as the Engine answers. */
  const started = async (sandbox: Sandbox, progress: (line: string) => void, signal: AbortSignal): Promise<void> => {
    const { agent } = sandbox.spec;
    while (!sandbox.isStarted && find(agent) === sandbox) {
      progress('waits for room');
      await wait(clock, 1_000, signal);
      // A lost answer changes nothing: the sandbox keeps its place in the queue, and is looked at again.
      await call(5, signal, () => {}).catch(() => {});
      signal.throwIfAborted();
    }
    if (find(agent) !== sandbox) throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} has no sandbox.`, { retry: true });
  };

  const prepare = async (
    spec: SandboxSpec,
    progress: (line: string) => void,
    signal: AbortSignal,
    chosen?: (made: Made) => void,
  ) => {
    const { agent, recipe } = spec;
    const image = await pull(recipe, progress, signal);
    const fingerprint = fingerprintOf(recipe, image);
    const imageId = image?.id;
    chosen?.({ fingerprint, ...(imageId !== undefined && { imageId }) });
    signal.throwIfAborted();
    // A request that is cut off may still be carried out, so it is not; what it made is removed instead.
    await call(150, null, () => {
      const refusal = engine.refusal(spec);
      if (refusal !== null) {
        engine.refused += 1;
        throw refusal;
      }
      join(recipe.network);
      engine.make(imageId === undefined ? spec : { ...spec, recipe: { ...recipe, imageId } }, fingerprint, owner);
    });
    if (signal.aborted) {
      await remove(agent);
      signal.throwIfAborted();
    }
    const sandbox = await call(150, null, () => {
      const made = known(agent);
      if (grants) engine.enqueue(made);
      else engine.start(made);
      return made;
    });
    if (grants) {
      await started(sandbox, progress, signal);
      return { fingerprint: sandbox.fingerprint };
    }
    const { granted } = sandbox;
    if (granted.length !== spec.devices.length || spec.devices.some(({ uuid }) => !granted.includes(uuid))) {
      await remove(agent);
      const has = granted.length === 0 ? 'none' : granted.join(', ');
      throw new OnejobError('E_DEVICES_GRANTED', `Cannot start agent ${spec.name}: its sandbox has other devices: ${has}.`, {
        retry: true,
      });
    }
    return { fingerprint, ...(imageId !== undefined && { imageId }) };
  };

  const hostAddress = async (network: string, port: number, signal: AbortSignal): Promise<string> => {
    if (network === 'none') {
      const message = 'Sandboxes on network "none" cannot reach services on this host: it has only its own loopback interface.';
      throw new OnejobError('E_NO_DOOR', message, { hint: 'Write network: default or internet.' });
    }
    return call(5, signal, () => {
      join(network);
      if (network === 'internet') engine.doors.set(owner, (engine.doors.get(owner) ?? new Set()).add(port));
      return '127.0.0.1';
    });
  };

  return {
    name,
    capabilities: {
      weaker: null,
      images,
      hostNetwork: null,
      grants: grants ? 'engine' : 'host',
      holdsSecrets: true,
      workspace: () => workspacePath,
    },
    groupsOf: () => [],
    check: (signal) => call(5, signal, () => []),
    fingerprint: (recipe, signal) =>
      call(2, signal, () => {
        const image = imageOf(recipe);
        return image?.isHere === false ? null : fingerprintOf(recipe, image);
      }),
    ...(images && {
      imageId: (recipe: Recipe, signal: AbortSignal) =>
        call(2, signal, () => {
          const image = imageOf(recipe);
          return image?.isHere === true ? image.id : null;
        }),
      imageTrouble: (recipe: Recipe, signal: AbortSignal) =>
        call(5, signal, () => {
          const image = imageOf(recipe);
          if (image === null || image.isHere) return null;
          return image.trouble?.message ?? (recipe.pull === 'never' ? 'It is not on the Engine.' : null);
        }),
    }),
    prepare,
    async putFiles(agent, files, signal) {
      const entries = await Workspace.read(files);
      await call(10, signal, () => {
        const into = known(agent).files;
        for (const [path, entry] of entries) into.set(path, { ...entry, uid: into.uid } as Parameters<Workspace['set']>[1]);
      });
    },
    release: (agent, frame, signal) =>
      call(4, signal, () => {
        const sandbox = find(agent);
        if (sandbox === undefined) {
          engine.missed(frame);
          throw gateEnded('is gone');
        }
        if (!sandbox.isStarted) throw gateEnded('was never started');
        if (sandbox.exit !== null) throw gateEnded('has ended');
        sandbox.input(frame);
      }),
    getFiles: (agent, signal, only) => call(10, signal, (): Readable => known(agent).files.tar(only)),
    getFolder: (agent, folder, signal) => call(10, signal, () => known(agent).files.folderTar(folder)),
    signal: (agent, signal) => call(5, null, () => engine.signal(agent, signal, owner)),
    remove,
    list: (signal) => call(10, signal, () => Array.from(engine.of(owner).values(), seen)),
    events: (signal) => events(engine, owner, clock, signal),
    async *logs(agent, from, signal) {
      let position = from;
      let place: number | null = null;
      while (!signal.aborted) {
        if (!engine.isUp) {
          await once(signal, (fn) => engine.onReturn(fn));
          continue;
        }
        const sandbox = find(agent);
        if (sandbox === undefined) return;
        const { output } = sandbox;
        place ??= output.placeOf(position);
        if (place < output.end) {
          const fresh = output.since(place, position);
          place = output.end;
          position = fresh.reduce(advance, position);
          yield fresh;
        } else if (sandbox.exit !== null) return;
        else {
          await once(signal, (fn) => sandbox.onMove(fn));
          // What was printed is read a moment later: an exit may be heard of before the last lines.
          await wait(clock, reading, signal).catch(() => {});
        }
      }
    },
    hostAddress,
    sweep: (signal) => call(5, signal, () => engine.sweep(owner)),
    usage: (agent, signal) => call(5, signal, () => find(agent)?.bytes ?? null),
    disk: async () => ({ path: '/', free: 0.5 }),
  };
}

/** The way to the Engine: what goes wrong with calls goes wrong here. */
function createConnection(engine: SimEngine, clock: ProcessClock) {
  const away = (): OnejobError => new OnejobError('E_ENGINE_UNREACHABLE', 'The simulated Engine is away.', { retry: true });

  const wait = (on: Pick<Clock, 'after'>, ms: number, signal: AbortSignal | null): Promise<void> =>
    new Promise((resolve, reject) => {
      if (signal?.aborted === true) {
        reject(signal.reason);
        return;
      }
      const cancel = on.after(ms * (0.5 + engine.random()), () => {
        signal?.removeEventListener('abort', aborted);
        resolve();
      });
      const aborted = (): void => {
        cancel();
        reject(signal?.reason);
      };
      signal?.addEventListener('abort', aborted, { once: true });
    });

  /**
   * A call, which has its effect all at once: the only way in which a manager changes anything at the Engine. It reaches the Engine
   * also when its manager dies meanwhile, unless that Engine is slow to read it; the answer needs a manager that lives.
   */
  const call = async <T>(ms: number, signal: AbortSignal | null, effect: () => T): Promise<T> => {
    const { fails, answerLost, slow = 0, hung = 0 } = engine.faults;
    const { cuts } = engine;
    const fate = engine.random();
    const failsNow = fate < fails;
    const isLost = !failsNow && fate < fails + answerLost;
    const hangs = !failsNow && !isLost && fate < fails + answerLost + hung;
    const isSlow = !failsNow && !isLost && !hangs && fate < fails + answerLost + hung + slow;
    const takes = isSlow ? engine.random() * 30_000 : ms;
    await wait(engine.time, takes / 2, signal);
    if (clock.isDead) {
      try {
        if (engine.isUp && engine.cuts === cuts && !isSlow) effect();
      } catch {}
      return new Promise<never>(() => {});
    }
    if (!engine.isUp || failsNow) throw away();
    if (hangs && engine.random() < 0.5) {
      await wait(clock, patience, signal);
      throw away();
    }
    clock.point('runtime');
    const answer = effect();
    clock.point('runtime');
    await wait(clock, hangs ? patience : takes / 2, signal);
    if (isLost || hangs || !engine.isUp) throw away();
    return answer;
  };
  return { call, wait };
}

async function* events(
  engine: SimEngine,
  owner: string,
  clock: ProcessClock,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent, void> {
  const queue: RuntimeEvent[] = [];
  let wake = (): void => {};
  /** When the last event that was pushed arrives: they keep their order. */
  let last = 0;
  const listener = {
    owner,
    push(event: RuntimeEvent) {
      const { eventLate = 0 } = engine.faults;
      const late = eventLate > 0 && engine.random() < eventLate ? 30_000 : 5;
      last = Math.max(last + 0.001, clock.now() + 1 + engine.random() * late);
      clock.after(last - clock.now(), () => {
        queue.push(event);
        wake();
      });
    },
  };
  engine.listeners.add(listener);
  const forget = clock.onKill(() => engine.listeners.delete(listener));
  const abort = (): void => wake();
  signal.addEventListener('abort', abort, { once: true });
  if (engine.isUp) engine.connect(listener);
  try {
    while (!signal.aborted) {
      const event = queue.shift();
      if (event !== undefined) yield event;
      else
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
    }
  } finally {
    signal.removeEventListener('abort', abort);
    forget();
    engine.listeners.delete(listener);
  }
}

/** Resolves once what `on` waits for has happened, or `signal` aborts. */
function once(signal: AbortSignal, on: (fn: () => void) => () => void): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => {
      off();
      signal.removeEventListener('abort', done);
      resolve();
    };
    const off = on(done);
    signal.addEventListener('abort', done, { once: true });
    if (signal.aborted) done();
  });
}

function gateEnded(what: string): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Cannot release the agent: its sandbox ${what}.`, { retry: true });
}

function seen({ spec, exit, isStarted }: Sandbox): SandboxSeen {
  const { agent, pool, slot } = spec;
  if (exit !== null) return { agent, pool, slot, state: { kind: 'exited', exit } };
  return { agent, pool, slot, state: { kind: isStarted ? 'running' : 'created' } };
}

/** A short name that two different texts hardly ever share. */
function digest(text: string): string {
  let one = 0x811c9dc5;
  let other = 0x1000193;
  for (let at = 0; at < text.length; at++) {
    one = Math.imul(one ^ text.charCodeAt(at), 0x01000193);
    other = Math.imul(other + text.charCodeAt(at), 0x85ebca6b) ^ (other >>> 13);
  }
  return `${(one >>> 0).toString(16)}${(other >>> 0).toString(16)}`;
}
