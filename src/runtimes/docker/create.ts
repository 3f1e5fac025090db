/** The request that creates the container of a sandbox. Pure: the same spec gives the same container. */

import type { Recipe, SandboxSpec } from '../../ports/runtime.ts';
import { gateScript } from '../gate.ts';
import { inEngine } from './engine-program.ts';
import type { Grant } from './grants.ts';

/** Path of the workspace. It is a volume, so it is writable under a read-only root, too. */
export const workspacePath = '/workspace';

export const labels = {
  owner: 'onejob.owner',
  pool: 'onejob.pool',
  slot: 'onejob.slot',
  agent: 'onejob.agent',
  devices: 'onejob.devices',
  name: 'onejob.name',
  /** Boot id of the host. A container of another boot was ended by the reboot, whatever its exit code says. */
  boot: 'onejob.boot',
  /** The start of the Engine that made it. Without live-restore a later one has ended it, whatever its exit code says. */
  engine: 'onejob.engine',
  /** Of a container that gives a workspace to its user: the agent. */
  workspace: 'onejob.workspace',
  /** Of an image of a held container: its agent. */
  held: 'onejob.held',
} as const;

export interface CreateContext {
  readonly owner: string;
  /** Null when the Engine is not on this host. */
  readonly boot: string | null;
  /** Names one start of the Engine; null or absent if that is unknown. */
  readonly engineStart?: string | null;
  /** Id of the image, so that the container matches its fingerprint even if the tag moves. */
  readonly imageId: string;
  /** PATH of the image; null for the Engine's own. */
  readonly imagePath: string | null;
  /** Name of the network in the Engine; `none` and `host` are its own words. */
  readonly network: string;
  readonly podman: boolean;
  readonly log: LogLimits;
  readonly grant: Grant;
  /** The Engine's host is a container, whose folder for the workspace it is. */
  readonly inside?: boolean;
}

/** How much output the Engine keeps per sandbox. Unread output beyond that is lost, but the job never waits. */
export interface LogLimits {
  /** Bytes of one file. The Engine adds about 30 per line. */
  readonly maxSize: number;
  readonly maxFile: number;
}

/** Container name: unique by the agent id, readable by the agent's name. */
export function containerName(spec: Pick<SandboxSpec, 'agent' | 'name'>): string {
  return `onejob-${spec.name.replace(/[^A-Za-z0-9_.-]+/g, '-')}-${spec.agent}`;
}

/** A host name as RFC 1123 allows it: letters, digits, dots and dashes, 63 at most. */
export function hostName(name: string): string {
  const cleaned = name.replace(/[^A-Za-z0-9.-]+/g, '-').slice(0, 63);
  return cleaned.replace(/^[.-]+|[.-]+$/g, '') || 'agent';
}

/**
 * Lets what the job runs as another user, with `su` or `gosu`, open its output by name, as in `>/dev/stderr`. The Engine's pipes
 * belong to the user of the container. An image may have no `chmod`, and a runtime may give something else than pipes. In the
 * background, because a shell that runs `chmod` in its own process would change the mode of /dev/null.
 */
const shareOutput = '[ -p /proc/$$/fd/1 ] && [ -p /proc/$$/fd/2 ] && chmod 622 /proc/$$/fd/1 /proc/$$/fd/2 2>/dev/null & wait';

/** Labels of what is made for an agent. */
export function sandboxLabels(
  spec: SandboxSpec,
  { owner, boot, engineStart }: Pick<CreateContext, 'owner' | 'boot' | 'engineStart'>,
): Record<string, string> {
  return {
    // What is left out would be that of the image, which a job may choose.
    ...Object.fromEntries(Object.values(labels).map((name) => [name, ''])),
    [labels.owner]: owner,
    [labels.agent]: spec.agent,
    [labels.pool]: spec.pool,
    [labels.slot]: spec.slot,
    [labels.name]: spec.name,
    [labels.devices]: spec.devices.map(({ uuid }) => uuid).join(','),
    ...(boot !== null && { [labels.boot]: boot }),
    ...(engineStart != null && { [labels.engine]: engineStart }),
  };
}

