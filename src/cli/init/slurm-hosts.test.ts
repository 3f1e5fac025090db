/** What hosts say of themselves, and Slurm's files for them. */
import { describe, expect, it } from 'vitest';
import { clusterFiles, type HostLook, parseLook, typeOfCard } from './slurm-hosts.ts';

const answer = `name=alpha
sockets=2
cores=32
threads=2
memory=1056370960
card=NVIDIA A100-SXM4-40GB
card=NVIDIA A100-SXM4-40GB
card=NVIDIA H100 80GB HBM3
card=NVIDIA A100-SXM4-40GB
system=debian 13
slurm=24.11.5
end=yes
`;
const alpha = parseLook('lab@alpha.example.org', answer) as HostLook;
const plain: HostLook = { ...alpha, name: 'beta', address: 'beta', cards: [], sockets: 1, cores: 8, threads: 1, memory: 64_000 };

describe('a host', () => {
  it('is read from its answer', () => {
    expect(alpha).toMatchObject({ name: 'alpha', sockets: 2, cores: 32, threads: 2, memory: 1_031_612, slurm: '24.11.5' });
    expect(alpha.cards).toHaveLength(4);
  });

  it('with an incomplete answer is refused', () => {
    for (const text of [
      '',
      answer.replace('end=yes', ''),
      answer.replace('memory=1056370960', 'memory=?'),
      answer.replace('alpha', 'a b'),
    ])
      expect(parseLook('a', text)).toBeNull();
  });

  it.each([
    ['NVIDIA A100-SXM4-40GB', 'a100'],
    ['NVIDIA A100 80GB PCIe', 'a100'],
    ['NVIDIA H100 80GB HBM3', 'h100'],
    ['NVIDIA H200', 'h200'],
    ['Tesla V100-SXM2-16GB', 'v100'],
    ['NVIDIA GeForce RTX 4090', 'rtx4090'],
    ['NVIDIA RTX 6000 Ada Generation', 'rtx6000ada'],
    ['NVIDIA L4', 'l4'],
    ['?', 'gpu'],
  ])('has %s, which Slurm knows as %s', (name, type) => {
    expect(typeOfCard(name)).toBe(type);
  });
});

describe('the files for a cluster', () => {
  const files = clusterFiles({ hosts: [alpha, plain], folder: '/shared/onejob' });

  it('name each node with what it has, and leave memory to the system', () => {
    expect(files['slurm.conf']).toContain('SlurmctldHost=alpha(alpha.example.org)\n');
    expect(files['slurm.conf']).toContain(
      'NodeName=alpha Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 RealMemory=980000 Gres=gpu:a100:3,gpu:h100:1 State=UNKNOWN\n',
    );
    expect(files['slurm.conf']).toContain(
      'NodeName=beta Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=60800 State=UNKNOWN\n',
    );
    expect(files['slurm.conf']).toContain('PartitionName=gpu Nodes=alpha,beta ');
  });

  it('name each device once', () => {
    expect(files['gres.conf']?.split('\n').slice(1)).toEqual([
      'NodeName=alpha Name=gpu Type=a100 File=/dev/nvidia[0-1,3]',
      'NodeName=alpha Name=gpu Type=h100 File=/dev/nvidia2',
      '',
    ]);
    expect(files['cgroup.conf']).toContain('ConstrainDevices=yes');
  });

  it('have a config of onejob with a pool for each kind of card', () => {
    expect(files['config.yml']).toContain('a100: { runtime: cluster, agents: 6, devices: { count: 1, model: a100 }');
    expect(files['config.yml']).toContain('h100: { runtime: cluster, agents: 2,');
  });

  it('say the steps with the names that ssh knows', () => {
    expect(files['STEPS.md']).toContain('ssh lab@alpha.example.org apt-get install -y slurmctld slurm-client');
    expect(files['STEPS.md']).toContain('--conf-server alpha');
    expect(files['STEPS.md']).not.toContain('different systems');
  });
});
