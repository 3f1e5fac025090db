/** One simulated sandbox: a gate, what it prints, its files, and the script that it runs once. */
import type { AgentId, Exit } from '../../../src/core/slot.ts';
import type { SandboxSpec } from '../../../src/ports/runtime.ts';
import { exitNoDevice, readyMarker, releasedMarker } from '../../../src/runtimes/gate.ts';
import type { SimTime } from '../time.ts';
import { Output } from './output.ts';
import { Workspace } from './workspace.ts';

/** Where every sandbox has its workspace. */
export const workspacePath = '/workspace';

/** A sandbox as what runs in it sees it. All that it waits for is called off when it ends. */
export interface Inside {
  readonly agent: AgentId;
  readonly spec: SandboxSpec;
  readonly script: string;
  readonly files: Workspace;
  readonly workspace: string;
  readonly isOver: boolean;
  print(bytes: Uint8Array | string, stream?: 'stdout' | 'stderr'): void;
  after(ms: number, fn: () => void): () => void;
  /** What it does when TERM comes, instead of ending by it. */
  onTerm(fn: () => void): void;
  /** Called however it ends, also by KILL. */
  onEnd(fn: () => void): void;
  end(exit: Exit): void;
  endBy(signal: 'TERM' | 'KILL'): void;
}

/** Where a program acts that is not a job of the own queue. */
export interface Stage {
  readonly spec: SandboxSpec;
  readonly files: Workspace;
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

/** Whether one of the programs takes what runs inside. */
export function perform(programs: Iterable<Program>, inside: Inside): boolean {
  const ending = new AbortController();
  const stage: Stage = {
    spec: inside.spec,
    get files() {
      return inside.files;
    },
    print: (text) => inside.print(text),
    end: (code) => inside.end({ kind: 'code', code }),
    onTerm: null,
    ended: ending.signal,
  };
  for (const program of programs) {
    if (!program(inside.script, stage)) continue;
    inside.onEnd(() => ending.abort());
    inside.onTerm(() => {
      if (stage.onTerm !== null) stage.onTerm();
      else inside.after(0, () => inside.endBy('TERM'));
    });
    return true;
  }
  return false;
}

/** What a sandbox needs of its Engine. */
export interface Surroundings {
  readonly time: SimTime;
  readonly random: () => number;
  /** Bytes of output that are kept. */
  readonly keeps: number;
  /** How an end by a signal is told: as an exit code above 128, or as the signal. */
  readonly endsBy: 'code' | 'signal';
  run(inside: Inside): void;
  /** It has ended. */
  ended(sandbox: Sandbox, exit: Exit): void;
  /** A script begins. */
  begins(sandbox: Sandbox): void;
}

export class Sandbox {
  readonly spec: SandboxSpec;
  readonly owner: string;
  readonly fingerprint: string;
  readonly madeAt: number;
  output: Output;
  /** UUIDs of the devices that it really has. */
  readonly granted: readonly string[];
  /** The only CPUs that it runs on, as it was made; null for all. */
  readonly cpuset: string | null;
  readonly uid: number;
  /** The job of the own queue that it has; null for none. */
  job: string | null = null;
  isStarted = false;
  released = false;
  exit: Exit | null = null;
  /** Its devices cannot be opened any more, as after a reload of the host's service manager. */
  hasLostDevices = false;
  /** Called once when something was printed, or it ended, or is gone. */
  readonly #waiting = new Set<() => void>();
  readonly #around: Surroundings;
  readonly #timers = new Set<() => void>();
  #files: Workspace | null = null;
  #input = '';
  #term: (() => void) | null = null;
  readonly #ends: (() => void)[] = [];

  constructor(
    around: Surroundings,
    made: { readonly spec: SandboxSpec; readonly owner: string; readonly fingerprint: string; readonly granted: readonly string[] },
  ) {
    const { spec, owner, fingerprint, granted } = made;
    this.#around = around;
    this.spec = spec;
    this.owner = owner;
    this.fingerprint = fingerprint;
    this.granted = granted;
    this.cpuset = spec.cpuset ?? null;
    this.madeAt = around.time.now;
    this.output = new Output(around.keeps);
    this.uid = spec.recipe.user === null ? 0 : 1000;
  }

  get files(): Workspace {
    this.#files ??= new Workspace(this.uid);
    return this.#files;
  }

  /** Bytes on disk. */
  get bytes(): number {
    return this.#files?.bytes ?? 0;
  }

  /** Its gate begins: it is ready, or ends at once with `code`. */
  start(code: number | null = null): void {
    if (this.isStarted) return;
    this.isStarted = true;
    if (code === null) this.print(`${readyMarker(this.spec.agent)}\n`);
    else this.end({ kind: 'code', code });
  }

