/**
 * The runtime axis: turns a recipe into a sandbox that waits at the gate, and lets one script in.
 *
 * Every method is idempotent for its agent id, may be called again after a crash, and throws `OnejobError` with `retry`
 * set. A runtime that cannot be reached throws; it never answers "nothing there" when it could not look (S6). It labels
 * everything it creates with the owner and never touches what it did not create (S4).
 */

import type { Readable } from 'node:stream';
import type { AgentId, Exit } from '../core/slot.ts';
import type { Finding } from '../finding.ts';
import type { Device } from '../gpu/inventory.ts';

/** A host path in the sandbox. `variable`, when set, is an environment variable that holds the container path. */
export interface Mount {
  readonly host: string;
  readonly container: string;
  readonly readOnly: boolean;
  readonly variable: string | null;
  /** Of a cache: its name where onejob keeps the folder itself, null where `host` is the owner's own. null: no cache. */
  readonly cache: { readonly name: string | null } | null;
}

export interface Ulimit {
  readonly name: string;
  readonly soft: number;
  readonly hard: number;
}

/** How NVIDIA's devices are asked for: as it follows from what the Engine reports, or in one of the ways there are. */
export type GrantWay = 'auto' | 'request' | 'cdi' | 'runtime';

/** What NVIDIA's driver may be used for beside computing and nvidia-smi. */
export type DriverCapability = 'graphics' | 'video' | 'display';

/** What sandboxes of a pool are made from. Pure data: the same recipe gives the same kind of sandbox. */
export interface Recipe {
  /** Image reference; null on runtimes without images. */
  readonly image: string | null;
  readonly pull: 'missing' | 'always' | 'never';
  /** Environment of the sandbox, so of every job in it: never a secret. */
  readonly env: Readonly<Record<string, string>>;
  readonly mounts: readonly Mount[];
  /** CPUs the sandbox may use; null for no limit. */
  readonly cpus: number | null;
  /** Bytes; null for no limit. */
  readonly memory: number | null;
  /** Processes and threads at a time; null for no limit. */
  readonly pids: number | null;
  /** Bytes of /dev/shm; null for the runtime's default. */
  readonly shmSize: number | null;
  readonly ulimits: readonly Ulimit[];
  /** `default`, `internet`, `none`, `host`, or the name of an existing network. */
  readonly network: string;
  /** `name`, `uid` or `uid:gid`; null for the image's own. */
  readonly user: string | null;
  /** Read-only root file system; /workspace and tmpfs stay writable. */
  readonly readOnly: boolean;
  /** Container path → mount options, such as `size=64m`. */
  readonly tmpfs: Readonly<Record<string, string>>;
  readonly capAdd: readonly string[];
  readonly oomScoreAdj: number;
  /** How its devices are given to it; means nothing without devices. `numa`: only with CPUs of the NUMA nodes they hang on. */
  readonly grant: { readonly way: GrantWay; readonly capabilities: readonly DriverCapability[]; readonly numa: boolean };
  readonly unsafe: { readonly privileged: boolean; readonly pidHost: boolean; readonly seccompUnconfined: boolean };
}

/** A leased device, as far as granting it needs to know it. */
export type LeasedDevice = Pick<Device, 'uuid' | 'kind' | 'vendor' | 'index' | 'minor' | 'pciId' | 'parent' | 'mig'>;

/** One sandbox to be made. */
export interface SandboxSpec {
  readonly agent: AgentId;
  readonly pool: string;
  /** Slot key, `<pool>/<n>`. */
  readonly slot: string;
  /** The agent's name from the pool's template; also the sandbox's host name. */
  readonly name: string;
  readonly recipe: Recipe;
  /** Exactly these, checked from evidence before the gate is ready; empty: none at all, whatever its image asks for. */
  readonly devices: readonly LeasedDevice[];
  /** The only CPUs that it may run on, as the kernel lists them (`0-15,32-47`); left out for all. */
  readonly cpuset?: string;
}

/** A sandbox as the runtime sees it; `exited` carries how it ended. */
export interface SandboxSeen {
  readonly agent: AgentId;
  readonly pool: string;
  readonly slot: string;
  readonly state: { readonly kind: 'created' } | { readonly kind: 'running' } | { readonly kind: 'exited'; readonly exit: Exit };
}

/** `lost` says that events may have been missed: look at everything again with `list`. */
export type RuntimeEvent =
  | { readonly kind: 'exited'; readonly agent: AgentId; readonly exit: Exit }
  | { readonly kind: 'removed'; readonly agent: AgentId }
  | { readonly kind: 'lost'; readonly failure: string }
  | { readonly kind: 'connected' };

/** Some output of a sandbox, markers still in it. */
export interface LogChunk {
  readonly stream: 'stdout' | 'stderr';
  /** Nanoseconds since the epoch, as the runtime stamped it; never decreasing per stream. */
  readonly time: bigint;
  readonly bytes: Uint8Array;
  /** Output before this chunk was thrown away before it could be read; the caller says so in one line. */
  readonly gap?: true;
  /** So many bytes of this stream before this chunk were thrown away before they could be read; left out: none, or nobody knows. */
  readonly missing?: number;
}

