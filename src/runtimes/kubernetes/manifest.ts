/** The pod of an agent. Pure. */
import { dirname } from 'node:path';
import { OnejobError } from '../../base/errors.ts';
import type { Recipe, SandboxSpec } from '../../ports/runtime.ts';
import { programsIn } from '../programs.ts';
import type { KubernetesPool } from './config.ts';
import { container, names, podName, workspacePath } from './pods.ts';
import { supervisorScript } from './script.ts';

export interface PodParts {
  readonly owner: string;
  readonly fingerprint: string;
  /** What goes when the installation goes. */
  readonly lease: { readonly name: string; readonly uid: string };
  /** Nodes that are avoided. */
  readonly avoided: readonly string[];
}

/** What a pool asks the engine for. */
export function wantsOf({ wants }: Recipe) {
  if (wants === undefined) throw new TypeError('a recipe for Kubernetes says what to ask for');
  return { ...wants, keys: wants.keys as KubernetesPool };
}

/** Unreachable nodes come back, and with them the agents: without this Kubernetes ends them after five minutes. */
const stays = ['not-ready', 'unreachable'].map((key) => ({
  key: `node.kubernetes.io/${key}`,
  operator: 'Exists',
  effect: 'NoExecute',
}));

export function podOfSpec(of: SandboxSpec, { owner, fingerprint, lease, avoided }: PodParts): object {
  const { agent, pool, slot, recipe } = of;
  const { keys } = wantsOf(recipe);
  const labels = {
    'app.kubernetes.io/managed-by': 'onejob',
    [names.owner]: owner,
    [names.agent]: agent,
    [names.network]: recipe.network,
    ...(keys.queue !== undefined && { 'kueue.x-k8s.io/queue-name': keys.queue }),
  };
  const annotations = {
    [names.pool]: pool,
    [names.slot]: slot,
    [names.fingerprint]: fingerprint,
    'cluster-autoscaler.kubernetes.io/safe-to-evict': 'false',
  };
  const ownerReferences = [{ apiVersion: 'coordination.k8s.io/v1', kind: 'Lease', name: lease.name, uid: lease.uid }];
  const metadata = { name: podName(agent), labels, annotations, ownerReferences };
  return patched({ apiVersion: 'v1', kind: 'Pod', metadata, spec: podSpecOf(of, avoided) }, keys.pod);
}

/** Keys without a value are in no JSON. */
function podSpecOf({ agent, name, recipe, look }: SandboxSpec, avoided: readonly string[]): object {
  const { gpus, model, lifetime, keys } = wantsOf(recipe);
  const programs = programsIn(recipe).map(({ container: path }) => path);
  const volumes = volumesOf(recipe, keys, programs);
  return {
    restartPolicy: 'Never',
    hostname: hostName(name),
    // The job's own time to end is counted by onejob, which ends it by a signal.
    terminationGracePeriodSeconds: 30,
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    tolerations: [...stays, ...keys.tolerations],
    ...(lifetime !== null && { activeDeadlineSeconds: Math.ceil(lifetime / 1000) }),
    nodeSelector: { ...keys.node_selector, ...(model !== null && { 'nvidia.com/gpu.product': model }) },
    ...(avoided.length > 0 && { affinity: without(avoided) }),
    priorityClassName: keys.priority_class,
    runtimeClassName: keys.runtime_class,
    serviceAccountName: keys.service_account,
    imagePullSecrets: keys.pull_secrets.map((one) => ({ name: one })),
    ...(keys.claim !== undefined && { resourceClaims: [{ name: 'devices', resourceClaimTemplateName: keys.claim }] }),
    volumes: volumes.map(({ mount: _, ...volume }) => volume),
    containers: [
      {
        name: container,
        image: recipe.image,
        imagePullPolicy: { missing: 'IfNotPresent', always: 'Always', never: 'Never' }[recipe.pull],
        command: ['sh', '-c', supervisorScript({ agent, gpus, look, programs }), 'onejob'],
        stdin: true,
        // The first that writes to it would end it otherwise.
        stdinOnce: false,
        workingDir: workspacePath,
        env: Object.entries(recipe.env).map(([key, value]) => ({ name: key, value: verbatim(value) })),
        resources: resourcesOf(recipe),
        securityContext: securityOf(recipe, keys),
        volumeMounts: volumes.map(({ name: volume, mount }) => ({ name: volume, ...mount })),
      },
    ],
  };
}

/** A host name from the agent's name, which may have other characters. */
function hostName(name: string): string {
  const plain = name.toLowerCase().replaceAll(/[^a-z0-9-]/g, '-');
  return plain.slice(0, 63).replace(/^-+|-+$/g, '') || 'agent';
}

/** `$(NAME)` would be replaced. https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ */
function verbatim(value: string): string {
  return value.replaceAll('$', '$$$$');
}

function without(nodes: readonly string[]): object {
  const terms = [{ matchFields: [{ key: 'metadata.name', operator: 'NotIn', values: nodes }] }];
  return { nodeAffinity: { requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: terms } } };
}

