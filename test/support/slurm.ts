/**
 * A Slurm cluster of a test's own: munged, slurmctld and some slurmd, all of them processes of this machine, in one folder and on ports
 * of 127.0.0.1. Its GPUs are device nodes behind which is nothing. All that it starts, jobs included, is in one cgroup; closing it ends
 * that and leaves nothing. Should the test die first, a process that waits for that does the same.
 *
 * A newer Slurm than the one that is installed has a root file system of its own (`slurm-newer.ts`), nodes and jobs included. It is
 * mounted where only that cluster's processes are, so nothing of it has to be unmounted.
 */
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { chmodSync, chownSync, existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, delimiter, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Child, startChild } from './child.ts';
import { freePort } from './free-port.ts';
import { hierarchies, lacksGroups, lastWill, mounts } from './last-will.ts';
import { scratch } from './scratch.ts';
import { startSlurmAccounting } from './slurm-accounting.ts';
import { lacksNewerSlurm, newerSlurm } from './slurm-newer.ts';

/** `installed`: this machine's, 22.05 on Debian 12. `newer`: 24.11, on nodes that have Debian 13. */
export type SlurmVersion = 'installed' | 'newer';

/** For `describe.each`, with what `lacks` calls them. */
export const slurmVersions = [
  { version: 'installed', need: 'slurm' },
  { version: 'newer', need: 'newerSlurm' },
] as const satisfies readonly { readonly version: SlurmVersion; readonly need: string }[];

export interface SlurmOptions {
  /** Default `installed`. */
  readonly version?: SlurmVersion;
  /** How many, named n1, n2, …; default 2. Each pretends to have 8 CPUs and 8 GB. */
  readonly nodes?: number;
  /** Of each node; default 2. */
  readonly gpus?: number;
  /**
   * How Slurm keeps track of a job's processes; default `linuxproc`. With `cgroup` a job can open its own GPUs only, and has no more
   * memory than it asked for; only one such cluster at a time, see `lacksSlurm`.
   */
  readonly proctrack?: 'linuxproc' | 'cgroup';
  /** Who runs commands, and so whose jobs they are; default root. Must be in /etc/passwd: Slurm starts no job of others. */
  readonly user?: string;
  /** Default none; needs `lacksSlurmAccounting()` to be null. */
  readonly accounting?: boolean;
  /** Lines of slurm.conf, instead of what is said of the same key here. Nodes and partitions are added. */
  readonly conf?: readonly string[];
}

export interface SlurmDaemon {
  /** Null while it does not run. */
  readonly pid: number | null;
  /** What it has logged since its last start. */
  readonly log: string;
  /** Resolves once it does its work. */
  start(): Promise<void>;
  /** SIGTERM, and waits for the end. A node's jobs run on. */
  stop(): Promise<void>;
  /** SIGKILL, and waits for the end. A node's jobs run on. */
  kill(): Promise<void>;
}

export interface Slurm extends AsyncDisposable {
  /** What a process needs beside its own variables so that its Slurm commands are about this cluster. */
  readonly env: Readonly<Record<string, string>>;
  /** Folder of the commands, for processes of root; null: on the PATH. */
  readonly path: string | null;
  /** Keys of a runtime in a config of onejob that say which cluster it is. */
  readonly keys: string;
  /** One that all nodes share, of `user`. */
  readonly folder: string;
  readonly controller: SlurmDaemon;
  /** @throws Error when it has no such node */
  node(name: string): SlurmDaemon;
  /** Starts a command in `folder`, as `user`. */
  start(command: string, ...args: string[]): Child;
  /** The same as root. */
  startAsRoot(command: string, ...args: string[]): Child;
  /** Runs it to its end, and returns its standard output. @throws Error with all output when it fails, or takes more than 20 s */
  run(command: string, ...args: string[]): Promise<string>;
  /** The same as root, who is Slurm's administrator. */
  administer(command: string, ...args: string[]): Promise<string>;
}

/** A client waits 9 s for a controller that is not there. */
const patience = 20_000;
/** Nodes that start at a time, so that each does within that. */
const atOnce = 20;

