/**
 * The networks `internet` and `none`. No agent is made on one of them unless its policy was seen just before, and pods have shown that
 * the cluster keeps it: a cluster without a network plugin for that takes policies, too, and ignores them.
 */
import { z } from 'zod';
import { createShared, type Progress } from '../../base/abortable.ts';
import { attempt, hasCode, OnejobError } from '../../base/errors.ts';
import type { Clock } from '../../core/clock.ts';
import { isNamed, type Listen, parseListen, parseNamed } from '../../http/address.ts';
import type { SandboxSpec } from '../../ports/runtime.ts';
import { ownAddress } from '../own-address.ts';
import type { KubeClient } from './client.ts';
import { type GuardedNetwork, guardedNetworks, type KubernetesConfig } from './config.ts';
import { ensureLease } from './lease.ts';
import { names } from './pods.ts';
import { guardedOf, policyName, policyOf, policySeen, withDoor } from './policy.ts';
import { proveKept } from './probe.ts';
import { removeProbes } from './probe-pod.ts';

/** ms for which a proof is good: network plugins are changed, and taken away. */
const goodFor = 24 * 60 * 60_000;
/** ms for which an agent with the same image is refused without another try. */
const refusedFor = 60_000;
/** ms that an agent stays at its gate, at least, until its policy is taken up. */
const settlesWithin = 1_000;

const listSchema = z.looseObject({ items: z.array(z.unknown()) });

interface NetworkParts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly owner: string;
  readonly config: Pick<KubernetesConfig, 'name' | 'address'>;
  /** Names of nodes that are avoided now. */
  readonly avoided: () => readonly string[];
}

/** What is known of a network. */
export interface Proof {
  readonly network: GuardedNetwork;
  /** Why it cannot be used; null: its policy is kept. */
  readonly failure: OnejobError | null;
}

interface Refused extends Proof {
  readonly failure: OnejobError;
  readonly at: number;
}

/** A policy that is kept. */
interface Kept {
  readonly version: string;
  /** Since when that is known. */
  readonly at: number;
  /** ms for which a new pod may be open. */
  readonly settles: number;
}

export class GuardedNetworks {
  readonly #parts: NetworkParts;
  readonly #kept = new Map<GuardedNetwork, Kept>();
  /** By network and image. */
  readonly #refused = new Map<string, Refused>();
  /** Of each network whose policy was looked at, and not removed since. */
  readonly #doors = new Map<GuardedNetwork, readonly Listen[]>();
  readonly #shared = createShared<number>({ waits: true });
  #turn: Promise<unknown> = Promise.resolve();
  #hasBegun = false;

  constructor(parts: NetworkParts) {
    this.#parts = parts;
  }

