/** What config holds of a runtime of type slurm, and of its pools. */
import type { RuntimeConfig } from '../../config/config.ts';
import { slurmPoolKeys } from '../../config/keys.ts';
import { complete, key, type WrittenKeys } from '../../schema/key.ts';

export const slurmKeys = {
  folder: key((v) => v.absolute, null, {
    description:
      'A folder on a file system that this host and all nodes share, for the files of agents: their workspace, output and exit code. onejob makes it. The state directory is another one, on a local disk. Without a shared folder, agents have theirs on their node.',
    example: '/shared/onejob',
    shown: 'none',
  }),
  node_folder: key((v) => v.absolute, '/tmp', {
    description: 'Without `folder`: where agents have their files on their node.',
    example: '/scratch',
  }),
  path: key((v) => v.absolute, null, {
    description: "Where Slurm's commands are (`sbatch`, `squeue`, `srun`, `scancel`).",
    example: '/opt/slurm/bin',
    shown: 'on the `PATH`',
  }),
  conf: key((v) => v.absolute, null, {
    description: 'The file that tells the commands which cluster it is (`SLURM_CONF`).',
    example: '/etc/slurm/slurm.conf',
    shown: "the commands' own",
  }),
  address: key((v) => v.ipAddress, null, {
    description:
      'Address of this host at which the nodes reach it. Agents of CI services call onejob there, encrypted, at this port, or without one at a port that onejob chooses and `doctor` names. Without it: the only IPv4 address of this host.',
    example: '10.0.0.1:7443',
    shown: 'the only one',
  }),
  poll: key((v) => v.duration(1000, '1s'), 2_000, {
    description:
      'How often `squeue` is asked, once for all agents, while any of them waits or ends. Otherwise it is asked every 15 s.',
    example: '5s',
  }),
};

export interface SlurmConfig extends RuntimeConfig {
  readonly type: 'slurm';
  /** null: nothing is shared. */
  readonly folder: string | null;
  readonly nodeFolder: string;
  readonly path: string | null;
  readonly conf: string | null;
  /** IP address of this host, as the nodes reach it, and the port for their calls if one is given; null: the only one. */
  readonly address: string | null;
  /** ms */
  readonly poll: number;
}

/** The keys of a pool, complete. */
export type SlurmPool = ReturnType<typeof poolOf>;

export function poolOf(written: WrittenKeys<typeof slurmPoolKeys>) {
  return complete(slurmPoolKeys, written);
}

export type SandboxKind = SlurmPool['sandbox'];

/** Whether jobs of one user cannot see each other: with pyxis they share the processes of the node. */
export function keepsApart(sandbox: SandboxKind): boolean {
  return sandbox !== 'none' && sandbox !== 'pyxis';
}

/** Whether a sandbox is made from an image. */
export function isFromImage(sandbox: SandboxKind): boolean {
  return sandbox === 'apptainer' || sandbox === 'podman' || sandbox === 'pyxis';
}