/** Why no such cluster can be had here, as a sentence's end; null when it can. */
export function lacksSlurm({ proctrack, version }: Pick<SlurmOptions, 'proctrack' | 'version'> = {}): string | null {
  if (process.getuid?.() !== 0) return 'not run as root';
  const isNewer = version === 'newer';
  if (isNewer && lacksNewerSlurm() !== null) return lacksNewerSlurm();
  const own = isNewer ? ['unshare', 'nsenter', 'pivot_root'] : ['munged', 'slurmctld', 'slurmd', 'sbatch', 'squeue', 'srun'];
  const needed = [...own, 'mknod', 'setpriv'];
  const folders = (process.env.PATH ?? '').split(delimiter);
  const missing = needed.filter((name) => !folders.some((folder) => existsSync(join(folder, name))));
  if (missing.length > 0) return `not installed: ${missing.join(', ')}`;
  if (proctrack === 'cgroup' && !hierarchies().some((path) => path.endsWith('/devices')))
    return 'no devices in cgroups of version 1';
  return lacksGroups();
}

/**
 * Starts one and waits until its nodes are idle; a fraction of a second. Needs `lacksSlurm()` to be null. What `sbatch` submits starts
 * within a second; in the first 3 s of the controller within 3, and after it was started again within 5.
 */
