/**
 * The runtime axis: turns a recipe into a sandbox that waits at the gate, and lets one script in.
 *
 * Every method is idempotent for its agent id, may be called again after a crash, and throws `OnejobError` with `retry` set. A
 * runtime that cannot be reached throws; it never answers "nothing there" when it could not look (S6). It labels everything it
 * creates with the owner and never touches anything else (S4).
 */
import type { Readable, Writable } from 'node:stream';
import type { Finding } from '../base/finding.ts';
import type { AgentId, Exit } from '../core/slot.ts';
import type { Device } from '../gpu/inventory.ts';
import type { DiskRoom } from '../system/disk-room.ts';

/** A host path in the sandbox. `variable`: an environment variable for the container path. */
export interface Mount {
  readonly host: string;
  readonly container: string;
  readonly readOnly: boolean;
  readonly variable: string | null;
  /** Set for a cache: its name if onejob keeps the folder, a null name if `host` is the owner's own folder. */
  readonly cache: { readonly name: string | null } | null;
  /** For a volume of a job: `host` without links, as it was checked. */
  readonly real?: string;
  /** For a volume of a person's job: folders of which one must have it, wherever it leads. */
  readonly within?: readonly string[];
  /** A program of onejob on this host, which a runtime brings to where its sandboxes are. */
  readonly program?: true;
}

/** How to ask for NVIDIA's devices: `auto` depends on what the Engine reports. */
export type GrantWay = 'auto' | 'request' | 'cdi' | 'runtime';

/** Uses of NVIDIA's driver in addition to computing and nvidia-smi. */
export type DriverCapability = 'graphics' | 'video' | 'display';

/** What a sandbox needs where an engine chooses the place. */
export interface EngineWants {
  /** GPUs of one node. */
  readonly gpus: number;
  /** The name that the engine has for the kind of GPU; null: any. */
  readonly model: string | null;
  /** Whether it is made from an image. */
  readonly images: boolean;
  /** Whether it may see folders of its node, by their path. */
  readonly folders: boolean;
  /** ms that it may exist, so that it ends even if nobody removes it; null: as long as the engine allows. */
  readonly lifetime: number | null;
  /** The keys that the pool has for this type of runtime. */
  readonly keys: Readonly<Record<string, unknown>>;
}

/** What sandboxes of a pool are made from. Pure data: the same recipe gives the same kind of sandbox. */
export interface Recipe {
  /** Image reference; null for runtimes without images. */
  readonly image: string | null;
  /** What its engine is asked for; absent: this host places the sandbox and chooses its devices. */
  readonly wants?: EngineWants;
  /** Id of the image to use, whatever its name means now. It is not pulled. Default: what the name means. */
  readonly imageId?: string;
  readonly pull: 'missing' | 'always' | 'never';
  /** Set for an image that a job chose without leave for its registry: it must be one that everybody may pull. */
  readonly publicOnly?: true;
  /** Environment of the sandbox, and so of every job in it: never a secret. */
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
  readonly ulimits: readonly { readonly name: string; readonly soft: number; readonly hard: number }[];
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
  /** Of the Engine's OCI runtimes; absent: its default. */
  readonly ociRuntime?: string;
  /** How its devices are granted. `numa`: only with CPUs of their NUMA nodes. */
  readonly grant: { readonly way: GrantWay; readonly capabilities: readonly DriverCapability[]; readonly numa: boolean };
  /**
   * An engine of its own, with which jobs run containers. `image`: of that engine; null until onejob has built it. `ready`: what it
   * has without pulling; `logins`: folder with credentials for that, null for the usual ones; `learn`: and what jobs have pulled.
   * `mirrors`: of docker.io. `untrusted`: with ids that no trusted job has.
   */
  readonly containers?: {
    readonly image: string | null;
    readonly ready?: {
      readonly images: readonly string[];
      readonly pull: Recipe['pull'];
      readonly logins: string | null;
      readonly learn?: Learn;
    };
    readonly mirrors?: readonly string[];
    readonly untrusted?: true;
  };
  readonly unsafe: { readonly privileged: boolean; readonly pidHost: boolean; readonly seccompUnconfined: boolean };
}

