/** What the tests of a runtime work with: one member, set up before the first test and cleaned up after the last. */
import type { TestContext } from 'vitest';
import { afterAll, beforeAll, test } from 'vitest';
import type { AgentId } from '../../core/slot.ts';
import { frame, MarkerFilter, readyMarker } from '../gate.ts';
import type { Recipe, Runtime, SandboxSpec } from '../runtime.ts';
import { bytesOf, follow, specOf, watch } from './follow.ts';

export type ContractTest =
  | 'ready'
  | 'once'
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
  | 'resume-live'
  | 'slow-reader'
  | 'remove'
  | 'unknown'
  | 'ended-gate'
  | 'manager-death'
  | 'adopt-standby'
  | 'fingerprint'
  | 'aborted'
  | 'check'
  | 'door'
  | 'usage'
  | 'leftovers';

/** One member, ready to be tried. */
export interface ContractSubject {
  readonly runtime: Runtime;
  /** A recipe that works here; its sandbox has `sh`, `cat`, `sleep`, `stat`, `id`, `head` and `setsid`. */
  readonly recipe: Recipe;
  /** A second runtime object over the same state, as a manager started after a crash makes it. */
  remake(): Promise<Runtime>;
  /** Names of whatever of this owner is still in the world; called after everything was removed and swept. */
  leftovers(): Promise<readonly string[]>;
  cleanup(): Promise<void>;
  /** Tests this member cannot pass, with the reason. */
  readonly exceptions: Readonly<Partial<Record<ContractTest, string>>>;
}

const never = () => new AbortController().signal;

export type Bench = ReturnType<typeof createBench>;

/** Inside `describe`. */
export function createBench(make: () => Promise<ContractSubject>) {
  let subject: ContractSubject;
  let runtime: Runtime;
  let events: ReturnType<typeof watch>;
  const made: AgentId[] = [];

  beforeAll(async () => {
    subject = await make();
    runtime = subject.runtime;
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const agent of made) await runtime.remove(agent);
    await events.stop();
    await subject.cleanup();
  });

  const it = (key: ContractTest, title: string, body: (context: TestContext) => Promise<void>) =>
    test(`${key}: ${title}`, async (context) => {
      const reason = subject.exceptions[key];
      if (reason !== undefined) context.skip(reason);
      await body(context);
    });

  const prepare = async (changes: Partial<SandboxSpec> = {}) => {
    const spec = specOf(subject.recipe, changes);
    made.push(spec.agent);
    const { fingerprint } = await runtime.prepare(spec, () => {}, never());
    return { spec, agent: spec.agent, fingerprint };
  };
  const standby = async (changes: Partial<SandboxSpec> = {}) => {
    const sandbox = await prepare(changes);
    const log = follow(runtime, sandbox.agent);
    await log.until(`${readyMarker(sandbox.agent)}\n`);
    return { ...sandbox, log };
  };
  const release = (agent: AgentId, script: string) => runtime.release(agent, frame(agent, script), never());
  const run = async (script: string, changes: Partial<SandboxSpec> = {}) => {
    const sandbox = await standby(changes);
    await release(sandbox.agent, script);
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
    it,
    prepare,
    standby,
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
