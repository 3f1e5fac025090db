/** What the process runtime found on this host and was told; settled once, when it is created. */
import type { Clock } from '../../core/clock.ts';
import type { Cgroups } from './cgroup.ts';
import type { Layout } from './folder.ts';

export interface Host {
  readonly clock: Clock;
  /** Id of this installation. */
  readonly owner: string;
  readonly at: Layout;
  readonly mode: 'bubblewrap' | 'plain';
  /** Why that mode: one sentence. */
  readonly why: string;
  readonly root: boolean;
  readonly boot: string;
  /** Bubblewrap's options for what sandboxes see of the host. */
  readonly mounts: readonly string[];
  /** System calls that jobs may not make, for the kernel; null where nothing here puts a job under it. */
  readonly filter: Uint8Array | null;
  /** What holds the number of a job's processes; null where nothing does. */
  readonly processLimit: 'cgroup' | 'rlimit' | null;
  readonly cgroups: Cgroups;
  /** Descriptors that the manager was started with and that would be handed on to every job. */
  readonly inherited: readonly number[];
  /** Folder in which all managers of the host note the users they gave to agents. */
  readonly uidClaims: string;
  /** Where the host's device nodes lie: `/dev`. */
  readonly deviceDir: string;
  /** Holds jobs' folders when they run as another user and nothing can be mounted for them; others must be able to pass above it. */
  readonly openDir: string;
  /** Bytes kept of each output stream of an agent until they are read, the newest; default 128 MiB. */
  readonly outputLimit: number;
}
