/** What is read of a pod, and what it means. Pure. https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ */
import { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type { Granted, SandboxSeen } from '../../ports/runtime.ts';

/** Labels and annotations of what belongs to onejob. */
export const names = {
  owner: 'onejob/owner',
  agent: 'onejob/agent',
  /** In place of `agent`, on a pod that only tries the network. */
  probe: 'onejob/probe',
  network: 'onejob/network',
  pool: 'onejob/pool',
  slot: 'onejob/slot',
  fingerprint: 'onejob/fingerprint',
} as const;

/** The workspace of a job, in its container. */
export const workspacePath = '/workspace';
/** The job's container. */
export const container = 'job';

const prefix = 'oj-';

export function podName(agent: AgentId): string {
  return prefix + agent;
}

const text = z.string().optional();
const labels = z.record(z.string(), z.string()).optional();
const terminated = z.object({ exitCode: z.number(), signal: z.number().optional(), reason: text, message: text });
const containerStatus = z.object({
  name: z.string(),
  imageID: text,
  state: z
    .looseObject({
      waiting: z.object({ reason: text, message: text }).optional(),
      running: z.object({}).optional(),
      terminated: terminated.optional(),
    })
    .optional(),
  allocatedResourcesStatus: z.array(z.object({ resources: z.array(z.object({ resourceID: z.string() })).optional() })).optional(),
});
export const podSchema = z.object({
  metadata: z.object({
    name: z.string(),
    uid: z.string(),
    resourceVersion: text,
    labels,
    annotations: labels,
    deletionTimestamp: text,
  }),
  spec: z.object({ nodeName: text }).optional(),
  status: z
    .looseObject({
      phase: text,
      reason: text,
      message: text,
      conditions: z.array(z.object({ type: z.string(), status: text, reason: text, message: text })).optional(),
      containerStatuses: z.array(containerStatus).optional(),
    })
    .optional(),
});

/** A pod of ours, as much of it as is needed: thousands are kept. */
export interface Pod {
  readonly agent: AgentId;
  readonly uid: string;
  readonly pool: string;
  readonly slot: string;
  readonly fingerprint: string;
  readonly phase: string;
  /** Empty: it has none yet. */
  readonly node: string;
  readonly devices: string;
  readonly isDeleting: boolean;
  readonly isRunning: boolean;
  /** Why it waits, in the words of Kubernetes; null: it does not wait. */
  readonly waiting: { readonly reason: string; readonly message: string } | null;
  readonly terminated: { readonly code: number; readonly signal: number; readonly reason: string; readonly message: string } | null;
  /** Why Kubernetes itself ended it; null: it did not. */
  readonly ended: string | null;
}

/** null: it is not a pod of an agent. `label`: which has its id. */
export function podOf(value: unknown, label: string = names.agent): Pod | null {
  const parsed = podSchema.safeParse(value);
  if (!parsed.success) return null;
  const { metadata, spec, status } = parsed.data;
  const { [label]: agent } = metadata.labels ?? {};
  if (agent === undefined || metadata.name !== podName(agent)) return null;
  const annotations = metadata.annotations ?? {};
  const own = status?.containerStatuses?.find(({ name }) => name === container);
  const { running, terminated: end, waiting } = own?.state ?? {};
  const devices =
    own?.allocatedResourcesStatus?.flatMap(({ resources = [] }) => resources.map(({ resourceID }) => resourceID)) ?? [];
  const phase = status?.phase ?? 'Pending';
  return {
    agent,
    uid: metadata.uid,
    pool: annotations[names.pool] ?? '',
    slot: annotations[names.slot] ?? '',
    fingerprint: annotations[names.fingerprint] ?? '',
    phase,
    node: spec?.nodeName ?? '',
    devices: devices.join(','),
    isDeleting: metadata.deletionTimestamp !== undefined,
    isRunning: running !== undefined,
    waiting: running !== undefined || end !== undefined ? null : waitOf(status, waiting),
    terminated:
      end === undefined
        ? null
        : { code: end.exitCode, signal: end.signal ?? 0, reason: end.reason ?? '', message: end.message ?? '' },
    ended: endOf(status),
  };
}

type Status = z.infer<typeof podSchema>['status'];

function waitOf(
  status: Status,
  waiting: { reason?: string | undefined; message?: string | undefined } | undefined,
): Pod['waiting'] {
  const scheduled = status?.conditions?.find(({ type }) => type === 'PodScheduled');
  if (scheduled?.status === 'False') return { reason: scheduled.reason ?? '', message: scheduled.message ?? '' };
  return { reason: waiting?.reason ?? '', message: waiting?.message ?? '' };
}

/** What Kubernetes says of an end that it caused. */
const disruptions: Readonly<Record<string, string>> = {
  PreemptionByScheduler: 'a pod with a higher priority took its place',
  DeletionByTaintManager: 'its node was tainted',
  EvictionByEvictionAPI: 'somebody evicted it, such as by draining its node',
  DeletionByPodGC: 'its node is gone',
  TerminationByKubelet: 'its node ended it, because of its own load or shutdown',
};

const reasons: Readonly<Record<string, string>> = {
  DeadlineExceeded: 'its time limit was over',
  Evicted: 'its node evicted it',
  NodeLost: 'its node is gone',
  Preempting: 'a pod with a higher priority took its place',
  Shutdown: 'its node was shut down',
  Terminated: 'its node was shut down',
  UnexpectedAdmissionError: 'its node refused it',
};

function endOf(status: Status): string | null {
  const disruption = status?.conditions?.find(({ type, status: is }) => type === 'DisruptionTarget' && is === 'True');
  const { reason = '', message = '' } = disruption ?? (status?.phase === 'Failed' ? status : {});
  if (reason === '') return null;
  const words = disruptions[reason] ?? reasons[reason] ?? reason;
  return message === '' ? words : `${words} (${message.trim().replace(/\.$/, '')})`;
}

/** Whether nothing of it runs any more, or ever will. */
export function isOver(pod: Pod): boolean {
  return pod.terminated !== null || pod.phase === 'Failed' || pod.phase === 'Succeeded';
}

/** What is known of a pod, apart from the pod itself. */
export interface Known {
  /** How its job ended, if its log says so; that is there before its container ends. */
  readonly told: Exit | null;
  /** onejob itself has deleted it. */
  readonly isRemoved: boolean;
}

export function stateOf(pod: Pod, { told, isRemoved }: Known): SandboxSeen['state'] {
  if (told === null && !isOver(pod)) return { kind: pod.isRunning ? 'running' : 'created' };
  const exit = told ?? exitOf(pod);
  // A job that takes its time to end well has its own code; that of a signal is not the job's.
  const isByOthers = pod.isDeleting && !isRemoved && exit.kind === 'code' && [137, 143].includes(exit.code);
  return { kind: 'exited', exit: isByOthers ? lost(pod, 'somebody deleted its pod') : exit };
}

/** An end that is not the job's. `why`: unless Kubernetes itself says it. */
export function lost({ node, ended }: Pod, why: string): Exit {
  return { kind: 'lost', reason: `Kubernetes ended it${node === '' ? '' : ` on node ${node}`}: ${ended ?? why}` };
}

/** The end of a pod whose log tells none. */
function exitOf(pod: Pod): Exit {
  const { terminated, ended } = pod;
  if (terminated?.reason === 'OOMKilled') return { kind: 'oom' };
  if (ended !== null || terminated === null) return lost(pod, 'it left no exit code');
  return { kind: 'code', code: terminated.code };
}

export function grantedOf({ node, devices }: Pod): Granted | null {
  return node === '' ? null : { place: node, devices };
}

/** Nobody is at the gate of an agent. */
export function gateEnded(agent: AgentId, why: string): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Agent ${agent} did not reach its gate, or has left it: ${why}.`, { retry: true });
}

/** Why it waits, for people. */
export function waitText({ waiting }: Pod): string {
  const { reason, message } = waiting ?? { reason: '', message: '' };
  const words: Readonly<Record<string, string>> = {
    '': 'waits for Kubernetes',
    Unschedulable: 'waits for a node',
    SchedulingGated: 'waits in a queue of the cluster',
    ContainerCreating: 'has a node, which fetches the image and starts it',
    PodInitializing: 'has a node, which fetches the image and starts it',
    ErrImagePull: 'waits for its image',
    ImagePullBackOff: 'waits for its image',
  };
  const said = words[reason] ?? `waits (${reason})`;
  return message === '' ? said : `${said}: ${message.trim()}`;
}