/** Images that jobs may teach their pool. */
export interface Learn {
  /** Bytes of all of them. */
  readonly limit: number;
  /** Patterns of their names, with registry. */
  readonly pull: readonly string[];
}

/** The fields of a leased device that a grant needs. */
export type LeasedDevice = Pick<Device, 'uuid' | 'kind' | 'vendor' | 'index' | 'minor' | 'pciId' | 'parent' | 'mig'>;

/** Where an engine has put a sandbox. */
export interface Granted {
  /** Name of the node. */
  readonly place: string;
  /** The engine's names of its devices there, such as `0,3`; empty: none, or not known. */
  readonly devices: string;
}

export interface SandboxSpec {
  readonly agent: AgentId;
  readonly pool: string;
  /** Slot key, `<pool>/<n>`. */
  readonly slot: string;
  /** The agent's name from the pool's template; also the sandbox's host name. */
  readonly name: string;
  readonly recipe: Recipe;
  /** For each mount of the recipe its host path without links, as it was checked: nothing else may be mounted. */
  readonly places?: readonly string[];
  /** Exactly these, checked from evidence before the gate is ready. Empty: none at all, even if its image asks for some. */
  readonly devices: readonly LeasedDevice[];
  /**
   * A script that runs in it before its gate: the log shows its answer there (`answering` in `gate.ts`). Only for a runtime whose
   * engine places sandboxes; the others are asked with a sandbox for that.
   */
  readonly look?: string;
  /** Ports of this host that it must reach, for a sandbox that nobody asks for with `hostAddress`. */
  readonly doors?: readonly number[];
  /** The only CPUs that it may use, in the kernel's format (`0-15,32-47`). Default: all. */
  readonly cpuset?: string;
}

/** `fingerprint`: what a sandbox was made from (S11). `imageId`: its image, if it was made from one. */
export interface Made {
  readonly fingerprint: string;
  readonly imageId?: string;
}

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

/** Some output of a sandbox, with its markers. */
export interface LogChunk {
  readonly stream: 'stdout' | 'stderr';
  /** Nanoseconds since the epoch, as the runtime stamped it; never decreasing per stream. */
  readonly time: bigint;
  readonly bytes: Uint8Array;
  /** Output of unknown length may have been deleted before this chunk, before it could be counted. */
  readonly gap?: true;
  /** Bytes of this stream before this chunk that were deleted before they could be kept. Omitted: none that were counted. */
  readonly missing?: number;
}

/** How much of a sandbox's output is kept: enough for a runtime to continue without a gap or a repeat. */
export interface LogPosition {
  /** Time stamp of the last kept chunk; 0n if there is none. */
  readonly time: bigint;
  /** Number of kept chunks with that time stamp. */
  readonly atTime: number;
  /** Bytes of each stream that were kept, left out or counted: with holes at least, without exactly. */
  readonly stdout: number;
  readonly stderr: number;
  /** Number of places where output of unknown length may be missing. */
  readonly holes: number;
}

export const start: LogPosition = { time: 0n, atTime: 0, stdout: 0, stderr: 0, holes: 0 };

/**
 * The position after one more chunk. The streams are read separately, so a chunk may be older than the newest. It does not change
 * the time: output since the newest never includes it again.
 */
export function advance(position: LogPosition, chunk: LogChunk): LogPosition {
  const isLater = chunk.time > position.time;
  const more = (chunk.missing ?? 0) + chunk.bytes.length;
  return {
    time: isLater ? chunk.time : position.time,
    atTime: isLater ? 1 : position.atTime + (chunk.time === position.time ? 1 : 0),
    stdout: position.stdout + (chunk.stream === 'stdout' ? more : 0),
    stderr: position.stderr + (chunk.stream === 'stderr' ? more : 0),
    holes: position.holes + (chunk.gap === true ? 1 : 0),
  };
}

