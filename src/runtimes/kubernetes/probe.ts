/**
 * Tries whether a cluster keeps the policy of a network. Three pods of the pool's image run on one node: two that no policy of onejob
 * selects, and then one on that network. The two must reach each other, before and after, and neither may reach the guarded one, nor it
 * them. Some network plugins leave a new pod open for a moment: how long is measured, too.
 *
 * The pods carry no label of an agent, hold no GPU, and end by themselves after a while.
 */
import { randomBytes } from 'node:crypto';
import { isIPv6 } from 'node:net';
import { z } from 'zod';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { SandboxSpec } from '../../ports/runtime.ts';
import { createPod, stuckIn, unstarted } from './begin.ts';
import type { KubeClient } from './client.ts';
import type { GuardedNetwork } from './config.ts';
import type { LeaseSeen } from './lease.ts';
import { podOfSpec, wantsOf } from './manifest.ts';
import { container, isOver, names, type Pod, podName, podOf, waitText } from './pods.ts';
import { policyName } from './policy.ts';
import { runBeside } from './run.ts';

const port = 18_080;
/** ms after which a probe pod ends, its image included. */
const lifetime = 15 * 60_000;
/** ms in which pods without a policy must reach each other. */
const reachesWithin = 30_000;
/** ms in which a network plugin must have taken a policy up. */
const keepsWithin = 20_000;
/** ms between two looks. */
const lookAgain = 500;
/** s in which a connection is there, or is taken to be kept back. */
const connectsWithin = 2;
/** Tries in a row that must fail. */
const failsInRow = 2;
/** ms that cleaning up may take. */
const cleanLimit = 30_000;
/** Exit code of a script that has no tool. */
const toolless = 93;

interface Tool {
  readonly has: string;
  readonly listen: string;
  /** To the address in `$1`. */
  readonly connect: string;
}

/** What listens and connects, for both families of addresses. */
const tools: Readonly<Record<'perl' | 'python3' | 'nc', Tool>> = {
  perl: {
    has: 'perl -MIO::Socket::IP -e 1 2>/dev/null',
    listen: `exec perl -MIO::Socket::IP -e '
my %o = (LocalPort => ${port}, Listen => 16, ReuseAddr => 1);
my $s = IO::Socket::IP->new(LocalHost => "::", V6Only => 0, %o) || IO::Socket::IP->new(LocalHost => "0.0.0.0", %o) or die $@;
while (1) { my $c = $s->accept or next; close $c }'`,
    connect: `exec perl -MIO::Socket::IP -e 'exit !IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => ${port}, Timeout => ${connectsWithin})' "$1"`,
  },
  python3: {
    has: 'python3 -c "import socket" 2>/dev/null',
    listen: `exec python3 -c '
import socket
try:
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(("::", ${port}))
except OSError:
    s = socket.socket()
    s.bind(("", ${port}))
s.listen(16)
while True:
    s.accept()[0].close()'`,
    connect: `exec python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], ${port}), ${connectsWithin})' "$1" 2>/dev/null`,
  },
  nc: {
    has: 'command -v nc >/dev/null',
    // Some serve one connection only.
    listen: `while :; do nc -l -p ${port} </dev/null >/dev/null || sleep 0.1; done`,
    connect: `exec nc -w ${connectsWithin} "$1" ${port} </dev/null >/dev/null 2>&1`,
  },
};

/** A script that listens, or that connects to the address in `$1`, with the first tool that is there: 0 if that worked, 1 if not. */
export function probeScript(does: 'listen' | 'connect'): string {
  return [...Object.values(tools).map((tool) => `if ${tool.has}; then\n${tool[does]}\nfi`), `exit ${toolless}`].join('\n');
}

export interface ProbeParts {
  readonly client: KubeClient;
  readonly clock: Clock;
  readonly owner: string;
  readonly lease: LeaseSeen;
  readonly network: GuardedNetwork;
  /** The agent that is to be made on that network. */
  readonly spec: SandboxSpec;
  /** Names of nodes. */
  readonly avoided: readonly string[];
}

const roles = ['guarded', 'one', 'other'] as const;
type Role = (typeof roles)[number];

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
  const ids = roles.map((role) => `${group}-${role}`);
  const create = async (role: Role): Promise<void> => {
    const body = probePod(parts, role === 'guarded' ? network : 'probe', `${group}-${role}`, ids);
    const waits = (why: string): void => progress(`waits for room for a probe: ${why}`);
    await createPod({ client, clock, body, doing: 'create a probe pod', waits }, signal);
  };
  try {
    await create('one');
    await create('other');
    const [one, other] = await begun(parts, [`${group}-one`, `${group}-other`], progress, signal);
    await mustReach(parts, one, other, signal);
    await create('guarded');
    const [guarded] = await begun(parts, [`${group}-guarded`], progress, signal);
    const open = await mustBeKept(parts, { guarded, one, other }, signal);
    // What failed until now, failed because of the policy.
    await mustReach(parts, one, other, signal);
    return open;
  } finally {
    // Its signal may have aborted already.
    using limit = deadline(clock, cleanLimit);
    await Promise.all(ids.map((id) => removeProbe(client, id, limit.signal).catch(() => {})));
  }
}

/** Removes all probe pods of an owner. */
export async function removeProbes(client: KubeClient, owner: string, signal: AbortSignal): Promise<void> {
  for (const { agent } of (await listed(client, `${names.owner}=${owner},${names.probe}`, signal)).map(({ pod }) => pod))
    await removeProbe(client, agent, signal);
}

