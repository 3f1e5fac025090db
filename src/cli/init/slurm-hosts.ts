/** Hosts of a cluster to be: how they are looked at, and Slurm's files for them. Pure. */

/** What a host answers to `lookScript`. */
export interface HostLook {
  /** As Slurm will know it: its own short name. */
  readonly name: string;
  /** As ssh reaches it. */
  readonly address: string;
  readonly sockets: number;
  readonly cores: number;
  readonly threads: number;
  /** MiB of memory. */
  readonly memory: number;
  /** The name of each card, in the order of their nodes `/dev/nvidia0`, `/dev/nvidia1`, …. */
  readonly cards: readonly string[];
  /** Such as `debian 13`. */
  readonly system: string;
  /** Version of an installed slurmd; null: none. */
  readonly slurm: string | null;
}

/** For `sh` on a host. It changes nothing, and needs no root. */
export const lookScript = `
echo "name=$(uname -n | cut -d. -f1)"
lscpu 2>/dev/null | LC_ALL=C sed -n 's/^Socket(s): */sockets=/p; s/^Core(s) per socket: */cores=/p; s/^Thread(s) per core: */threads=/p'
sed -n 's/^MemTotal: *\\([0-9]*\\) kB/memory=\\1/p' /proc/meminfo
(nvidia-smi --query-gpu=index,name --format=csv,noheader 2>/dev/null || true) | sed 's/^[0-9]*, /card=/'
(. /etc/os-release && echo "system=$ID $VERSION_ID")
(slurmd -V 2>/dev/null || true) | sed 's/^slurm /slurm=/'
echo end=yes
`;

/** null: the answer is not whole. */
export function parseLook(address: string, text: string): HostLook | null {
  const lines = text.split('\n').flatMap((line) => {
    const [, key, value] = /^(\w+)=(.*)$/.exec(line) ?? [];
    return key === undefined || value === undefined ? [] : [[key, value.trim()] as const];
  });
  const one = (key: string): string | undefined => lines.find(([name]) => name === key)?.[1];
  const count = (key: string): number => Math.max(1, Number.parseInt(one(key) ?? '1', 10) || 1);
  const [name, memory] = [one('name'), Number(one('memory'))];
  if (name === undefined || !/^[\w-]+$/.test(name) || one('end') === undefined || !(memory > 0)) return null;
  return {
    name,
    address,
    sockets: count('sockets'),
    cores: count('cores'),
    threads: count('threads'),
    memory: Math.floor(memory / 1024),
    cards: lines.flatMap(([key, value]) => (key === 'card' ? [value] : [])),
    system: one('system') ?? 'unknown',
    slurm: one('slurm') ?? null,
  };
}

/** The type that Slurm knows a card by: `NVIDIA A100-SXM4-40GB` is `a100`, `NVIDIA GeForce RTX 4090` is `rtx4090`. */
export function typeOfCard(name: string): string {
  const [short = ''] = name
    .replace(/\b(NVIDIA|GeForce|Tesla|Quadro|AMD|Instinct|Generation)\b/gi, '')
    .split(/-SXM|-PCIE|\bPCIe\b|\b\d+ ?GB\b|-\d+C?$/i);
  const word = short.toLowerCase().replace(/[^a-z0-9]/g, '');
  return word === '' ? 'gpu' : word;
}

/** What the system itself needs: Slurm takes a node out of service that has less than it says. */
function memoryFor({ memory }: HostLook): number {
  return Math.floor((memory * 0.95) / 100) * 100;
}

function byType({ cards }: HostLook): [type: string, cards: number[]][] {
  const types = Map.groupBy(cards.keys(), (at) => typeOfCard(cards[at] ?? ''));
  return [...types];
}

/** `0-3,5` */
function ranges(numbers: readonly number[]): string {
  const parts: [number, number][] = [];
  for (const one of numbers) {
    const last = parts.at(-1);
    if (last !== undefined && last[1] === one - 1) last[1] = one;
    else parts.push([one, one]);
  }
  return parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`)).join(',');
}

function nodeLine(host: HostLook): string {
  const { name, sockets, cores, threads } = host;
  const gres = byType(host).map(([type, cards]) => `gpu:${type}:${cards.length}`);
  const cpus = `Sockets=${sockets} CoresPerSocket=${cores} ThreadsPerCore=${threads}`;
  return `NodeName=${name} ${cpus} RealMemory=${memoryFor(host)}${gres.length === 0 ? '' : ` Gres=${gres.join(',')}`} State=UNKNOWN`;
}

export interface ClusterPlan {
  /** The first is where slurmctld runs. */
  readonly hosts: readonly [HostLook, ...HostLook[]];
  /** Folder that all hosts share. */
  readonly folder: string;
}

/** The files, by name. Only the controller needs them: the nodes ask it for theirs. */
export function clusterFiles(plan: ClusterPlan): Readonly<Record<string, string>> {
  return {
    'slurm.conf': slurmConf(plan),
    'gres.conf': gresConf(plan),
    'cgroup.conf': cgroupConf,
    'config.yml': onejobConfig(plan),
    'STEPS.md': steps(plan),
  };
}

function slurmConf({ hosts }: ClusterPlan): string {
  const [first] = hosts;
  return `# Slurm for ${hosts.map(({ name }) => name).join(', ')}. Each key: https://slurm.schedmd.com/slurm.conf.html
ClusterName=lab
SlurmctldHost=${first.name}${first.address === first.name ? '' : `(${hostOf(first.address)})`}
AuthType=auth/munge
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
# The nodes get these files from the controller.
SlurmctldParameters=enable_configless
# A job has the cores, the memory and the GPUs that it asked for, and no others.
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=2000
# A batch job starts within a second, not three.
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=1
KillWait=10
MpiDefault=none
${hosts.map(nodeLine).join('\n')}
PartitionName=gpu Nodes=${hosts.map(({ name }) => name).join(',')} Default=YES MaxTime=INFINITE State=UP
`;
}

function gresConf({ hosts }: ClusterPlan): string {
  const lines = hosts.flatMap((host) =>
    byType(host).map(([type, cards]) => {
      const list = ranges(cards);
      return `NodeName=${host.name} Name=gpu Type=${type} File=/dev/nvidia${/^\d+$/.test(list) ? list : `[${list}]`}`;
    }),
  );
  return `# Which device is which GPU. https://slurm.schedmd.com/gres.conf.html\n${lines.map((line) => `${line}\n`).join('')}`;
}