/** What other code may ask about a runtime instead of its name. */
export interface RuntimeCapabilities {
  /** A sentence about the isolation of jobs if it is weaker than a container's; else null. */
  readonly weaker: string | null;
  /** For pools with devices: a sentence about who looks whether these are clean, if onejob does not prove it. */
  readonly unproved?: string;
  readonly images: boolean;
  /** Why sandboxes of the network `default` are in the network of the host, as a sentence; null: they are not. */
  readonly hostNetwork: string | null;
  /**
   * Who places sandboxes and chooses their devices. `engine`: `prepare` may wait for hours until there is room, a restarted manager goes
   * on with it, and `Recipe.wants` says what to ask for.
   */
  readonly grants: 'host' | 'engine';
  /** Whether secrets of a CI service may enter, because S8 holds. */
  readonly holdsSecrets: boolean;
  /** Its sandboxes are on another host, and outlive a restart of this one. */
  readonly elsewhere?: boolean;
  /** Its engine does not tell standard error from standard output: all of it is standard output. */
  readonly oneStream?: boolean;
  /** Path of the workspace for the job. Without mounts it differs per agent. */
  workspace(agent: AgentId): string;
}

/** Columns and rows. */
export interface TerminalSize {
  readonly columns: number;
  readonly rows: number;
}

/** A program to run in the files of an ended sandbox. */
export interface ShellSpec {
  /** The recipe and names of the ended sandbox, without devices. `agent` is the id of the shell's own sandbox. */
  readonly spec: SandboxSpec;
  /** null: an interactive shell. */
  readonly command: readonly string[] | null;
  /** null: no terminal. `term`: what its `TERM` says. */
  readonly terminal: (TerminalSize & { readonly term: string }) | null;
}

export interface RunningShell {
  readonly stdin: Writable;
  /** With a terminal there is only standard output. It ends with the program. */
  readonly output: AsyncIterable<Pick<LogChunk, 'stream' | 'bytes'>>;
  /** Without a terminal it does nothing. Never fails. */
  resize(size: TerminalSize): void;
  /** The exit code, once the output was read; the reason of the signal if that ended it. */
  readonly ended: Promise<number>;
}

/** Keeps the files of ended sandboxes, so that people can look at them. */
export interface Holding {
  /**
   * Ends everything that runs in the sandbox, shells too, and keeps its files until `release`. Idempotent. False if there is no
   * such sandbox.
   */
  hold(agent: AgentId): Promise<boolean>;
  /**
   * Runs a program in the files of a held sandbox: without its devices, and without anything that its script had, such as the
   * variables of its job. Changes of the workspace stay; the runtime says what becomes of others. When `signal` aborts, it is ended;
   * `ended` settles once nothing is left of it.
   * @throws OnejobError E_SANDBOX_LOST if there is no such sandbox, or, with `retry`, if only a copy of its files has vanished; E_SHELL
   * if there is no terminal for it
   */
  shell(agent: AgentId, shell: ShellSpec, signal: AbortSignal): Promise<RunningShell>;
  /** Removes a held sandbox with what shells have left. An unknown one is not an error. */
  release(agent: AgentId): Promise<void>;
  /** Removes what shells of agents that are not `held` have left. It asks about each at the time it would remove something. */
  sweep(held: Pick<ReadonlySet<AgentId>, 'has'>, signal: AbortSignal): Promise<void>;
}

export interface Runtime {
  readonly name: string;
  readonly capabilities: RuntimeCapabilities;

  /** Ids in the names of its processes' control groups, in addition to the agent's own. */
  groupsOf(agent: AgentId): readonly string[];

  /** Findings for `doctor`. Leaves nothing behind. */
  check(signal: AbortSignal): Promise<Finding[]>;

  /** What a sandbox of this recipe would be made from now (S11); null if unknown, e.g. before the image is pulled. */
  fingerprint(recipe: Recipe, signal: AbortSignal): Promise<string | null>;

  /** Id of the recipe's image; null if it is not there. Absent: sandboxes are not made from images. */
  imageId?(recipe: Recipe, signal: AbortSignal): Promise<string | null>;

