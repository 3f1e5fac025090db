/**
 * Runs a script in a sandbox like an agent's, and returns its output. A CI service may need to know what an image contains before
 * it registers an agent, or what an agent would find. Such a sandbox has no devices and no slot, and is removed afterwards.
 * Remembered answers come from sandboxes without mounts and network, so they depend only on the image.
 *
 * Where an engine places sandboxes, another one might wait for hours while the agent holds its grant, and then see another node. So
 * the agent's own has answered before its gate, and its log says it for as long as the agent waits.
 */
import { createShared, type Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { DiagnosticSandboxes } from '../../ports/ci-service.ts';
import { type Recipe, type Runtime, type SandboxSpec, start } from '../../ports/runtime.ts';
import { answerIn, answering, frame, MarkerFilter, readyMarker } from '../../runtimes/gate.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import { poolRecipe } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';

export interface ProbeQuestion {
  readonly runtime: Runtime;
  /** The spec of the agent that it is for, whose gate is ready. */
  readonly spec: SandboxSpec;
  /** What the agent's sandbox was made from. The answer of one applies to all of them. */
  readonly fingerprint: string;
  readonly script: string;
}

/** ms that an answer may take, from creating the sandbox to its last word. */
const longestWait = 120_000;
/** Maximum bytes of an answer. */
const longest = 256 * 1024;
/** Number of remembered answers. */
const remembered = 64;

export interface SandboxProbe {
  /** Whether this is one of our sandboxes, and answers right now. */
  isProbe(agent: AgentId): boolean;
  /**
   * The script's standard output, once per fingerprint and again after a failure. A caller that leaves spoils it for nobody else;
   * the last one waits until the sandbox is removed.
   * @throws OnejobError of the runtime, or E_GATE_ENDED if the script did not finish
   */
  ask(question: ProbeQuestion, signal: AbortSignal): Promise<string>;
  /**
   * As `ask`, but with the mounts and the network of an agent, which are what is inspected, and not remembered.
   * @throws OnejobError as `ask`
   */
  look(question: Omit<ProbeQuestion, 'fingerprint'>, signal: AbortSignal): Promise<string>;
}

/** `patience`: ms that one answer may take. */
export function createSandboxProbe(clock: Clock, newAgent: () => AgentId, patience = longestWait): SandboxProbe {
  const guests = new Set<AgentId>();
  const shared = createShared<string>({ waits: true });
  const answers = new Map<string, string>();

  async function ask({ runtime, spec, fingerprint, script }: ProbeQuestion, signal: AbortSignal): Promise<string> {
    const key = `${fingerprint}\n${script}`;
    const network = runtime.capabilities.images ? 'none' : spec.recipe.network;
    const { containers: _, ...recipe } = spec.recipe;
    const bare = { ...spec, recipe: { ...recipe, mounts: [], network } };
    const work = async (__: Progress, until: AbortSignal): Promise<string> => {
      const answer = await run(runtime, bare, script, until);
      answers.set(key, answer);
      for (const old of [...answers.keys()].slice(0, -remembered)) answers.delete(old);
      return answer;
    };
    signal.throwIfAborted();
    if (runtime.capabilities.grants === 'engine') return within(signal, (until) => saidAtGate(runtime, spec.agent, until));
    return answers.get(key) ?? (await shared(key, work, () => {}, signal));
  }

  async function run(runtime: Runtime, spec: SandboxSpec, script: string, outer: AbortSignal): Promise<string> {
    const agent = newAgent();
    guests.add(agent);
    try {
      return await within(outer, async (signal) => {
        await runtime.prepare({ ...spec, agent, devices: [] }, () => {}, signal);
        return await said(runtime, agent, script, signal);
      });
    } finally {
      // If it cannot be removed now, the next look at the runtime finds it as an orphan.
      await runtime.remove(agent).catch(() => {});
      guests.delete(agent);
    }
  }

  async function within(outer: AbortSignal, work: (signal: AbortSignal) => Promise<string>): Promise<string> {
    using limit = deadline(clock, patience, outer);
    try {
      return await work(limit.signal);
    } catch (error) {
      if (!limit.passed) throw error;
      throw unfinished(`took more than ${patience / 1000} s`);
    }
  }

  return {
    isProbe: (agent) => guests.has(agent),
    ask,
    look: ({ runtime, spec, script }, signal) => run(runtime, spec, script, signal),
  };
}

async function said(runtime: Runtime, agent: AgentId, script: string, signal: AbortSignal): Promise<string> {
  const filter = new MarkerFilter(agent);
  const words: Uint8Array[] = [];
  let length = 0;
  let isAsked = false;
  for await (const chunks of runtime.logs(agent, start, signal)) {
    for (const { stream, bytes } of chunks) {
      if (stream !== 'stdout') continue;
      const mine = filter.push(bytes);
      length += mine.length;
      if (length <= longest) words.push(mine);
    }
    if (filter.state !== 'ready' || isAsked) continue;
    isAsked = true;
    await runtime.release(agent, frame(agent, answering(agent, script)), signal);
  }
  return wholeAnswer(agent, Buffer.concat(words).toString('utf8'));
}

/** What an agent's own sandbox has answered (`SandboxSpec.look`). Its gate is ready, so its log has it. */
async function saidAtGate(runtime: Runtime, agent: AgentId, signal: AbortSignal): Promise<string> {
  let printed = Buffer.alloc(0);
  for await (const chunks of runtime.logs(agent, start, signal)) {
    for (const { stream, bytes } of chunks) if (stream === 'stdout') printed = Buffer.concat([printed, bytes]);
    const end = printed.indexOf(`${readyMarker(agent)}\n`);
    if (end !== -1) return wholeAnswer(agent, printed.subarray(0, end).toString('utf8'));
    if (printed.length > longest) break;
  }
  throw unfinished('did not finish');
}

function wholeAnswer(agent: AgentId, printed: string): string {
  const { text, code } = answerIn(agent, printed);
  if (code === '0') return text;
  throw unfinished(code === null ? 'did not finish' : `ended with exit code ${code}`);
}

function unfinished(how: string): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Cannot inspect the sandbox: the script for that ${how}.`, { retry: true });
}

interface DiagnosticParts {
  readonly reconciler: Pick<Reconciler, 'pools'>;
  /** Agents' names by slot. */
  readonly nameOf: (key: string) => string;
  readonly fingerprints: Pick<Fingerprints, 'madeFrom'>;
  readonly probe: Pick<SandboxProbe, 'look'>;
}

/** Sandboxes in which CI services check whether their agents could work. */
export function createDiagnosticSandboxes({ reconciler, nameOf, fingerprints, probe }: DiagnosticParts): DiagnosticSandboxes {
  return {
    like(name, change = (recipe) => recipe) {
      const pool = reconciler.pools.find(({ config }) => config.name === name);
      // An engine would give it a place in its queue, and devices, to be looked at.
      if (pool === undefined || pool.runtime.capabilities.grants === 'engine') return null;
      const { runtime } = pool;
      const slot = `${name}/1`;
      const agentName = nameOf(slot);
      const base = poolRecipe(pool, agentName);
      const image = base.image ?? (runtime.capabilities.images ? fingerprints.madeFrom(name) : null);
      const recipe = change({ ...base, image });
      const doors = new Set<number>();
      if (runtime.capabilities.images && recipe.image === null) return null;
      return {
        recipe,
        hasImage: runtime.capabilities.images,
        kind: JSON.stringify([runtime.name, recipe]),
        async ask(script, signal) {
          await mustBeThere(runtime, recipe, signal);
          // The image exists, and must not be updated for a look.
          const own: Recipe = { ...withoutCaches(recipe, runtime), pull: 'never' };
          const spec = { agent: '', pool: name, slot, name: agentName, recipe: own, devices: [], doors: [...doors] };
          return probe.look({ runtime, spec, script }, signal);
        },
        isRemote: runtime.capabilities.elsewhere === true,
        hostAddress: (port, signal) => {
          doors.add(port);
          return runtime.hostAddress(recipe.network, port, signal);
        },
      };
    },
  };
}

async function mustBeThere(runtime: Runtime, recipe: Recipe, signal: AbortSignal): Promise<void> {
  if ((await runtime.fingerprint(recipe, signal)) !== null) return;
  throw new OnejobError('E_IMAGE_NOT_FOUND', `Image "${recipe.image}" is not on this host yet.`, {
    hint: `It is pulled for the first agent; try again then, or type "docker pull ${recipe.image}" now.`,
  });
}

/** Caches belong to jobs, and one may use them now. With images an empty writable folder replaces each. */
function withoutCaches(recipe: Recipe, { capabilities }: Runtime): Recipe {
  const mounts = recipe.mounts.filter(({ cache }) => cache === null);
  if (!capabilities.images) return { ...recipe, mounts };
  const empty = recipe.mounts.flatMap(({ cache, container }) => (cache === null ? [] : [[container, 'exec,size=16m'] as const]));
  return { ...recipe, mounts, tmpfs: { ...recipe.tmpfs, ...Object.fromEntries(empty) } };
}