  /**
   * Bytes for its standard input, as the gate's shell reads them: line by line, and only a whole frame for this agent is one. What
   * comes after the first is read by nobody.
   */
  input(bytes: Uint8Array): void {
    if (!this.isStarted || this.released || this.exit !== null) return;
    this.#input += Buffer.from(bytes).toString('latin1');
    const lines = this.#input.split('\n');
    this.#input = lines.pop() ?? '';
    for (const line of lines) {
      const script = scriptIn(this.spec.agent, line);
      if (script !== null) {
        this.#run(script);
        return;
      }
    }
  }

  #run(script: string): void {
    if (this.hasLostDevices && this.granted.length > 0) {
      this.end({ kind: 'code', code: exitNoDevice });
      return;
    }
    this.job = jobIn(script);
    this.#around.begins(this);
    this.released = true;
    this.#input = '';
    this.print(`${releasedMarker(this.spec.agent)}\n`);
    this.#around.run(this.#inside(script));
  }

  #inside(script: string): Inside {
    const sandbox = this;
    return {
      agent: this.spec.agent,
      spec: this.spec,
      script,
      workspace: workspacePath,
      get files() {
        return sandbox.files;
      },
      get isOver() {
        return sandbox.exit !== null;
      },
      print: (bytes, stream) => this.print(bytes, stream),
      after: (ms, fn) => this.#after(ms, fn),
      onTerm: (fn) => {
        this.#term = fn;
      },
      onEnd: (fn) => {
        this.#ends.push(fn);
      },
      end: (exit) => this.end(exit),
      endBy: (signal) => this.endBy(signal),
    };
  }

  print(text: Uint8Array | string, stream: 'stdout' | 'stderr' = 'stdout'): void {
    const bytes = typeof text === 'string' ? Buffer.from(text) : text;
    if (bytes.length === 0 || this.exit !== null) return;
    const { random, time } = this.#around;
    // Readers see what was printed at once in pieces that end anywhere.
    const cut = random() < 0.25 ? Math.floor(random() * bytes.length) : 0;
    this.output.print(stream, time.stamp, bytes, cut);
    this.#tell();
  }

  signal(signal: 'TERM' | 'KILL'): void {
    if (!this.isStarted || this.exit !== null) return;
    if (signal === 'KILL') this.#after(1, () => this.endBy('KILL'));
    else if (this.#term !== null) this.#term();
    else this.#after(0, () => this.endBy('TERM'));
  }

  endBy(signal: 'TERM' | 'KILL'): void {
    const isCode = this.#around.endsBy === 'code';
    this.end(isCode ? { kind: 'code', code: signal === 'KILL' ? 137 : 143 } : { kind: 'signal', signal: `SIG${signal}` });
  }

  end(exit: Exit): void {
    if (this.exit !== null) return;
    this.exit = exit;
    for (const cancel of this.#timers) cancel();
    this.#timers.clear();
    for (const fn of this.#ends) fn();
    this.#around.ended(this, exit);
    this.#tell();
  }

  /** However it ended before, that was not written down. */
  cutPower(exit: Exit, losesOutput: boolean): void {
    if (losesOutput) this.output = new Output(this.#around.keeps);
    if (!this.isStarted) return;
    if (this.exit === null) this.end(exit);
    else this.exit = exit;
  }

  /** It is not there any more. */
  gone(): void {
    this.#tell();
  }

  /** Calls `fn` once, when it has moved on; the returned function calls that off. */
  onMove(fn: () => void): () => void {
    this.#waiting.add(fn);
    return () => this.#waiting.delete(fn);
  }

  #tell(): void {
    if (this.#waiting.size === 0) return;
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const fn of waiting) fn();
  }

  #after(ms: number, fn: () => void): () => void {
    const cancel = this.#around.time.after(ms, () => {
      this.#timers.delete(cancel);
      fn();
    });
    this.#timers.add(cancel);
    return () => {
      this.#timers.delete(cancel);
      cancel();
    };
  }
}

/** The job of the own queue in a script, also where a frame has it; null for none. */
export function jobIn(script: string): string | null {
  return /ONEJOB_JOB_ID='([0-9a-f]+)'/.exec(script)?.[1] ?? null;
}

/** The script in a line for this agent, as the gate's shell would read it; null for anything else. */
function scriptIn(agent: AgentId, line: string): string | null {
  if (!line.startsWith(`${agent} `) || !line.endsWith(` ${agent}`) || line.length < 2 * agent.length + 3) return null;
  const space = line.indexOf(' ', agent.length + 1);
  const escaped = line.slice(space + 1, -agent.length - 1);
  if (space === -1 || line.slice(agent.length + 1, space) !== String(escaped.length)) return null;
  const bytes = escaped.replace(/\\0([0-7]{3})|\\n/g, (_, octal?: string) =>
    octal === undefined ? '\n' : String.fromCharCode(Number.parseInt(octal, 8)),
  );
  return Buffer.from(bytes, 'latin1').toString('utf8');
}