  /** Why the recipe's image cannot be pulled now; null if it can, or there is none. Pulls nothing. */
  imageTrouble?(recipe: Recipe, signal: AbortSignal): Promise<string | null>;

  /**
   * Creates and starts the sandbox, and pulls its image if the policy says so. The log shows the gate's ready marker. `chosen`: called
   * with the result once the image is there, before the sandbox is, which may end before this returns. Where sandboxes are not made
   * from images it is not called.
   */
  prepare(spec: SandboxSpec, progress: (line: string) => void, signal: AbortSignal, chosen?: (made: Made) => void): Promise<Made>;

  /** Unpacks `files` (a tar stream) in the workspace, owned by the agent's user. Only before the release. */
  putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void>;

  /** Writes the frame to the gate's standard input. Resolves when it was handed over; the log shows the released marker. */
  release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void>;

  /**
   * The workspace as a tar stream with relative entry names (`./a/b`), also after the exit. With `only`, entries with other names
   * at the top may be left out, links are not followed, missing names are skipped, and names may lack the `./`.
   */
  getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable>;

  /** One folder of the workspace in the same way, named without a slash; null if it does not exist or is a link. */
  getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null>;

  /**
   * Runs a program in a sandbox whose script runs: with its devices, limits, user and recipe's environment, in its workspace. Its output
   * is for the caller only. When `signal` aborts, or this process ends, it is not killed: its input ends, and it must end then. It ends
   * with its sandbox, as if by KILL (137). Omitted: not possible.
   * @throws OnejobError E_SANDBOX_LOST if there is no such sandbox, or it does not run
   */
  exec?(agent: AgentId, command: readonly string[], signal: AbortSignal): Promise<RunningShell>;

  /** TERM asks the job to end, KILL ends the whole tree. An ended or unknown sandbox is not an error. */
  signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void>;

  /** Ends and removes the sandbox and everything that was created for it. An unknown one is not an error. */
  remove(agent: AgentId): Promise<void>;

  /** Every sandbox of this owner, for any slot, dead or alive. */
  list(signal: AbortSignal): Promise<SandboxSeen[]>;

  /** Ends when `signal` aborts. Reconnects by itself, with `lost` and `connected`. Exits are reported at least once. */
  events(signal: AbortSignal): AsyncIterable<RuntimeEvent>;

  /** Where an engine has put the sandbox; null: nowhere yet. Omitted: it is on this host. */
  placeOf?(agent: AgentId): Granted | null;

  /** Output after `from`, live until the sandbox has ended and everything was read. Reconnects by itself. */
  logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncIterable<LogChunk[]>;

  /**
   * The address at which sandboxes on a recipe's network reach `port` of this host (TCP, 1 to 65535). Opens what the runtime
   * itself keeps closed: the rules of the network `internet`, until `sweep`; where each sandbox has a network of its own, the port
   * in that of `agent`. With a port where sandboxes reach no other (`10.0.0.1:7443`). Idempotent. A network that somebody removed is created again and may then have another address.
   * @throws OnejobError E_NO_DOOR if there is no way: network `none`, an Engine on another host, a network without a gateway
   * here; E_NETWORK_UNGUARDED as `prepare` does
   */
  hostAddress(network: string, port: number, signal: AbortSignal, agent?: AgentId): Promise<string>;

  /** Removes networks and the like that this owner's sandboxes share, if none is left. */
  sweep(signal: AbortSignal): Promise<void>;

  /** Omitted: it cannot keep anything. */
  readonly holding?: Holding;

  /** Closes its connections, which would keep the process from ending. Sandboxes stay as they are. */
  close?(): void;

  /**
   * Bytes on disk of an agent's own files: its workspace and what it writes elsewhere, without mounts, and what open shells in it
   * have written. Takes as long as looking at all of them; null if unknown, or not known within a minute.
   */
  usage?(agent: AgentId, signal: AbortSignal): Promise<number | null>;

  /** The disk that holds sandboxes and how much of it is free; null if unknown. */
  disk(signal: AbortSignal): Promise<DiskRoom | null>;
}