/** The body of `POST /containers/create` (Engine API 1.41 and later). */
export function createBody(spec: SandboxSpec, context: CreateContext) {
  const { recipe } = spec;
  const { grant, log } = context;
  const owned = { [labels.owner]: context.owner, [labels.agent]: spec.agent };
  const hasOwnName = context.network !== 'host';
  return {
    Image: context.imageId,
    // The image's own entrypoint, command and health check would run in addition to the gate, or instead of it.
    Entrypoint: ['sh', '-c', [shareOutput, ownPath, gateScript(spec.agent, grant.gate)].join('\n')],
    Cmd: [],
    Healthcheck: { Test: ['NONE'] },
    StopSignal: 'SIGTERM',
    ...(hasOwnName && { Hostname: hostName(spec.name) }),
    ...(recipe.user !== null && { User: recipe.user }),
    Env: environment(spec, context),
    WorkingDir: workspacePath,
    Labels: sandboxLabels(spec, context),
    // Standard input stays open for a later manager. Output is read from the log, never by attaching.
    OpenStdin: true,
    StdinOnce: false,
    Tty: false,
    AttachStdin: false,
    AttachStdout: false,
    AttachStderr: false,
    HostConfig: {
      // Forwards signals to the gate and reaps what the job leaves behind.
      Init: true,
      AutoRemove: false,
      RestartPolicy: { Name: 'no' },
      NetworkMode: context.network,
      // `json-file` changes bytes that are not UTF-8 and has no limit. Podman knows only its own drivers.
      ...(!context.podman && {
        LogConfig: {
          Type: 'local',
          // Compressing output that is soon deleted would take CPU from jobs.
          Config: { 'max-size': String(log.maxSize), 'max-file': String(log.maxFile), compress: 'false' },
        },
      }),
      // A file of the host, in which `own-log.ts` reads.
      ...(context.inside === true && { LogConfig: { Type: 'k8s-file', Config: { path: `${inEngine.folder}/${inEngine.log}` } } }),
      Mounts: [
        context.inside === true
          ? { Type: 'bind', Source: workspacePath, Target: workspacePath }
          : { Type: 'volume', Target: workspacePath, VolumeOptions: { Labels: owned } },
        ...recipe.mounts.map(({ host, container, readOnly }, at) => ({
          Type: 'bind',
          Source: spec.places?.[at] ?? host,
          Target: container,
          ReadOnly: readOnly,
        })),
      ],
      Tmpfs: { ...(recipe.readOnly && { '/tmp': 'rw,exec,nosuid,nodev,mode=1777' }), ...recipe.tmpfs },
      ReadonlyRootfs: recipe.readOnly,
      ...(spec.cpuset !== undefined && { CpusetCpus: spec.cpuset }),
      ...(recipe.cpus !== null && { NanoCpus: Math.round(recipe.cpus * 1e9) }),
      // No swap on top: a job over its memory is ended instead of slowing down all others.
      ...(recipe.memory !== null && { Memory: recipe.memory, MemorySwap: recipe.memory }),
      // Podman sets its own limit if none is given.
      PidsLimit: recipe.pids ?? -1,
      ...(recipe.shmSize !== null && { ShmSize: recipe.shmSize }),
      Ulimits: ulimitsOf(recipe, grant.openFiles),
      OomScoreAdj: recipe.oomScoreAdj,
      CapAdd: [...recipe.capAdd],
      // With AUDIT_WRITE a job's root writes lines of its own into the audit log, and so on the console, of the host.
      CapDrop: ['NET_RAW', 'MKNOD', 'AUDIT_WRITE'].filter(
        (name) => !recipe.capAdd.some((added) => added.replace(/^CAP_/i, '').toUpperCase() === name),
      ),
      Privileged: recipe.unsafe.privileged,
      ...(recipe.unsafe.pidHost && { PidMode: 'host' }),
      SecurityOpt: recipe.unsafe.seccompUnconfined ? ['seccomp=unconfined'] : [],
      ...grant.host,
      // Last: nothing may take its place.
      ...(recipe.ociRuntime !== undefined && { Runtime: recipe.ociRuntime }),
    },
  };
}

/** A part of PATH that no image has: behind it is what the job does not get. */
const extra = ':/bin/./';
/** The PATH as the image or the pool has it. */
const ownPath = `PATH=\${PATH%${extra}}`;

function environment({ recipe }: SandboxSpec, { grant: { defaults, env }, imagePath }: CreateContext): string[] {
  const variables: Record<string, string> = { ...defaults, ...recipe.env };
  const path = variables.PATH ?? imagePath;
  // The Engine looks for the gate's "sh" there.
  if (path !== null && !path.split(':').includes('/bin')) variables.PATH = path + extra;
  for (const { variable, container } of recipe.mounts) if (variable !== null) variables[variable] = container;
  return Object.entries({ ...variables, ...env }).map(([name, value]) => `${name}=${value}`);
}

/** Limits of processes. `openFiles`: what the devices need; null: nothing. */
export function ulimitsOf(recipe: Pick<Recipe, 'ulimits'>, openFiles: number | null) {
  const given = recipe.ulimits.map(({ name, soft, hard }) => ({ Name: name, Soft: soft, Hard: hard }));
  // The kernel writes a core dump to a path of the host, mostly on its own disk, with the memory of the job.
  const own = [
    { Name: 'core', Soft: 0, Hard: 0 },
    ...(openFiles === null ? [] : [{ Name: 'nofile', Soft: openFiles, Hard: openFiles }]),
  ];
  return [...given, ...own.filter(({ Name }) => given.every((one) => one.Name !== Name))];
}