async function removeProbe(client: KubeClient, id: string, signal: AbortSignal): Promise<void> {
  const path = client.path('pods', podName(id));
  await client.ask({
    method: 'DELETE',
    path,
    body: { gracePeriodSeconds: 1 },
    doing: 'remove a probe pod',
    nothing: [404],
    signal,
  });
}

/** As an agent of its pool, but small, harmless, and without a right to anything. `ids`: those of all that must be on one node. */
export function probePod(
  { owner, lease, spec, avoided }: ProbePodParts,
  network: string,
  id: string,
  ids: readonly string[],
): object {
  const { recipe } = spec;
  const { keys, ...wants } = wantsOf(recipe);
  const mayStay = keys.security === 'restricted' || (recipe.user !== null && !/^0(:|$)/.test(recipe.user));
  const pod = podOfSpec(
    {
      agent: id,
      name: id,
      pool: spec.pool,
      slot: spec.slot,
      devices: [],
      recipe: {
        ...recipe,
        network,
        env: {},
        mounts: [],
        tmpfs: {},
        shmSize: null,
        capAdd: [],
        cpus: 0.1,
        memory: 64 * 1024 * 1024,
        unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
        user: mayStay ? recipe.user : '65534:65534',
        wants: { ...wants, gpus: 0, lifetime, keys: { ...keys, claim: undefined, claims: [], security: 'restricted' } },
      },
    },
    { owner, lease, avoided, fingerprint: 'probe' },
  ) as ReadPod;
  const { [names.agent]: _, ...labels } = pod.metadata.labels;
  const together = {
    labelSelector: { matchExpressions: [{ key: names.probe, operator: 'In', values: ids }] },
    topologyKey: 'kubernetes.io/hostname',
  };
  return {
    ...pod,
    metadata: { ...pod.metadata, labels: { ...labels, [names.probe]: id } },
    spec: {
      ...pod.spec,
      affinity: { ...pod.spec.affinity, podAffinity: { requiredDuringSchedulingIgnoredDuringExecution: [together] } },
      containers: pod.spec.containers.map((one) =>
        one.name === container ? { ...one, command: ['sh', '-c', probeScript('listen')], stdin: false } : one,
      ),
    },
  };
}

type ProbePodParts = Pick<ProbeParts, 'owner' | 'lease' | 'spec' | 'avoided'>;

/** What is changed of a pod of an agent. */
interface ReadPod {
  readonly metadata: { readonly labels: Readonly<Record<string, string>> };
  readonly spec: { readonly affinity?: object; readonly containers: readonly { readonly name: string }[] };
}

const addressSchema = z.looseObject({ status: z.looseObject({ podIP: z.string().optional() }).optional() });
const listSchema = z.looseObject({ items: z.array(z.unknown()) });

/** Probe pods, with their ids in place of agents'. */
async function listed(client: KubeClient, labelSelector: string, signal: AbortSignal): Promise<{ pod: Pod; ip: string }[]> {
  const doing = 'list probe pods';
  const answer = await client.ask({ path: client.path('pods'), query: { labelSelector }, doing, signal });
  return client.formed(listSchema, answer, doing).items.flatMap((item) => {
    const pod = podOf(item, names.probe);
    return pod === null ? [] : [{ pod, ip: addressSchema.parse(item).status?.podIP ?? '' }];
  });
}

/** Those of them that are there. */
async function ofGroup({ client, owner }: ProbeParts, ids: readonly string[], signal: AbortSignal) {
  const all = await listed(client, `${names.owner}=${owner},${names.probe}`, signal);
  return all.filter(({ pod }) => ids.includes(pod.agent));
}

/** Waits until these run. @throws OnejobError if they will not */
async function begun<Ids extends readonly string[]>(
  parts: ProbeParts,
  ids: readonly [...Ids],
  progress: Progress,
  signal: AbortSignal,
): Promise<{ readonly [At in keyof Ids]: Seen }> {
  const { clock, network } = parts;
  for (;;) {
    signal.throwIfAborted();
    const all = await ofGroup(parts, ids, signal);
    const own = ids.map((id) => all.find(({ pod }) => pod.agent === id));
    const seen = own.map((one) => {
      if (one === undefined) throw unknown('somebody deleted a probe pod');
      mustLive(parts, one.pod);
      return { id: one.pod.agent, ip: one.ip, node: one.pod.node };
    });
    const waiting = own.find((one) => one?.pod.isRunning === false || one?.ip === '');
    if (waiting === undefined) return seen as { [At in keyof Ids]: Seen };
    progress(`tries network ${network}: ${waitText(waiting.pod)}`);
    await sleep(clock, lookAgain, signal);
  }
}

function mustLive({ network, spec }: ProbeParts, pod: Pod): void {
  const failure = stuckIn(pod, 'a probe pod') ?? unstarted(pod, 'a probe pod');
  if (failure !== null) throw failure;
  if (!isOver(pod)) return;
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
      for (const { pod } of await ofGroup(parts, [from.id, to.id], signal)) mustLive(parts, pod);
      if (isLast) throw error;
      return false;
    });
    if (reached) return;
    if (!isLast) continue;
    const why = `two pods on node ${from.node} that no policy of onejob keeps apart do not reach each other, so nothing can be tried`;
    const where = `to reach each other at port ${port} in namespace ${client.access.namespace}`;
    throw unguarded(network, why, `Allow pods with the label ${names.network}=probe ${where}`);
  }
}

interface Three {
  readonly guarded: Seen;
  readonly one: Seen;
  readonly other: Seen;
}

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
  const program = await runBeside(client, { agent: id, script, doing: 'try a network in a probe pod' }, signal);
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