const cgroupConf = `# https://slurm.schedmd.com/cgroup.conf.html
ConstrainCores=yes
ConstrainRAMSpace=yes
ConstrainDevices=yes
`;

/** The most common card, and the most that one host has of it. */
function onejobConfig({ hosts, folder }: ClusterPlan): string {
  const cards = hosts.flatMap(({ cards: names }) => names.map(typeOfCard));
  const kinds = [...Map.groupBy(cards, (card) => card)].sort(([, a], [, b]) => b.length - a.length).map(([card]) => card);
  const pools = kinds.length === 0 ? ['  cpu: { runtime: cluster, agents: 8, cpus: 4 }'] : [];
  const gpus = kinds.map(
    (card) =>
      `  ${card}: { runtime: cluster, agents: ${2 * cards.filter((one) => one === card).length}, devices: { count: 1, model: ${card} }, cpus: 4, memory: 16GiB }`,
  );
  return `runtimes:
  cluster: { type: slurm, folder: ${folder} }
pools:
${[...gpus, ...pools].join('\n')}
`;
}

/** `lab@a.example.org` is `a.example.org`. */
function hostOf(address: string): string {
  return address.slice(address.indexOf('@') + 1);
}

function steps({ hosts, folder }: ClusterPlan): string {
  const [first, ...rest] = hosts;
  const others = rest.map(({ address }) => address);
  const all = hosts.map(({ address }) => address).join(' ');
  const versions = new Set(hosts.map(({ system }) => system));
  const mixed =
    versions.size === 1
      ? ''
      : `\nThe hosts have different systems (${[...versions].join(', ')}). Slurm allows nodes that are at most two releases older than the
controller, so let the newest be the controller, or install the same version everywhere.\n`;
  return `# A Slurm cluster of ${hosts.map(({ name }) => name).join(', ')}

Read slurm.conf, gres.conf and cgroup.conf here first. Nothing has been installed or changed. All commands are for root.
${mixed}
## 1. One key for all

munge proves who sends a message. All hosts need the same key, the same time (chrony or systemd-timesyncd), and names for
each other: ${hosts.map(({ name }) => name).join(', ')}.

\`\`\`sh
for host in ${all}; do ssh $host apt-get install -y munge; done
ssh ${first.address} cat /etc/munge/munge.key > munge.key
${others.length === 0 ? '' : `for host in ${others.join(' ')}; do ssh $host 'cat > /etc/munge/munge.key; chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; systemctl restart munge' < munge.key; done\n`}rm munge.key
\`\`\`

## 2. The controller, on ${first.name}

\`\`\`sh
ssh ${first.address} apt-get install -y slurmctld slurm-client
scp slurm.conf gres.conf cgroup.conf ${first.address}:/etc/slurm/
ssh ${first.address} 'install -d -o slurm -g slurm /var/lib/slurm/slurmctld; systemctl restart slurmctld; scontrol ping'
\`\`\`

## 3. The nodes

They ask the controller for their config at each start (TCP 6817 there; it reaches them on 6818).

\`\`\`sh
for host in ${all}; do
  ssh $host 'apt-get install -y slurmd bubblewrap; install -d /var/lib/slurm/slurmd
    echo SLURMD_OPTIONS=\\"--conf-server ${first.name}\\" > /etc/default/slurmd; systemctl restart slurmd'
done
ssh ${first.address} sinfo -N -o '"%N %T %G %c %m"'
ssh ${first.address} srun --gres=gpu:1 nvidia-smi -L
\`\`\`

Each node should be \`idle\`. If one is \`drain\` or \`inval\`, \`scontrol show node NAME\` says why.

## 4. The folder that all share

${folder} must be the same folder on all hosts, for example by NFS from ${first.name}, and belong to the user that runs onejob.
That user needs the same number on all hosts.

## 5. onejob

As that user, on ${first.name} or any host with slurm-client and the same munge key:

\`\`\`sh
onejob doctor --config config.yml
onejob up --config config.yml
onejob run --pool NAME -- nvidia-smi -L      # NAME: a pool of config.yml
\`\`\`
`;
}
