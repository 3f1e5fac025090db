/**
 * A runtime whose sandboxes are values: gates, jobs, output and exits happen in virtual time. Sandboxes belong to the
 * simulated Engine (`SimEngine`) and outlive managers; a `SimRuntime` is one manager's connection to it and dies with it.
 *
 * A job is acted out from its command, `sim {"ms":2000,"exit":3}` (see `Act`).
 */
import type { Readable } from 'node:stream';
import { pack } from 'tar-stream';
import type { Clock } from '../../src/core/clock.ts';
import type { AgentId, Exit } from '../../src/core/slot.ts';
import { OnejobError } from '../../src/errors.ts';
import { MarkerFilter, readyMarker, releasedMarker } from '../../src/runtimes/gate.ts';
import type { LogChunk, LogPosition, Runtime, RuntimeEvent, SandboxSeen, SandboxSpec } from '../../src/runtimes/runtime.ts';
import type { ProcessClock, SimTime } from './time.ts';

/** What a job does. */
export interface Act {
  /** How long it takes, virtual ms. */
  readonly ms: number;
  readonly exit: number;
  /** What it prints at its begin and at its end. */
  readonly says?: string;
  /** ms from TERM to its end; null: it ignores TERM. Default 0. */
  readonly term?: number | null;
}

interface Sandbox {
  readonly spec: SandboxSpec;
  readonly fingerprint: string;
  readonly madeAt: number;
  job: string | null;
  readonly output: LogChunk[];
  exit: Exit | null;
  released: boolean;
  /** ms until it ends by TERM; null: never. */
  term: number | null;
  cancel: () => void;
  stage: Stage | null;
}

/** Where a program acts that is no job of the own queue. */
export interface Stage {
  readonly spec: SandboxSpec;
  print(text: string): void;
  /** It ends by itself; after its end nothing of this does anything. */
  end(code: number): void;
  /** What TERM does; null: it ends the program at once. */
  onTerm: (() => void) | null;
  /** Ends with it, however that comes. */
  readonly ended: AbortSignal;
}

/** Takes a script of its kind, and does nothing before it has answered; false: another's. */
export type Program = (script: string, stage: Stage) => boolean;

/** What goes wrong, as shares of calls from 0 to 1. */
export interface Faults {
  /** A call fails before it did anything. */
  fails: number;
  /** A call did what it should, and its answer is lost. */
  answerLost: number;
  /** An event is not reported; the event stream breaks instead. */
  eventLost: number;
}

export const noFaults: Faults = { fails: 0, answerLost: 0, eventLost: 0 };

/** Whoever listens to the Engine's events: one per manager that lives. */
interface Listener {
  push(event: RuntimeEvent): void;
}

/** Told of what happens to sandboxes, before it does. */
export interface EngineWatcher {
  made?(sandbox: Seen): void;
  released?(sandbox: Seen): void;
  signalled?(sandbox: Seen, signal: 'TERM' | 'KILL'): void;
  removed?(sandbox: Seen): void;
}

/** A sandbox as the world knows it. */
export interface Seen {
  readonly spec: SandboxSpec;
  readonly fingerprint: string;
  readonly madeAt: number;
  /** The job of the own queue that it has; null for none. */
  readonly job: string | null;
  readonly released: boolean;
  readonly exit: Exit | null;
}

export class SimEngine {
  readonly watchers = new Set<EngineWatcher>();
  /** What acts out scripts of other services than the own queue. */
  readonly programs = new Set<Program>();
  readonly #endings = new WeakMap<Sandbox, AbortController>();
  readonly sandboxes = new Map<AgentId, Sandbox>();
  /** False while nothing answers; sandboxes go on. */
  isUp = true;
  faults: Faults = noFaults;
  /** How often each job's script began. */
  readonly begun = new Map<string, number>();
  /** Jobs whose sandboxes the Engine itself has ended. */
  readonly lost = new Set<string>();
  /** How many sandboxes there were in all. */
  made = 0;
  outages = 0;
  readonly time: SimTime;
  readonly random: () => number;
  readonly listeners = new Set<Listener>();
  readonly #moved = new Set<() => void>();