  /** What was tried and not forgotten, for people. */
  get proofs(): Proof[] {
    const kept = [...this.#kept.keys()].map((network) => ({ network, failure: null }));
    return [...kept, ...this.#refused.values()];
  }

  /**
   * Waits until an agent may be made on its network. Returns for how many ms it must then stay at its gate.
   * @throws OnejobError E_NETWORK_UNGUARDED
   */
  async admit(spec: SandboxSpec, progress: Progress, signal: AbortSignal): Promise<number> {
    const network = guardedOf(spec.recipe.network);
    if (network === null) return 0;
    const { clock, config } = this.#parts;
    const version = await this.#ensure(network, signal);
    const kept = this.#kept.get(network);
    if (kept?.version === version && clock.now() - kept.at < goodFor) return kept.settles;
    const key = `${network} ${spec.recipe.image}`;
    const refused = this.#refused.get(key);
    if (refused !== undefined && clock.now() - refused.at < refusedFor) throw refused.failure;
    const work = async (say: Progress, stop: AbortSignal): Promise<number> => {
      say(`tries whether the cluster keeps network ${network}`);
      try {
        const settles = await this.#prove(network, spec, say, stop);
        this.#kept.set(network, { version, at: clock.now(), settles });
        return settles;
      } catch (error) {
        if (hasCode(error, 'E_NETWORK_UNGUARDED')) this.#refused.set(key, { network, failure: error, at: clock.now() });
        throw error;
      }
    };
    return this.#shared(key, work, (line) => progress(`${config.name}: ${line}`), signal);
  }

  /** Returns for how many ms an agent must stay at its gate. */
  async #prove(network: GuardedNetwork, spec: SandboxSpec, progress: Progress, signal: AbortSignal): Promise<number> {
    const { client, clock, owner, avoided } = this.#parts;
    const lease = await ensureLease(client, owner, signal);
    this.#kept.delete(network);
    const open = await proveKept({ client, clock, owner, lease, network, spec, avoided: avoided() }, progress, signal);
    for (const [one, refused] of this.#refused) if (refused.network === network) this.#refused.delete(one);
    // A busy cluster takes longer.
    return settlesWithin + 2 * open;
  }

  /** As `Runtime.hostAddress`. */
  async hostAddress(network: string, port: number, signal: AbortSignal): Promise<string> {
    const { name, address } = this.#parts.config;
    if (network === 'none') {
      const message = 'Sandboxes on network "none" cannot reach services on this host: it has no way out.';
      throw new OnejobError('E_NO_DOOR', message, { hint: 'Write network: default or internet.' });
    }
    const own = ownAddress(name, address, 'pods');
    const door = parseListen(own) ?? parseNamed(own) ?? { host: own, port };
    // A policy cannot name a Service. One next to the Service allows the pods behind it, as in `deploy/kubernetes`.
    if (network === 'internet') await this.#ensure('internet', signal, isNamed(door.host) ? undefined : door);
    return own;
  }

  /** Restores policies that somebody removed while agents use them, and removes probes that a killed onejob left. Never fails. */
  async guard(signal: AbortSignal): Promise<void> {
    try {
      if (!this.#hasBegun && !this.#shared.isBusy()) {
        await removeProbes(this.#parts.client, this.#parts.owner, signal);
        // Its agents continue.
        for (const network of guardedNetworks) if (await this.#isUsed(network, signal)) await this.#ensure(network, signal);
        this.#hasBegun = true;
      }
      for (const network of this.#doors.keys()) await this.#ensure(network, signal);
    } catch {
      // The next agent is refused with the reason.
    }
  }

  /** Removes what no pod needs any more. */
  async sweep(signal: AbortSignal): Promise<void> {
    const { client, owner } = this.#parts;
    await removeProbes(client, owner, signal);
    for (const network of guardedNetworks) {
      if (await this.#isUsed(network, signal)) continue;
      this.#kept.delete(network);
      this.#doors.delete(network);
      const path = this.#path(network);
      // Who may not remove one has made none.
      await client.ask({ method: 'DELETE', path, doing: `remove the policy of network ${network}`, signal, nothing: [403, 404] });
    }
  }

  async #isUsed(network: GuardedNetwork, signal: AbortSignal): Promise<boolean> {
    const { client, owner } = this.#parts;
    const doing = `look for pods on network ${network}`;
    const labelSelector = `${names.owner}=${owner},${names.network}=${network},${names.agent}`;
    const answer = await client.ask({ path: client.path('pods'), query: { labelSelector, limit: 1 }, doing, signal });
    return client.formed(listSchema, answer, doing).items.length > 0;
  }

  /** Makes sure that its policy is there, with this door. Returns its version. */
  #ensure(network: GuardedNetwork, signal: AbortSignal, door?: Listen): Promise<string> {
    // One at a time: two would close each other's doors.
    const done = this.#turn.then(() => this.#written(network, signal, door));
    this.#turn = done.catch(() => {});
    return done;
  }

  async #written(network: GuardedNetwork, signal: AbortSignal, door?: Listen): Promise<string> {
    const { client, owner } = this.#parts;
    const path = this.#path(network);
    const answer = await client.ask({ path, doing: `look at the policy of network ${network}`, signal, nothing: [404] });
    const seen = answer === null ? null : attempt(() => policySeen(answer));
    const known = [...(this.#doors.get(network) ?? []), ...(seen?.doors ?? []), ...(door === undefined ? [] : [door])];
    const doors = known.reduce<readonly Listen[]>(withDoor, []);
    this.#doors.set(network, doors);
    const lease = await ensureLease(client, owner, signal);
    const body = policyOf({ network, owner, lease, doors });
    if (seen?.says(body) === true) return seen.version;
    const [method, to] = answer === null ? (['POST', client.path('networkpolicies')] as const) : (['PUT', path] as const);
    const doing = `write the policy of network ${network}`;
    const { version } = policySeen(await client.ask({ method, path: to, body, doing, signal }));
    const kept = this.#kept.get(network);
    // A door of ours does not change what was proved. What others changed, may.
    if (kept !== undefined && kept.version === seen?.version) this.#kept.set(network, { ...kept, version });
    return version;
  }

  #path(network: GuardedNetwork): string {
    return this.#parts.client.path('networkpolicies', policyName(this.#parts.owner, network));
  }
}