export async function startSlurm(options: SlurmOptions = {}): Promise<Slurm> {
  const { version = 'installed', nodes = 2, gpus = 2, proctrack = 'linuxproc', user = 'root', accounting = false } = options;
  const isNewer = version === 'newer';
  const names = Array.from({ length: nodes }, (_, at) => `n${at + 1}`);
  const [uid = 0, gid = 0] = ['-u', '-g'].map((which) => Number(execFileSync('id', [which, user], { encoding: 'utf8' })));
  const ofNodes = proctrack === 'cgroup' ? hierarchies().flatMap((path) => names.map((name) => join(path, `slurm_${name}`))) : [];
  // They are named by node and job number only, so a second cluster would use them, too, and then end the first one's jobs.
  const foreign = ofNodes.find((path) => existsSync(path));
  if (foreign !== undefined) throw new Error(`another cluster has ${foreign}, or had it and left it there`);
  const home = scratch().path;
  const group = join(mounts('cgroup2')[0] ?? '', `onejob-slurm-${basename(home)}`);
  mkdirSync(group);
  const will = lastWill({ home, groups: [group, ...ofNodes] });

  const folder = join(home, 'shared');
  const env = { SLURM_CONF: join(home, 'slurm.conf') };

  const beginHere = (words: readonly string[]): Child =>
    startChild('sh', ['-c', 'echo $$ >"$0" && exec "$@"', join(group, 'cgroup.procs'), ...words], {
      cwd: folder,
      env: { PATH: process.env.PATH, ...env },
    });
  /** What begins a command on the newer Slurm's file system, once that is there. */
  let inside: readonly string[] = [];
  const begin = (words: readonly string[]): Child => beginHere([...inside, ...words]);

  const asUser = uid === 0 ? [] : ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, '--init-groups', 'env', `HOME=${folder}`];

  async function toEnd(child: Child, words: readonly string[]): Promise<string> {
    const late = setTimeout(() => child.signal('SIGKILL'), patience);
    const { code, signal, stdout, stderr } = await child.ended;
    clearTimeout(late);
    if (code === 0) return stdout;
    throw new Error(`"${words.join(' ')}" ended with ${code ?? signal}:\n${stdout}${stderr}`);
  }
  const administer = (...words: string[]): Promise<string> => toEnd(begin(words), words);
  const startAsRoot = (...words: string[]): Child => begin(words);
  const start = (...words: string[]): Child => begin([...asUser, ...words]);

  /** `isReady`: looks whether it does its work, once it has said so. */
  function daemon(words: readonly string[], says: RegExp, isReady: () => Promise<boolean>): SlurmDaemon {
    let child: Child | null = null;
    async function start(): Promise<void> {
      if (child?.running) return;
      child = begin(words);
      const late = setTimeout(() => child?.signal('SIGKILL'), patience);
      try {
        await child.says(says);
        while (!(await isReady())) {
          if (!child.running) throw new Error(`${words.join(' ')} did not get ready:\n${child.stderr}`);
          await sleep(20);
        }
      } finally {
        clearTimeout(late);
      }
    }
    async function end(signal: NodeJS.Signals): Promise<void> {
      child?.signal(signal);
      await child?.ended;
    }
    return {
      get pid() {
        return child?.running ? child.pid : null;
      },
      get log() {
        return child?.stderr ?? '';
      },
      start,
      stop: () => end('SIGTERM'),
      kill: () => end('SIGKILL'),
    };
  }

  // Whoever asks too early is told that it is down.
  const controller = daemon(['slurmctld', '-D'], /Running as primary controller/, async () => {
    const { stdout } = await begin(['scontrol', 'ping']).ended;
    return stdout.includes('is UP');
  });
  /** One look for all nodes: there may be a thousand. */
  let states: Promise<string> | null = null;
  const daemons = new Map(
    names.map((name) => [
      name,
      daemon(['slurmd', '-D', '-N', name], /slurmd started on/, async () => {
        // Without a controller nobody knows.
        if (controller.pid === null) return true;
        states ??= administer('sinfo', '-hN', '-o', '%N %T').finally(() => {
          states = null;
        });
        const own = (await states).split('\n').find((line) => line.startsWith(`${name} `));
        return own !== undefined && !/down|unknown|\*/.test(own);
      }),
    ]),
  );

  try {
    chmodSync(home, 0o755);
    for (const name of ['bin', 'state', 'dev', 'munge', 'spool', 'shared', ...names.map((name) => `spool/${name}`)])
      mkdirSync(join(home, name));
    chownSync(folder, uid, gid);
    writeFileSync(join(home, 'munge', 'key'), randomBytes(128), { mode: 0o600 });
    for (const at of names.keys())
      for (let gpu = at * gpus; gpu < (at + 1) * gpus; gpu++)
        execFileSync('mknod', ['-m', '666', join(home, 'dev', `gpu${gpu}`), 'c', '240', String(gpu)]);
    const taken = new Set<number>();
    while (taken.size <= nodes) taken.add(await freePort());
    const ports = [...taken];
    const configure = (conf: readonly string[] = []): void =>
      writeFileSync(env.SLURM_CONF, slurmConf(home, { names, ports, gpus, proctrack, conf: [...(options.conf ?? []), ...conf] }));
    configure();
    const card = (at: number): string =>
      `NodeName=n${at + 1} Name=gpu Type=a100 File=${join(home, 'dev', `gpu[${at * gpus}-${(at + 1) * gpus - 1}]`)}\n`;
    writeFileSync(join(home, 'gres.conf'), gpus === 0 ? '' : [...names.keys()].map(card).join(''));
    if (proctrack === 'cgroup') {
      const lines = ['CgroupMountpoint=/sys/fs/cgroup', 'CgroupAutomount=no', 'ConstrainDevices=yes', 'ConstrainRAMSpace=yes'];
      writeFileSync(join(home, 'cgroup.conf'), `${lines.join('\n')}\n`);
    }
    if (isNewer) {
      const space = beginHere(['unshare', '--mount', '--propagation', 'private', 'sh', '-c', newRoot, 'sh', newerSlurm, tmpdir()]);
      await space.says(/mounted/);
      inside = ['nsenter', `--target=${space.pid}`, '--mount', 'sh', '-c', 'cd "$0" 2>/dev/null; exec "$@"', folder];
      for (const name of ['sbatch', 'scancel', 'scontrol', 'sinfo', 'squeue', 'srun'])
        writeFileSync(join(home, 'bin', name), commandIn(space.pid, name), { mode: 0o755 });
    }
    const munged = begin([
      ...['munged', '--foreground', `--socket=${join(home, 'munge', 'socket')}`, `--key-file=${join(home, 'munge', 'key')}`],
      ...['pid', 'log', 'seed'].map((name) => `--${name}-file=${join(home, 'munge', name)}`),
    ]);
    await munged.says(/Created \d+ work threads/);
    if (accounting) configure(await startSlurmAccounting(home, join(home, 'munge', 'socket'), begin));
    await controller.start();
    const starting = [...daemons.values()];
    while (starting.length > 0) await Promise.all(starting.splice(0, atOnce).map((one) => one.start()));
  } catch (error) {
    await will.execute();
    throw error;
  }
  const path = isNewer ? join(home, 'bin') : null;
  return {
    env,
    path,
    keys: [`conf: "${env.SLURM_CONF}"`, ...(path === null ? [] : [`path: "${path}"`])].join(', '),
    folder,
    controller,
    node(name) {
      const found = daemons.get(name);
      if (found === undefined) throw new Error(`no node ${name} among ${names.join(', ')}`);
      return found;
    },
    start,
    startAsRoot,
    run: (...words) => toEnd(start(...words), words),
    administer,
    [Symbol.asyncDispose]: will.execute,
  };
}