  constructor(time: SimTime, random: () => number) {
    this.time = time;
    this.random = random;
  }

  /** Nothing answers for `ms`; what runs goes on. */
  outage(ms: number): void {
    if (!this.isUp) return;
    this.isUp = false;
    this.outages += 1;
    for (const listener of this.listeners) listener.push({ kind: 'lost', failure: 'the simulated Engine is away' });
    this.#tellMoved();
    this.time.after(ms, () => {
      this.isUp = true;
      for (const listener of this.listeners) listener.push({ kind: 'connected' });
      this.#tellMoved();
    });
  }

  make(spec: SandboxSpec, fingerprint: string): void {
    if (this.sandboxes.has(spec.agent)) return;
    const sandbox: Sandbox = {
      ...{ spec, fingerprint, madeAt: this.time.now, job: null, output: [] },
      ...{ exit: null, released: false, term: 0, cancel: () => {}, stage: null },
    };
    this.made += 1;
    this.sandboxes.set(spec.agent, sandbox);
    for (const watcher of this.watchers) watcher.made?.(sandbox);
    this.#print(sandbox, `${readyMarker(spec.agent)}\n`);
  }

  /** As the gate takes it: a second frame, and one for another agent, does nothing. */
  release(agent: AgentId, frame: Uint8Array): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined || sandbox.exit !== null || sandbox.released) return;
    const script = scriptOf(agent, frame);
    if (script === null) return;
    const [, job = '?'] = /ONEJOB_JOB_ID='([0-9a-f]+)'/.exec(script) ?? [];
    sandbox.job = job;
    for (const watcher of this.watchers) watcher.released?.(sandbox);
    sandbox.released = true;
    if (this.#perform(script, sandbox)) return;
    this.begun.set(job, (this.begun.get(job) ?? 0) + 1);
    const act = actOf(script);
    sandbox.term = act.term === undefined ? 0 : act.term;
    this.#print(sandbox, `${releasedMarker(agent)}\n${act.says ?? ''}`);
    sandbox.cancel = this.time.after(act.ms, () => {
      this.#print(sandbox, act.says ?? '');
      this.#end(sandbox, { kind: 'code', code: act.exit });
    });
  }

  #perform(script: string, sandbox: Sandbox): boolean {
    const ending = new AbortController();
    const stage: Stage = {
      spec: sandbox.spec,
      print: (text) => {
        if (!ending.signal.aborted) this.#print(sandbox, text);
      },
      end: (code) => this.#end(sandbox, { kind: 'code', code }),
      onTerm: null,
      ended: ending.signal,
    };
    for (const program of this.programs) {
      if (!program(script, stage)) continue;
      this.#endings.set(sandbox, ending);
      sandbox.stage = stage;
      this.#print(sandbox, `${releasedMarker(sandbox.spec.agent)}\n`);
      return true;
    }
    return false;
  }

  signal(agent: AgentId, signal: 'TERM' | 'KILL'): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined || sandbox.exit !== null) return;
    for (const watcher of this.watchers) watcher.signalled?.(sandbox, signal);
    if (signal === 'TERM' && sandbox.stage?.onTerm != null) {
      sandbox.stage.onTerm();
      return;
    }
    const wait = signal === 'KILL' ? 1 : sandbox.term;
    if (wait === null) return;
    this.time.after(wait, () => this.#end(sandbox, { kind: 'code', code: signal === 'KILL' ? 137 : 143 }));
  }

  remove(agent: AgentId): void {
    const sandbox = this.sandboxes.get(agent);
    if (sandbox === undefined) return;
    for (const watcher of this.watchers) watcher.removed?.(sandbox);
    sandbox.cancel();
    this.#endings.get(sandbox)?.abort();
    this.sandboxes.delete(agent);
    this.#tell({ kind: 'removed', agent });
    this.#tellMoved();
  }

  /** Resolves when some sandbox's output or state, or the Engine's, has moved on. */
  moved(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        this.#moved.delete(done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      this.#moved.add(done);
      signal.addEventListener('abort', done, { once: true });
      if (signal.aborted) done();
    });
  }

  #print(sandbox: Sandbox, text: string): void {
    if (text === '') return;
    sandbox.output.push({ stream: 'stdout', time: this.time.stamp, bytes: Buffer.from(text) });
    this.#tellMoved();
  }

  #end(sandbox: Sandbox, exit: Exit): void {
    if (sandbox.exit !== null) return;
    sandbox.cancel();
    this.#endings.get(sandbox)?.abort();
    sandbox.exit = exit;
    this.#tell({ kind: 'exited', agent: sandbox.spec.agent, exit });
    this.#tellMoved();
  }

  #tell(event: RuntimeEvent): void {
    if (!this.isUp) return;
    for (const listener of this.listeners) {
      if (this.random() < this.faults.eventLost) {
        listener.push({ kind: 'lost', failure: 'the simulated event stream broke' });
        this.time.after(500, () => {
          if (this.isUp) listener.push({ kind: 'connected' });
        });
      } else listener.push(event);
    }
  }

  #tellMoved(): void {
    for (const done of [...this.#moved]) done();
  }
}

