/**
 * Tries whether a cluster keeps the policy of a network. Three pods of the pool's image run on one node: two that no policy of onejob
 * selects, and then one on that network. The two must reach each other, before and after, and neither may reach the guarded one, nor it
 * them. Some network plugins leave a new pod open for a moment: how long is measured, too.
 *
 * The pods carry no label of an agent, hold no GPU, and end by themselves after a while.
 */
import { randomBytes } from 'node:crypto';
import { isIPv6 } from 'node:net';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import { createPod, stuckIn, unstarted } from './begin.ts';
import type { KubeClient } from './client.ts';
import type { GuardedNetwork } from './config.ts';
import { isOver, names, waitText } from './pods.ts';
import { policyName } from './policy.ts';
import { type Probe, type ProbeOf, probePod, probesOf, removeProbe } from './probe-pod.ts';
import { probePort, probeScript, toolless } from './probe-script.ts';
import { runAlongside } from './stream.ts';

/** ms in which pods without a policy must reach each other. */
const reachesWithin = 30_000;
/** ms in which a network plugin must have taken a policy up. */
const keepsWithin = 20_000;
/** ms between two looks. */
const lookAgain = 500;
/** Tries in a row that must fail. */
const failsInRow = 2;
/** ms that cleaning up may take. */
const cleanLimit = 30_000;

export interface ProbeParts extends ProbeOf {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly network: GuardedNetwork;
}

interface Seen {
  readonly id: string;
  readonly ip: string;
  readonly node: string;
}

/**
 * For how many ms a new pod was open before the policy was kept.
 * @throws OnejobError E_NETWORK_UNGUARDED if it is not kept; others if that cannot be known now
 */
export async function proveKept(parts: ProbeParts, progress: Progress, signal: AbortSignal): Promise<number> {
  const { client, clock, network } = parts;
  const group = `probe-${randomBytes(4).toString('hex')}`;
  const ids = { one: `${group}-one`, other: `${group}-other`, guarded: `${group}-guarded` };
  const all = Object.values(ids);
  const waits = (why: string): void => progress(`waits for room for a probe: ${why}`);
  const create = (id: string, on = 'probe'): Promise<void> =>
    createPod({ client, clock, body: probePod(parts, on, id, all), doing: 'create a probe pod', waits }, signal);
  try {
    await create(ids.one);
    await create(ids.other);
    const one = await begun(parts, ids.one, progress, signal);
    const other = await begun(parts, ids.other, progress, signal);
    await mustReach(parts, one, other, signal);
    await create(ids.guarded, network);
    const guarded = await begun(parts, ids.guarded, progress, signal);
    const open = await mustBeKept(parts, { guarded, one, other }, signal);
    // What failed until now, failed because of the policy.
    await mustReach(parts, one, other, signal);
    return open;
  } finally {
    // Its signal may have aborted already.
    using limit = deadline(clock, cleanLimit);
    await Promise.all(all.map((id) => removeProbe(client, id, limit.signal).catch(() => {})));
  }
}

/** Waits until it runs. @throws OnejobError if it will not */
async function begun(parts: ProbeParts, id: string, progress: Progress, signal: AbortSignal): Promise<Seen> {
  for (;;) {
    const { pod, ip } = await living(parts, id, signal);
    if (pod.isRunning && ip !== '') return { id, ip, node: pod.node };
    progress(`tries network ${parts.network}: ${waitText(pod)}`);
    await sleep(parts.clock, lookAgain, signal);
  }
}

