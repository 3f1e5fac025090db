/** What the tests of a runtime work with: one member, set up before the first test and cleaned up after the last. */
import type { AgentId } from '../../../src/core/slot.ts';
import type { Recipe, Runtime, SandboxSpec } from '../../../src/ports/runtime.ts';
import { frame, MarkerFilter, readyMarker } from '../../../src/runtimes/gate.ts';
import { bytesOf, follow, specOf, watch } from './follow.ts';
import type { ContractJob, Step } from './job.ts';

export type ContractTest =
  | 'ready'
  | 'once'
  | 'frame'
  | 'twice'
  | 'codes'
  | 'killed-script'
  | 'term'
  | 'term-untrapped'
  | 'kill-tree'
  | 'files'
  | 'files-some'
  | 'files-after-exit'
  | 'folder'
  | 'list'
  | 'environment'
  | 'streams'
  | 'resume'
  | 'reopened'
  | 'resume-live'
  | 'slow-reader'
  | 'remove'
  | 'unknown'
  | 'stranger'
  | 'ended-gate'
  | 'manager-death'
  | 'adopt-standby'
  | 'fingerprint'
  | 'image-id'
  | 'aborted'
  | 'check'
  | 'door'
  | 'held'
  | 'held-input'
  | 'held-output'
  | 'held-terminal'
  | 'held-abort'
  | 'exec'
  | 'exec-ends'
  | 'usage'
  | 'leftovers';

/** One member, ready to be tried. */
export interface ContractSubject {
  readonly runtime: Runtime;
  /** A recipe that works here; its sandbox has `sh`, `cat`, `sleep`, `stat`, `id`, `head` and `setsid`. */
  readonly recipe: Recipe;
  /** A second runtime object over the same state, as a manager started after a crash makes it. */
  remake(): Promise<Runtime>;
  /** A runtime of another owner, beside this one's. */
  stranger(): Promise<Runtime>;
  /** Names of whatever of this owner is still in the world; called after everything was removed and swept. */
  leftovers(): Promise<readonly string[]>;
  cleanup(): Promise<void>;
  /** Standard error comes as standard output, in its order. */
  readonly joinsOutput?: true;
  /** Tests this member cannot pass, with the reason. */
  readonly exceptions: Readonly<Partial<Record<ContractTest, string>>>;
  /** The script of a job for a member that acts jobs out; left out, jobs are for a shell. */
  readonly script?: (steps: readonly Step[]) => string;
  /** Runs what waits for this member, on a member whose time does not pass by itself. */
  readonly drive?: <T>(work: () => Promise<T>) => Promise<T>;
}

/** One test of the contract. */
export interface ContractCase {
  readonly key: ContractTest;
  readonly title: string;
  readonly body: () => Promise<void>;
}

const never = () => new AbortController().signal;

export type Bench = ReturnType<typeof createBench>;

/** `open` comes before the first case, `close` after the last. */
export function createBench(make: () => Promise<ContractSubject>) {
  let subject: ContractSubject;
  let runtime: Runtime;
  let events: ReturnType<typeof watch>;
  const made: AgentId[] = [];
  const cases: ContractCase[] = [];
  const drive = <T>(work: () => Promise<T>): Promise<T> => (subject.drive === undefined ? work() : subject.drive(work));

  const open = async () => {
    subject = await make();
    runtime = subject.runtime;
    events = watch(runtime);
    await drive(() => events.connected());
  };
  const close = async () => {
    await drive(async () => {
      for (const agent of made) await runtime.remove(agent);
      await events.stop();
    });
    await subject.cleanup();
  };

  const it = (key: ContractTest, title: string, body: () => Promise<void>) => {
    cases.push({ key, title, body: () => drive(body) });
  };

  const prepare = async (changes: Partial<SandboxSpec> = {}) => {
    const spec = specOf(subject.recipe, changes);
    made.push(spec.agent);
    const from = await runtime.prepare(spec, () => {}, never());
    return { spec, agent: spec.agent, ...from };
  };
  const standby = async (changes: Partial<SandboxSpec> = {}) => {
    const sandbox = await prepare(changes);
    const log = follow(runtime, sandbox.agent);
    await log.until(`${readyMarker(sandbox.agent)}\n`);
    return { ...sandbox, log };
  };
  const scriptOf = ({ shell, steps }: ContractJob): string => {
    if (subject.script === undefined) return shell;
    if (steps === null) throw new Error(`only a shell can do this: ${shell}`);
    return subject.script(steps);
  };
  const release = async (agent: AgentId, what: ContractJob) => runtime.release(agent, frame(agent, scriptOf(what)), never());
  const run = async (what: ContractJob, changes: Partial<SandboxSpec> = {}) => {
    const sandbox = await standby(changes);
    await release(sandbox.agent, what);
    return { ...sandbox, exit: await events.exit(sandbox.agent) };
  };
  const jobOutput = async (sandbox: { agent: AgentId; log: ReturnType<typeof follow> }) => {
    await sandbox.log.ended;
    const filter = new MarkerFilter(sandbox.agent);
    const stdout = sandbox.log.chunks
      .filter((chunk) => chunk.stream === 'stdout')
      .map((chunk) => Buffer.from(filter.push(chunk.bytes)));
    return { stdout: Buffer.concat(stdout), stderr: bytesOf(sandbox.log.chunks, 'stderr') };
  };

  return {
    open,
    close,
    it,
    /** Those that `it` was told. */
    cases: cases as readonly ContractCase[],
    prepare,
    standby,
    scriptOf,
    release,
    run,
    jobOutput,
    /** Agents that may still have a sandbox. */
    made,
    get subject() {
      return subject;
    },
    get runtime() {
      return runtime;
    },
    get events() {
      return events;
    },
  };
}
