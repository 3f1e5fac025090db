/** Keys of a pool whose runtime is Slurm. Each becomes an option of sbatch: https://slurm.schedmd.com/sbatch.html */
import { key } from './key.ts';

/** A name, or a list of names with commas, as Slurm writes them. */
const names = /^[\w.,:+@/[\]-]+$/;

export const slurmPoolKeys = {
  partition: key((v) => v.text('the name of a partition', names), undefined, {
    description: 'Partitions, the first that has room (`--partition`).',
    example: 'gpu',
    shown: "Slurm's own",
  }),
  account: key((v) => v.text('the name of an account', names), undefined, {
    description: 'Who is charged (`--account`).',
    example: 'lab',
    shown: "Slurm's own",
  }),
  qos: key((v) => v.text('the name of a quality of service', names), undefined, {
    description: 'Quality of service (`--qos`).',
    example: 'normal',
    shown: "Slurm's own",
  }),
  reservation: key((v) => v.text('the name of a reservation', names), undefined, {
    description: 'Reservation (`--reservation`).',
    example: 'ci',
    shown: 'none',
  }),
  constraint: key((v) => v.text('features such as "a100&nvlink"', /^[\w.,:&|*()[\]!-]+$/), undefined, {
    description: 'Features that the node must have (`--constraint`).',
    example: '"a100&nvlink"',
    shown: 'none',
  }),
  nodelist: key((v) => v.text('names of nodes such as "n[1-4]"', names), undefined, {
    description: 'Nodes of which it gets one (`--nodelist`, with one node per agent).',
    example: '"n1"',
    shown: 'any',
  }),
  exclude: key((v) => v.text('names of nodes such as "n[1-4]"', names), undefined, {
    description: 'Nodes that it never gets (`--exclude`).',
    example: '"n[1-4]"',
    shown: 'none',
  }),
  time: key((v) => v.duration(60_000, '1m'), undefined, {
    description: 'After this time Slurm ends the agent, with its job (`--time`).',
    example: '6h',
    shown: '`timeout` of the pool and 10 minutes more, or what the partition allows',
  }),
  modules: key((v) => v.z.array(v.text('the name of a module', /^[\w.+/-]+$/)), [] as never[], {
    description: 'Environment modules that are loaded before the job (`module load`).',
    example: '[cuda/12.4]',
  }),
  sandbox: key((v) => v.oneOf(['bubblewrap', 'none']), 'bubblewrap', {
    description:
      'What keeps jobs apart on a node: bubblewrap, or nothing but the user. All jobs are of one user, so without it each can read and end the others.',
    example: 'none',
  }),
};