/** One manager's view of the Engine. After its clock was killed none of its calls ever ends. */
export function simRuntime(engine: SimEngine, clock: ProcessClock, name = 'process'): Runtime {
  const away = (): OnejobError => new OnejobError('E_ENGINE_UNREACHABLE', 'The simulated Engine is away.', { retry: true });
  const lost = (agent: AgentId): OnejobError =>
    new OnejobError('E_SANDBOX_LOST', `Agent ${agent} has no sandbox.`, { retry: false });

  const wait = (on: Pick<Clock, 'after'>, ms: number, signal: AbortSignal | null): Promise<void> =>
    new Promise((resolve, reject) => {
      const cancel = on.after(ms * (0.5 + engine.random()), () => {
        signal?.removeEventListener('abort', aborted);
        resolve();
      });
      const aborted = (): void => {
        cancel();
        reject(signal?.reason);
      };
      signal?.addEventListener('abort', aborted, { once: true });
      if (signal?.aborted === true) aborted();
    });
  /** A call: it reaches the Engine also when its manager dies meanwhile; the answer needs a manager that lives. */
  const call = async <T>(ms: number, signal: AbortSignal | null, effect: () => T): Promise<T> => {
    await wait(engine.time, ms / 2, signal);
    if (!engine.isUp || engine.random() < engine.faults.fails) throw away();
    clock.point('runtime');
    const answer = effect();
    clock.point('runtime');
    await wait(clock, ms / 2, signal);
    if (engine.random() < engine.faults.answerLost) throw away();
    return answer;
  };
  const known = (agent: AgentId): Sandbox => {
    const sandbox = engine.sandboxes.get(agent);
    if (sandbox === undefined) throw lost(agent);
    return sandbox;
  };
  const fingerprintOf = (recipe: SandboxSpec['recipe']): string => JSON.stringify(recipe);

  return {
    name,
    capabilities: { weaker: null, images: false, holdsSecrets: true, workspace: () => '/workspace' },
    groupsOf: () => [],
    check: async () => [],
    fingerprint: (recipe, signal) => call(2, signal, () => fingerprintOf(recipe)),
    prepare: (spec, _, signal) =>
      call(300, signal, () => {
        const fingerprint = fingerprintOf(spec.recipe);
        engine.make(spec, fingerprint);
        return { fingerprint };
      }),
    async putFiles(agent, files, signal) {
      for await (const _ of files);
      await call(10, signal, () => known(agent));
    },
    release: (agent, frame, signal) =>
      call(4, signal, () => {
        if (known(agent).exit !== null)
          throw new OnejobError('E_GATE_ENDED', `The gate of agent ${agent} has ended.`, { retry: true });
        engine.release(agent, frame);
      }),
    getFiles: (agent, signal) => call(10, signal, () => emptyTar(known(agent))),
    getFolder: (agent, _, signal) => call(10, signal, () => nothingOf(known(agent))),
    signal: (agent, signal) => call(5, null, () => engine.signal(agent, signal)),
    remove: (agent) => call(50, null, () => engine.remove(agent)),
    list: (signal) => call(10, signal, () => [...engine.sandboxes.values()].map(seen)),
    async *events(signal) {
      const queue: RuntimeEvent[] = engine.isUp ? [{ kind: 'connected' }] : [];
      let wake = (): void => {};
      const listener = {
        push(event: RuntimeEvent) {
          clock.after(1 + engine.random() * 5, () => {
            queue.push(event);
            wake();
          });
        },
      };
      engine.listeners.add(listener);
      clock.onKill(() => engine.listeners.delete(listener));
      signal.addEventListener('abort', () => wake(), { once: true });
      try {
        while (!signal.aborted) {
          const event = queue.shift();
          if (event !== undefined) yield event;
          else await new Promise<void>((resolve) => (wake = resolve));
        }
      } finally {
        engine.listeners.delete(listener);
      }
    },
    async *logs(agent, from, signal) {
      let { time, atTime } = from;
      while (!signal.aborted) {
        const sandbox = engine.isUp ? engine.sandboxes.get(agent) : null;
        if (sandbox === undefined) return;
        const fresh = sandbox === null ? [] : after(sandbox.output, { time, atTime });
        if (fresh.length > 0) {
          for (const chunk of fresh) {
            atTime = chunk.time === time ? atTime + 1 : 1;
            time = chunk.time;
          }
          yield fresh;
        } else if (sandbox?.exit != null) return;
        else {
          await engine.moved(signal);
          // What was printed is read a moment later: an exit may be heard of before the last lines.
          await wait(clock, 20, signal).catch(() => {});
        }
      }
    },
    door: async () => '127.0.0.1',
    sweep: (signal) => call(5, signal, () => {}),
    disk: async () => ({ path: '/', free: 0.5 }),
  };
}

