/**
 * What a script says in a sandbox like an agent's: a CI service may have to know what an image holds before it makes an agent of
 * it known, or what an agent would find there. Such a sandbox has no devices and no slot, and is gone when it has answered. What it
 * is asked once for all has no mounts and no network either, so that the answer is the image's.
 */

import { abortable } from '../../abortable.ts';
import type { DiagnosticSandboxes } from '../../ci/diagnostic-sandbox.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { OnejobError } from '../../errors.ts';
import { frame, MarkerFilter } from '../../runtimes/gate.ts';
import type { Recipe, Runtime, SandboxSpec } from '../../runtimes/runtime.ts';
import type { Fingerprints } from '../images/fingerprints.ts';
import { poolRecipe } from '../loop/pool.ts';
import type { Reconciler } from '../loop/reconciler.ts';

export interface Question {
  readonly runtime: Runtime;
  /** As of the agent that it is asked for. */
  readonly spec: SandboxSpec;
  /** What the agent's sandbox was made from: what is said in one holds for all of them. */
  readonly fingerprint: string;
  readonly script: string;
}

/** How long an answer may take, from making the sandbox to its last word, in ms. */
const longestWait = 120_000;
/** Longest answer that is read, in bytes. */
const longest = 256 * 1024;
/** How many answers are remembered. */
const remembered = 64;

interface Held {
  readonly abort: AbortController;
  readonly answer: Promise<string>;
  /** Who waits for it. */
  waiting: number;
  isSaid: boolean;
}

export type SandboxProbe = ReturnType<typeof createSandboxProbe>;

/** `patience`: how long one answer may take, ms. */
export function createSandboxProbe(clock: Clock, newAgent: () => AgentId, patience = longestWait) {
  const guests = new Set<AgentId>();
  const answers = new Map<string, Held>();

  /** Whether this is a sandbox of ours that is answering right now. */
  function isProbe(agent: AgentId): boolean {
    return guests.has(agent);
  }

  /**
   * The script's standard output; once for each fingerprint, and again after it failed. Who no longer wants it spoils it for nobody
   * else; after the last one the sandbox is removed before this ends.
   * @throws OnejobError of the runtime, or E_GATE_ENDED when the script did not finish
   */
  async function ask(question: Question, signal: AbortSignal): Promise<string> {
    signal.throwIfAborted();
    const held = begin(question);
    held.waiting += 1;
    try {
      return await abortable(held.answer, signal);
    } finally {
      held.waiting -= 1;
      if (held.waiting === 0 && !held.isSaid) {
        held.abort.abort();
        await held.answer.catch(() => {});
      }
    }
  }

  function begin({ runtime, spec, fingerprint, script }: Question): Held {
    const key = `${fingerprint}\n${script}`;
    const known = answers.get(key);
    if (known !== undefined && !known.abort.signal.aborted) return known;
    const abort = new AbortController();
    const network = runtime.capabilities.images ? 'none' : spec.recipe.network;
    const bare = { ...spec, recipe: { ...spec.recipe, mounts: [], network } };
    const held: Held = { abort, answer: run(runtime, bare, script, abort.signal), waiting: 0, isSaid: false };
    answers.set(key, held);
    held.answer.then(
      () => {
        held.isSaid = true;
      },
      () => {
        if (answers.get(key) === held) answers.delete(key);
      },
    );
    for (const old of [...answers.keys()].slice(0, -remembered)) answers.delete(old);
    return held;
  }

  async function run(runtime: Runtime, spec: SandboxSpec, script: string, outer: AbortSignal): Promise<string> {
    const agent = newAgent();
    using limit = deadline(clock, patience, outer);
    const { signal } = limit;
    guests.add(agent);
    try {
      await runtime.prepare({ ...spec, agent, devices: [] }, () => {}, signal);
      return await said(runtime, agent, script, signal);
    } catch (error) {
      if (!limit.passed) throw error;
      throw unfinished(`took more than ${patience / 1000} s`);
    } finally {
      // What cannot be removed now is an orphan to the next look at the runtime.
      await runtime.remove(agent).catch(() => {});
      guests.delete(agent);
    }
  }

  return {
    isProbe,
    ask,
    /**
     * As `ask`, but with the mounts and the network of an agent, and not remembered: they are what is looked at.
     * @throws OnejobError as `ask`
     */
    look: ({ runtime, spec, script }: Omit<Question, 'fingerprint'>, signal: AbortSignal): Promise<string> =>
      run(runtime, spec, script, signal),
  };
}

async function said(runtime: Runtime, agent: AgentId, script: string, signal: AbortSignal): Promise<string> {
  const filter = new MarkerFilter(agent);
  const whole = `(\n${script}\n)\n_oj_c=$?; printf '\\n%s %s' ${agent} "$_oj_c"`;
  const words: Uint8Array[] = [];
  let length = 0;
  let isAsked = false;
  for await (const chunks of runtime.logs(agent, { time: 0n, atTime: 0, stdout: 0, stderr: 0 }, signal)) {
    for (const { stream, bytes } of chunks) {
      if (stream !== 'stdout') continue;
      const mine = filter.push(bytes);
      length += mine.length;
      if (length <= longest) words.push(mine);
    }
    if (filter.state !== 'ready' || isAsked) continue;
    isAsked = true;
    await runtime.release(agent, frame(agent, whole), signal);
  }
  const text = Buffer.concat(words).toString('utf8');
  const end = text.lastIndexOf(`\n${agent} `);
  const code = end === -1 ? null : text.slice(end + agent.length + 2).trim();
  if (code === '0') return text.slice(0, end);
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

/** Sandboxes for CI services that look from within whether their agents could work; see `Trial`. */
export function createDiagnosticSandboxes({ reconciler, nameOf, fingerprints, probe }: DiagnosticParts): DiagnosticSandboxes {
  return {
    like(name, change = (recipe) => recipe) {
      const pool = reconciler.pools.find(({ config }) => config.name === name);
      if (pool === undefined) return null;
      const { runtime } = pool;
      const slot = `${name}/1`;
      const agentName = nameOf(slot);
      const base = poolRecipe(pool, agentName);
      const image = base.image ?? (runtime.capabilities.images ? fingerprints.madeFrom(name) : null);
      const recipe = change({ ...base, image });
      if (runtime.capabilities.images && recipe.image === null) return null;
      return {
        recipe,
        hasImage: runtime.capabilities.images,
        kind: JSON.stringify([runtime.name, recipe]),
        async ask(script, signal) {
          await mustBeThere(runtime, recipe, signal);
          // It is there: a look fetches nothing newer.
          const own: Recipe = { ...withoutCaches(recipe, runtime), pull: 'never' };
          const spec = { agent: '', pool: name, slot, name: agentName, recipe: own, devices: [] };
          return probe.look({ runtime, spec, script }, signal);
        },
        door: (port, signal) => runtime.door(recipe.network, port, signal),
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

/** They are the jobs' own, and one may be at them right now. Where an image is, something empty that can be written to takes their place. */
function withoutCaches(recipe: Recipe, { capabilities }: Runtime): Recipe {
  const mounts = recipe.mounts.filter(({ cache }) => cache === null);
  if (!capabilities.images) return { ...recipe, mounts };
  const empty = recipe.mounts.flatMap(({ cache, container }) => (cache === null ? [] : [[container, 'exec,size=16m'] as const]));
  return { ...recipe, mounts, tmpfs: { ...recipe.tmpfs, ...Object.fromEntries(empty) } };
}