/** @throws OnejobError if it is not there, has ended, or will not begin */
async function living({ client, owner, network, spec }: ProbeParts, id: string, signal: AbortSignal): Promise<Probe> {
  const probe = (await probesOf(client, owner, signal)).find(({ pod }) => pod.agent === id);
  if (probe === undefined) throw unknown('somebody deleted a probe pod');
  const { pod } = probe;
  const failure = stuckIn(pod, 'a probe pod') ?? unstarted(pod, 'a probe pod');
  if (failure !== null) throw failure;
  if (!isOver(pod)) return probe;
  if (pod.terminated?.code !== toolless) throw unknown(pod.ended ?? 'a probe pod has ended');
  const why = `image "${spec.recipe.image}" has neither perl nor python3 nor nc, with which that could be tried`;
  throw unguarded(network, why, 'Add one of them to the image');
}

/** One without a policy reaches another. @throws OnejobError E_NETWORK_UNGUARDED if not: then nothing can be tried */
async function mustReach(parts: ProbeParts, from: Seen, to: Seen, signal: AbortSignal): Promise<void> {
  const { clock, client, network } = parts;
  for (const until = clock.now() + reachesWithin; ; await sleep(clock, lookAgain, signal)) {
    const isLast = clock.now() >= until;
    const reached = await connects(client, from, to, signal).catch(async (error: unknown) => {
      // A node tells a moment later that one has ended, which says more than what fails because of that.
      for (const { id } of [from, to]) await living(parts, id, signal);
      if (isLast) throw error;
      return false;
    });
    if (reached) return;
    if (!isLast) continue;
    const why = `two pods on node ${from.node} that no policy of onejob keeps apart do not reach each other, so nothing can be tried`;
    const where = `to reach each other at port ${probePort} in namespace ${client.access.namespace}`;
    throw unguarded(network, why, `Allow pods with the label ${names.network}=probe ${where}`);
  }
}

type Three = Readonly<Record<'guarded' | 'one' | 'other', Seen>>;

/** Returns for how many ms it was not so. @throws OnejobError E_NETWORK_UNGUARDED if it does not become so */
async function mustBeKept(parts: ProbeParts, { guarded, one, other }: Three, signal: AbortSignal): Promise<number> {
  const { clock, client, network, owner } = parts;
  const from = clock.now();
  let open = 0;
  for (let failed = 0; failed < failsInRow; await sleep(clock, lookAgain, signal)) {
    const [out, into] = await Promise.all([connects(client, guarded, one, signal), connects(client, other, guarded, signal)]);
    failed = out || into ? 0 : failed + 1;
    if (failed > 0) continue;
    open = clock.now() - from;
    if (open < keepsWithin) continue;
    const how = out ? 'a pod that it selects reached another one' : 'another pod reached one that it selects';
    const why = `the cluster does not keep policy ${policyName(owner, network)}: ${how}, on node ${guarded.node}`;
    const help = 'Use a network plugin that keeps network policies, such as Calico or Cilium';
    throw unguarded(network, why, `${help}, and see whether another policy of the namespace allows more`);
  }
  return open;
}

/** Whether a connection from a probe pod to an address is there in time. */
async function connects(client: KubeClient, { id }: Seen, { ip }: Seen, signal: AbortSignal): Promise<boolean> {
  const script = `set -- ${isIPv6(ip) ? ip : ip.replaceAll(/[^\d.]/g, '')}\n${probeScript('connect')}`;
  const program = await runAlongside(client, { agent: id, script, doing: 'try a network in a probe pod' }, signal);
  program.stdin.end();
  program.stdout.resume();
  const { code, words } = await program.ended;
  if (code === 0 || code === 1) return code === 0;
  throw unknown(`a probe pod could not try it (exit code ${code}): ${words.slice(0, 200)}`);
}

function unknown(why: string): OnejobError {
  return new OnejobError('E_ENGINE_FAILED', `Cannot try whether the cluster keeps network policies: ${why}.`, { retry: true });
}

function unguarded(network: GuardedNetwork, why: string, help: string): OnejobError {
  const message = `Cannot keep jobs on network "${network}" from the cluster and private networks: ${why}.`;
  const hint = `${help}; or write "network: default", which keeps jobs from nothing.`;
  return new OnejobError('E_NETWORK_UNGUARDED', message, { hint });
}