function after(output: readonly LogChunk[], { time, atTime }: Pick<LogPosition, 'time' | 'atTime'>): LogChunk[] {
  let known = atTime;
  return output.filter((chunk) => chunk.time > time || (chunk.time === time && known-- <= 0));
}

function seen({ spec, exit }: Sandbox): SandboxSeen {
  const { agent, pool, slot } = spec;
  return { agent, pool, slot, state: exit === null ? { kind: 'running' } : { kind: 'exited', exit } };
}

/** The script in a frame for this agent, as the gate's shell would read it; null for anything else. */
function scriptOf(agent: AgentId, frame: Uint8Array): string | null {
  const [, length, escaped] =
    new RegExp(`^\\n?${agent} (\\d+) (.*) ${agent}\\n$`, 's').exec(Buffer.from(frame).toString('latin1')) ?? [];
  if (escaped === undefined || escaped.length !== Number(length)) return null;
  const bytes = escaped.replace(/\\0([0-7]{3})|\\n/g, (_, octal?: string) =>
    octal === undefined ? '\n' : String.fromCharCode(Number.parseInt(octal, 8)),
  );
  return Buffer.from(bytes, 'latin1').toString('utf8');
}

function actOf(script: string): Act {
  const [, json = '{"ms":0,"exit":127}'] = /^exec 'sim' '(\{.*\})'$/m.exec(script) ?? [];
  return JSON.parse(json) as Act;
}

function nothingOf(_: Sandbox): null {
  return null;
}

function emptyTar(_: Sandbox): Readable {
  const tar = pack();
  tar.finalize();
  return tar as unknown as Readable;
}

/** What of a sandbox's output is the job's. */
export function jobOutput(agent: AgentId, chunks: readonly LogChunk[]): string {
  const filter = new MarkerFilter(agent);
  return Buffer.concat(chunks.map(({ bytes }) => Buffer.from(filter.push(bytes)))).toString();
}