/** How much of a sandbox's output is already kept: enough for either runtime to go on without a hole or a repeat. */
export interface LogPosition {
  /** Time stamp of the last chunk kept; 0n when none is. */
  readonly time: bigint;
  /** Chunks kept that carry that time stamp. */
  readonly atTime: number;
  /** Bytes kept per stream. */
  readonly stdout: number;
  readonly stderr: number;
}

export const start: LogPosition = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };

/**
 * The position after one more chunk was kept. A chunk older than the newest (the streams are read apart, so one may be kept late)
 * leaves the time alone: asking for output since the newest never brings it again.
 */
export function advance(position: LogPosition, chunk: LogChunk): LogPosition {
  const isLater = chunk.time > position.time;
  const more = (chunk.missing ?? 0) + chunk.bytes.length;
  return {
    time: isLater ? chunk.time : position.time,
    atTime: isLater ? 1 : position.atTime + (chunk.time === position.time ? 1 : 0),
    stdout: position.stdout + (chunk.stream === 'stdout' ? more : 0),
    stderr: position.stderr + (chunk.stream === 'stderr' ? more : 0),
  };
}

/** What the core and the faces may ask about a runtime instead of its name. */
export interface RuntimeCapabilities {
  /** One sentence on how well jobs are kept apart, shown when it is weaker than a container's; else null. */
  readonly weaker: string | null;
  readonly images: boolean;
  /** Whether secrets of a CI service may enter: S8 holds. */
  readonly holdsSecrets: boolean;
  /** Path of the workspace as the job sees it. For a runtime without mounts it differs per agent. */
  workspace(agent: AgentId): string;
}

export interface Runtime {
  readonly name: string;
  readonly capabilities: RuntimeCapabilities;

  /** Ids, beside the agent's own, in the control groups of its processes; empty where there are none or none is known. */
  groupsOf(agent: AgentId): readonly string[];

  /** Findings for `doctor`; creates nothing that stays. */
  check(signal: AbortSignal): Promise<Finding[]>;

  /** What a sandbox of this recipe would be made from now (S11); null when that cannot be known yet, e.g. image not pulled. */
  fingerprint(recipe: Recipe, signal: AbortSignal): Promise<string | null>;

  /** Why the recipe's image cannot be had right now; null when it can, or there is none. Fetches nothing. Left out without images. */
  imageTrouble?(recipe: Recipe, signal: AbortSignal): Promise<string | null>;

  /** Creates and starts the sandbox, pulling its image if the policy says so. The gate's ready marker comes by the log. */
  prepare(spec: SandboxSpec, progress: (line: string) => void, signal: AbortSignal): Promise<{ fingerprint: string }>;

  /** Puts `files` (a tar stream) into the workspace, owned by the agent's user. Only before the release. */
  putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void>;

  /** Writes the frame to the gate's standard input. Resolves when it was handed over; the released marker comes by the log. */
  release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void>;

  /**
   * The workspace as a tar stream whose entry names are relative to it (`./a/b`), also after the exit. With `only` it need
   * not hold more than what has these names at its top, links not followed; those that are missing are left out, and names
   * may lack the `./`.
   */
  getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable>;

  /** One folder of the workspace likewise, named without a slash; null when there is none, and for a link, wherever it leads. */
  getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null>;

  /** TERM asks the job to end, KILL ends the whole tree. An ended or unknown sandbox is no error. */
  signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void>;

  /** Ends and removes the sandbox and everything made for it. Unknown is no error. */
  remove(agent: AgentId): Promise<void>;

  /** Every sandbox of this owner, whoever's slot it was for, dead or alive. */
  list(signal: AbortSignal): Promise<SandboxSeen[]>;

  /** Ends when `signal` aborts; reconnects by itself, saying `lost` and `connected`. Exits are reported at least once. */
  events(signal: AbortSignal): AsyncIterable<RuntimeEvent>;

  /** Output after `from`, live until the sandbox has ended and all was read, then returns. Reconnects by itself. */
  logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncIterable<LogChunk[]>;

  /**
   * The address under which sandboxes on a recipe's network reach what listens on this host at `port` (TCP, 1 to 65535). Opens
   * what the runtime itself keeps closed (the rules of the network `internet`); that stays open until `sweep`.
   * Idempotent; a network that somebody removed is made anew and may have another address then.
   * @throws OnejobError E_NO_DOOR when there is no way: network `none`, an Engine that is not this host, a network without a
   * gateway here; E_NETWORK_UNGUARDED as `prepare` does
   */
  door(network: string, port: number, signal: AbortSignal): Promise<string>;

  /** Removes networks and the like that are shared by this owner's sandboxes, when none is left. */
  sweep(signal: AbortSignal): Promise<void>;

  /** Lets go of its connections, which would keep the process from its end. Sandboxes stay as they are. */
  close?(): void;

  /**
   * Bytes on disk that an agent's own files take: its workspace and what it writes elsewhere, without mounts. Takes as long as
   * it takes to look at all of them; null when nobody can tell, or not within a minute.
   */
  usage?(agent: AgentId, signal: AbortSignal): Promise<number | null>;

  /** Free share of the disk that holds sandboxes, 0 to 1, and what it is called; null when unknown. */
  disk(signal: AbortSignal): Promise<{ readonly path: string; readonly free: number } | null>;
}