/**
 * Makes the folder `$1` the root of this mount namespace, with this machine's kernel files and its folder `$2` in it, and keeps the
 * namespace until it is killed. A chroot would not do: in one no process may make a user namespace, which a job's sandbox needs.
 */
const newRoot = `
  set -e
  mount --bind "$1" "$1"
  mkdir -p "$1$2"
  for part in /dev /sys; do mount --rbind "$part" "$1$part"; done
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/run"
  mount --bind "$2" "$1$2"
  mount --bind /etc/hosts "$1/etc/hosts"
  # What a test does there must not be there for the next one.
  mount -o remount,bind,ro "$1"
  cd "$1"
  pivot_root . .
  umount -l .
  echo mounted
  exec sleep infinity`;

/** A command of the newer Slurm, with the streams, variables and, where there is such a folder, the folder of who calls it. */
function commandIn(space: number, name: string): string {
  return `#!/bin/sh
exec nsenter --target=${space} --mount sh -c 'cd "$0" 2>/dev/null; exec "$@"' "$PWD" /usr/bin/${name} "$@"
`;
}

interface Cluster {
  readonly names: readonly string[];
  readonly ports: readonly number[];
  readonly gpus: number;
  readonly proctrack: 'linuxproc' | 'cgroup';
  readonly conf: readonly string[];
}

function slurmConf(home: string, { names, ports, gpus, proctrack, conf }: Cluster): string {
  const [port, ...portOf] = ports;
  const hasCgroups = proctrack === 'cgroup';
  const lines = [
    ...['ClusterName=onejob', 'SlurmctldHost=localhost(127.0.0.1)', 'SlurmUser=root', `SlurmctldPort=${port}`],
    ...['AuthType=auth/munge', `AuthInfo=socket=${join(home, 'munge', 'socket')}`],
    // Else its daemons can be reached from other machines.
    'CommunicationParameters=NoCtldInAddrAny,NoInAddrAny',
    ...[`SlurmctldPidFile=${join(home, 'slurmctld.pid')}`, `SlurmdPidFile=${join(home, 'slurmd.%n.pid')}`],
    ...[`StateSaveLocation=${join(home, 'state')}`, `SlurmdSpoolDir=${join(home, 'spool', '%n')}`],
    ...['JobCompType=jobcomp/filetxt', `JobCompLoc=${join(home, 'ended-jobs')}`],
    // A node may say that it has more than this machine.
    'SlurmdParameters=config_overrides',
    ...['MpiDefault=none', 'MailProg=/bin/true', 'ReturnToService=2', 'SlurmdTimeout=15', 'KillWait=5'],
    // The controller then looks for waiting jobs once a second, where it would leave a batch job waiting for 3 s; it still does so in its
    // own first 3 s. A short bf_interval would be no quicker, and would have it forget: what backfill starts, it does not write down.
    'SchedulerParameters=sched_interval=1,batch_sched_delay=0',
    ...['SelectType=select/cons_tres', 'SelectTypeParameters=CR_Core_Memory', 'GresTypes=gpu'],
    ...[`ProctrackType=proctrack/${proctrack}`, `TaskPlugin=task/${hasCgroups ? 'cgroup' : 'none'}`],
    ...(hasCgroups ? ['JobAcctGatherType=jobacct_gather/cgroup'] : []),
  ];
  const node = (name: string, at: number): string =>
    `NodeName=${name} NodeHostname=localhost NodeAddr=127.0.0.1 Port=${portOf[at]} CPUs=8 RealMemory=8000${gpus === 0 ? '' : ` Gres=gpu:a100:${gpus}`}`;
  const added = /^(NodeName|PartitionName)=/i;
  const key = (line: string): string => line.slice(0, line.indexOf('=')).toLowerCase();
  const said = new Set(conf.map(key));
  return [
    ...lines.filter((line) => !said.has(key(line))),
    ...conf.filter((line) => !added.test(line)),
    ...names.map(node),
    `PartitionName=gpu Nodes=${names.join(',')} Default=YES MaxTime=INFINITE DefMemPerCPU=500`,
    ...conf.filter((line) => added.test(line)),
    '',
  ].join('\n');
}