function resourcesOf(recipe: Recipe): object {
  const { gpus, keys } = wantsOf(recipe);
  const limits = {
    ...(recipe.cpus !== null && { cpu: `${Math.round(recipe.cpus * 1000)}m` }),
    ...(recipe.memory !== null && { memory: `${recipe.memory}` }),
    ...(gpus > 0 && keys.claim === undefined && { [keys.resource]: `${gpus}` }),
  };
  return { limits, requests: limits, ...(keys.claim !== undefined && { claims: [{ name: 'devices' }] }) };
}

/** As the Pod Security Standards want it: https://kubernetes.io/docs/concepts/security/pod-security-standards/ */
function securityOf({ user, readOnly, capAdd, unsafe }: Recipe, { security }: KubernetesPool): object {
  const [uid, gid] = (user ?? '').split(':');
  const isRestricted = security === 'restricted';
  return {
    ...(user !== null && { runAsUser: Number(uid) }),
    ...(gid !== undefined && { runAsGroup: Number(gid) }),
    ...(readOnly && { readOnlyRootFilesystem: true }),
    ...(unsafe.privileged ? { privileged: true } : { allowPrivilegeEscalation: !isRestricted }),
    ...(isRestricted && { runAsNonRoot: true }),
    ...((isRestricted || capAdd.length > 0) && {
      capabilities: { ...(isRestricted && { drop: ['ALL'] }), ...(capAdd.length > 0 && { add: capAdd }) },
    }),
    seccompProfile: { type: unsafe.seccompUnconfined ? 'Unconfined' : 'RuntimeDefault' },
  };
}

interface Volume {
  readonly name: string;
  readonly mount: { readonly mountPath: string; readonly readOnly?: true };
  readonly [kind: string]: unknown;
}

function volumesOf({ shmSize, tmpfs }: Recipe, { claims }: KubernetesPool, programs: readonly string[]): Volume[] {
  const folders = [...new Set(programs.map((path) => dirname(path)))];
  const memory = (size: string | number | undefined) => ({ medium: 'Memory', ...(size !== undefined && { sizeLimit: `${size}` }) });
  return [
    { name: 'workspace', emptyDir: {}, mount: { mountPath: workspacePath } },
    ...folders.map((path, at) => ({ name: `programs-${at}`, emptyDir: {}, mount: { mountPath: path } })),
    ...(shmSize === null ? [] : [{ name: 'shm', emptyDir: memory(shmSize), mount: { mountPath: '/dev/shm' } }]),
    ...Object.entries(tmpfs).map(([path, options], at) => ({
      name: `tmpfs-${at}`,
      emptyDir: memory(sizeOf(options)),
      mount: { mountPath: path },
    })),
    ...claims.map(({ claim, path, writable }, at) => ({
      name: `claim-${at}`,
      persistentVolumeClaim: { claimName: claim, ...(!writable && { readOnly: true }) },
      mount: { mountPath: path, ...(!writable && { readOnly: true as const }) },
    })),
  ];
}

/** Bytes, in the notation of Kubernetes, that mount options of a tmpfs allow; undefined: they do not say. */
function sizeOf(options: string): string | undefined {
  const [, count, unit] = /(?:^|,)size=(\d+)([kmg]?)(?:,|$)/i.exec(options) ?? [];
  return count === undefined ? undefined : `${count}${{ k: 'Ki', m: 'Mi', g: 'Gi' }[`${unit}`.toLowerCase()] ?? ''}`;
}

/** What a patch may not change, because onejob depends on it. */
const kept = [
  'metadata.name',
  'metadata.ownerReferences',
  `metadata.labels.${names.owner}`,
  `metadata.labels.${names.agent}`,
  `metadata.labels.${names.network}`,
  'spec.restartPolicy',
] as const;

/** Maps are merged, lists are replaced; containers and volumes are joined by name. @throws OnejobError E_RECIPE */
function patched(pod: object, patch: object | undefined): object {
  if (patch === undefined) return pod;
  const merged = merge(pod, patch) as object;
  for (const path of kept) {
    const read = (of: object): unknown => path.split('.').reduce((at: unknown, key) => Object(at)[key], of);
    if (JSON.stringify(read(merged)) !== JSON.stringify(read(pod)))
      throw new OnejobError('E_RECIPE', `"pod" of the pool changes ${path}, which onejob needs as it is.`);
  }
  return merged;
}

function merge(one: unknown, other: unknown): unknown {
  if (Array.isArray(one) && Array.isArray(other) && [...one, ...other].every((item) => typeof Object(item).name === 'string')) {
    const added = other.filter(({ name }) => !one.some((item) => item.name === name));
    return [...one.map((item) => merge(item, other.find(({ name }) => name === item.name) ?? {})), ...added];
  }
  if (!isMap(one) || !isMap(other)) return other;
  const changed = Object.entries(other).map(([key, value]) => [key, key in one ? merge(one[key], value) : value]);
  return { ...one, ...Object.fromEntries(changed) };
}

function isMap(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
