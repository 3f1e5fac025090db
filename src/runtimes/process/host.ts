/** What the process runtime found on this host and was told when it was created. It does not change. */
import type { Clock } from '../../core/clock.ts';
import type { Cgroups } from './cgroup.ts';
import type { Layout } from './folder.ts';

export interface Host {
  readonly clock: Clock;
  readonly owner: string;
  readonly at: Layout;
  readonly mode: 'bubblewrap' | 'plain';
  /** The reason for that mode, as a sentence. */
  readonly why: string;
  readonly root: boolean;
  readonly boot: string;
  /** Bubblewrap's options for the parts of the host that sandboxes see. */
  readonly mounts: readonly string[];
  /** Seccomp filter of system calls that jobs may not make; null if it cannot be applied here. */
  readonly filter: Uint8Array | null;
  /** What limits the number of a job's processes; null if nothing does. */
  readonly processLimit: 'cgroup' | 'rlimit' | null;
  readonly cgroups: Cgroups;
  /** Descriptors that the manager inherited and would pass on to every job. */
  readonly inherited: readonly number[];
  /** Folder in which all managers of the host record the users of their agents. */
  readonly uidClaims: string;
  /** Folder of the host's device nodes: `/dev`. */
  readonly deviceDir: string;
  /** Folder for jobs that run as another user without mounts. Others must be able to pass through its parents. */
  readonly openDir: string;
  /** Bytes of each output stream that are kept until they are read, the newest. Default 128 MiB. */
  readonly outputLimit: number;
}
