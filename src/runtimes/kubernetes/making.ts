/** Makes the pod of an agent, and waits until it is at its gate: for room, a node, its image, its programs and its GPUs. */
import { messageOf } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { SandboxSpec } from '../../ports/runtime.ts';
import { type AvoidedNodes, avoidedText } from '../avoided.ts';
import type { programFiles } from '../programs.ts';
import { createPod, stuckIn, unstarted } from './begin.ts';
import type { KubeClient } from './client.ts';
import type { PodFiles } from './files.ts';
import type { ensureLease } from './lease.ts';
import { firstWords, lastWords } from './logs.ts';
import { podOfSpec, wantsOf } from './manifest.ts';
import { gateEnded, isOver, type Pod, waitText } from './pods.ts';
import { exitUnfit, unfitIn } from './script.ts';
import type { PodWatch } from './watch.ts';

/** ms between two looks at what nobody reports. */
const lookAgain = 2_000;
/** ms between two looks at an agent that is about to reach its gate. */
const lookSoon = 200;

interface Parts {
  readonly name: string;
  readonly owner: string;
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly watch: PodWatch;
  readonly files: PodFiles;
  readonly avoided: AvoidedNodes;
  /** What the pod goes with. */
  readonly lease: (signal: AbortSignal) => ReturnType<typeof ensureLease>;
}

interface Making {
  readonly agent: AgentId;
  readonly progress: (line: string) => void;
  readonly signal: AbortSignal;
}

export class PodMaker {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Waits while the cluster has no room for one more pod of this namespace. */
  async create(spec: SandboxSpec, fingerprint: string, { agent, progress, signal }: Making): Promise<void> {
    const { name, owner, client, clock, avoided } = this.#parts;
    const lease = await this.#parts.lease(signal);
    const body = podOfSpec(spec, { owner, fingerprint, lease, avoided: avoided.now.map(({ node }) => node) });
    const waits = (why: string): void => progress(`${name}: waits for room: ${why}`);
    await createPod({ client, clock, body, doing: `create agent ${agent}`, waits }, signal);
  }

  /** Waits until its gate is ready, or about to be. @throws OnejobError if it will not be */
  async finish({ recipe }: SandboxSpec, programs: Awaited<ReturnType<typeof programFiles>>, making: Making): Promise<void> {
    const { agent, signal } = making;
    await this.#begun(making);
    for (const { file, container } of programs) await this.#parts.files.bring(agent, file, container, signal);
    if (wantsOf(recipe).gpus > 0) await this.#fit(making);
  }

  async #begun({ agent, progress, signal }: Making): Promise<void> {
    const { name, watch, avoided } = this.#parts;
    for (;;) {
      using changed = watch.changeOf(agent);
      // The API may be away for a while.
      const pod = await watch.find(agent, signal).catch((error: unknown) => {
        signal.throwIfAborted();
        progress(messageOf(error));
      });
      if (pod === null) throw gateEnded(agent, 'somebody deleted its pod');
      if (pod === undefined) {
        await changed.next(signal, lookAgain);
        signal.throwIfAborted();
        continue;
      }
      if (isOver(pod)) return await this.#early(agent, pod, signal);
      if (pod.isRunning) return;
      const isStuck = stuckIn(pod, `agent ${agent}`);
      if (isStuck !== null) throw isStuck;
      const more = avoided.now.length === 0 ? '' : `; ${avoidedText(avoided.now)}`;
      progress(`${name}: ${waitText(pod)}${more}`);
      await changed.next(signal);
      signal.throwIfAborted();
    }
  }

  /** Waits until its GPUs were looked at: a container that runs is not yet at its gate. @throws OnejobError if they are not fit */
  async #fit({ agent, progress, signal }: Making): Promise<void> {
    const { client, watch } = this.#parts;
    for (;;) {
      using changed = watch.changeOf(agent);
      const pod = (await watch.sure(progress, signal)).get(agent);
      if (pod === undefined) throw gateEnded(agent, 'somebody deleted its pod');
      if (isOver(pod)) return await this.#early(agent, pod, signal);
      // It says nothing before that. A node that does not answer now may do so later.
      const said = await firstWords({ client, agent }, signal).catch(() => null);
      if (said !== null && said !== '' && unfitIn(agent, said) === null) return;
      await changed.next(signal, lookSoon);
    }
  }

  /** A pod that is over before anybody saw it run. One that had a job is not a failure to make it. */
  async #early(agent: AgentId, pod: Pod, signal: AbortSignal): Promise<void> {
    const { client, avoided } = this.#parts;
    const { terminated, node, ended } = pod;
    const notStarted = unstarted(pod, `agent ${agent}`);
    if (notStarted !== null) throw notStarted;
    if (terminated?.code === exitUnfit) {
      const said = await lastWords({ client, agent }, signal);
      if (said === null) throw gateEnded(agent, `it ended on node ${node}, which does not tell why`);
      const why = unfitIn(agent, said);
      if (why !== null) {
        avoided.add({ node, why });
        throw gateEnded(agent, `node ${node} is not fit for it: ${why}`);
      }
    }
    if (terminated === null) throw gateEnded(agent, ended ?? 'it ended before it began');
  }
}
