/** What the Engine is asked to make for one sandbox. Pure: the same spec gives the same container. */
import { gateScript } from '../gate.ts';
import type { SandboxSpec } from '../runtime.ts';
import type { Grant } from './grants.ts';

/** Where a job finds its workspace: a volume, so that it can be written under a read-only root, too. */
export const workspacePath = '/workspace';

export const labels = {
  owner: 'onejob.owner',
  pool: 'onejob.pool',
  slot: 'onejob.slot',
  agent: 'onejob.agent',
  devices: 'onejob.devices',
  name: 'onejob.name',
  /** Boot id of the host; a container of another boot was ended by the reboot, whatever its exit code says. */
  boot: 'onejob.boot',
} as const;

export interface CreateContext {
  readonly owner: string;
  /** Null when the Engine is not on this host. */
  readonly bootId: string | null;
  /** Id of the image, so that what is made is what the fingerprint says, even if its tag moves meanwhile. */
  readonly imageId: string;
  /** What the Engine calls the network; `none` and `host` are its own words. */
  readonly network: string;
  readonly podman: boolean;
  readonly log: LogLimits;
  readonly grant: Grant;
}

/** How much output the Engine keeps per sandbox: what nobody has read yet beyond that is lost, never the job held up. */
export interface LogLimits {
  /** Bytes of one file, as the Engine writes it: about 30 more for each line. */
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

/** The body of `POST /containers/create` (Engine API 1.41 and later). */
export function createBody(spec: SandboxSpec, context: CreateContext) {
  const { recipe } = spec;
  const { grant } = context;
  const owned = { [labels.owner]: context.owner, [labels.agent]: spec.agent };
  const hasOwnName = context.network !== 'host';
  return {
    Image: context.imageId,
    // An image's own entrypoint, command and health check would run before, beside or instead of the gate.
    Entrypoint: ['sh', '-c', gateScript(spec.agent, grant.gate)],
    Cmd: [],
    Healthcheck: { Test: ['NONE'] },
    StopSignal: 'SIGTERM',
    ...(hasOwnName && { Hostname: hostName(spec.name) }),
    ...(recipe.user !== null && { User: recipe.user }),
    Env: environment(spec, grant),
    WorkingDir: workspacePath,
    Labels: {
      ...owned,
      [labels.pool]: spec.pool,
      [labels.slot]: spec.slot,
      [labels.name]: spec.name,
      [labels.devices]: spec.devices.map(({ uuid }) => uuid).join(','),
      ...(context.bootId !== null && { [labels.boot]: context.bootId }),
    },
    // Standard input stays open for a manager that comes later; output is read from the log, never attached to.
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
      // `json-file` turns bytes that are no UTF-8 into others, and has no limit of its own. Podman knows only its own drivers.
      ...(!context.podman && {
        LogConfig: {
          Type: 'local',
          // Compressing what is thrown away soon would take the CPU from jobs.
          Config: { 'max-size': String(context.log.maxSize), 'max-file': String(context.log.maxFile), compress: 'false' },
        },
      }),
      Mounts: [
        { Type: 'volume', Target: workspacePath, VolumeOptions: { Labels: owned } },
        ...recipe.mounts.map(({ host, container, readOnly }) => ({
          Type: 'bind',
          Source: host,
          Target: container,
          ReadOnly: readOnly,
        })),
      ],
      Tmpfs: { ...(recipe.readOnly && { '/tmp': 'rw,exec,nosuid,nodev,mode=1777' }), ...recipe.tmpfs },
      ReadonlyRootfs: recipe.readOnly,
      ...(spec.cpuset !== undefined && { CpusetCpus: spec.cpuset }),
      ...(recipe.cpus !== null && { NanoCpus: Math.round(recipe.cpus * 1e9) }),
      // The same limit with swap as without: a job over its memory is ended, not slowed down together with all others.
      ...(recipe.memory !== null && { Memory: recipe.memory, MemorySwap: recipe.memory }),
      // Podman has a limit of its own where none is given.
      PidsLimit: recipe.pids ?? -1,
      ...(recipe.shmSize !== null && { ShmSize: recipe.shmSize }),
      Ulimits: ulimits(spec, grant),
      OomScoreAdj: recipe.oomScoreAdj,
      CapAdd: [...recipe.capAdd],
      CapDrop: ['NET_RAW', 'MKNOD'].filter(
        (name) => !recipe.capAdd.some((added) => added.replace(/^CAP_/i, '').toUpperCase() === name),
      ),
      Privileged: recipe.unsafe.privileged,
      ...(recipe.unsafe.pidHost && { PidMode: 'host' }),
      SecurityOpt: recipe.unsafe.seccompUnconfined ? ['seccomp=unconfined'] : [],
      ...grant.host,
    },
  };
}

function environment({ recipe }: SandboxSpec, { defaults, env }: Grant): string[] {
  const variables: Record<string, string> = { ...defaults, ...recipe.env };
  for (const { variable, container } of recipe.mounts) if (variable !== null) variables[variable] = container;
  return Object.entries({ ...variables, ...env }).map(([name, value]) => `${name}=${value}`);
}

function ulimits({ recipe }: SandboxSpec, { openFiles }: Grant) {
  const given = recipe.ulimits.map(({ name, soft, hard }) => ({ Name: name, Soft: soft, Hard: hard }));
  // A core goes where the host's kernel says: mostly to the host's own disk, with what the job had in memory.
  const own = [
    { Name: 'core', Soft: 0, Hard: 0 },
    ...(openFiles === null ? [] : [{ Name: 'nofile', Soft: openFiles, Hard: openFiles }]),
  ];
  return [...given, ...own.filter(({ Name }) => given.every((one) => one.Name !== Name))];
}
