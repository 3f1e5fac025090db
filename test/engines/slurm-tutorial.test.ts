/** docs/tutorials/slurm.md as a new user follows it: every command of the page, in its order, on a real Slurm and as an ordinary user. */
import { spawnSync } from 'node:child_process';
import { chmodSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { type Slurm, startSlurm } from '../support/slurm.ts';
import { followTutorial } from '../support/tutorial.ts';

const page = 'docs/tutorials/slurm.md';
const user = 'nobody';
const program = join(import.meta.dirname, '../../bin/onejob');

/** Commands that are not run, each with the reason. */
const notRun: Readonly<Record<string, string>> = {
  'ssh a true && ssh b true && ssh c true':
    'there are no such hosts; what "init slurm" asks them is answered by a stand-in for ssh',
};

/** What shows a state that is still to come is looked at until it is there. */
const looks = /^(?:onejob (?:status|doctor)|squeue|sinfo)\b/;
/** Which jobs Slurm starts first is its own affair. */
const inAnyOrder = /^(?:onejob status|squeue)\b/;

/** Others exit with 0. */
const exitCodes: Readonly<Record<string, number>> = { 'onejob wait "$SLEEPERS"': 1 };

/** What varies, in the page and in what is printed alike. */
const variables: readonly (readonly [RegExp, string])[] = [
  [/^(?:\S+ +)(?=gpu +oj-)/gm, 'JOBID '],
  [/^ +\d+ (?=JOBID)/gm, ''],
  [/^\s+\d+(?=\s+gpu oj-)/gm, 'JOBID'],
  [/\boj-[0-9a-f]{5}\b/g, 'oj-ID'],
  [/\b[0-9a-f]{12}\b/g, 'ID'],
  [/\b\d\d:\d\d:\d\d\b/g, 'CLOCK'],
  [/\b\d+:\d\d\b/g, 'TIME'],
  [/\b\d+(?:ms|[smh])\b(?: \d+[smh]\b)*/g, 'TIME'],
  [/\bpid[= ]\d+/g, 'pid'],
  [/\b\d+\.\d+\.\d+\b/g, 'VERSION'],
  [/\bn[12]\b/g, 'NODE'],
  [/\bGPU \d\b/g, 'GPU N'],
  [/\bgpu\/\d\b/g, 'gpu/N'],
];

/** Hosts for `init slurm`: what they answer to its look. */
const hosts: Readonly<Record<string, readonly [shape: string, memory: number, cards: number]>> = {
  a: ['sockets=2\ncores=16\nthreads=2', 504, 4],
  b: ['sockets=2\ncores=16\nthreads=2', 504, 4],
  c: ['sockets=1\ncores=8\nthreads=2', 63, 0],
};

/** Why that user cannot follow the page here, such as a clone in a folder of root's. */
function lacksUser(): boolean {
  const probe = ['bwrap', '--ro-bind', '/', '/', '--unshare-all', 'test', '-r', program];
  return spawnSync('setpriv', ['--reuid=nobody', '--regid=nogroup', '--clear-groups', ...probe]).status !== 0;
}

describe.skipIf(lacks('slurm') || lacksUser())(page, () => {
  let cluster: Slurm;
  beforeAll(async () => {
    cluster = await startSlurm({ user });
  });
  // The shell, the daemon and its agents are in the cluster's cgroup, too, and in its folder.
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  test('every command prints what the page says', async () => {
    using programs = scratch();
    chmodSync(programs.path, 0o755);
    symlinkSync(program, join(programs.path, 'onejob'));
    for (const [name, [shape, memory, cards]] of Object.entries(hosts)) {
      const lines = [`name=${name}`, shape, `memory=${memory * 2 ** 20}`, ...Array(cards).fill('card=NVIDIA A100-SXM4-40GB')];
      writeFileSync(join(programs.path, `host-${name}`), [...lines, 'system=debian 13', 'end=yes', ''].join('\n'));
    }
    const ssh = `#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\ncat >/dev/null; cat ${programs.path}/host-"$2"\n`;
    writeFileSync(join(programs.path, 'ssh'), ssh, { mode: 0o755 });

    /** Names of the page, and what they are here. */
    const places: readonly (readonly [string, string])[] = [
      ['/shared/ada', join(cluster.folder, 'shared')],
      ['/home/ada', join(cluster.folder, 'home')],
      [' ada ', ` ${user} `],
    ];
    const toHere = (text: string): string => places.reduce((now, [name, here]) => now.replaceAll(name, here), text);
    const home = toHere('/home/ada');
    // Readers have one cluster, which Slurm's commands find by themselves.
    const configOf = (text: string): string =>
      text.replace('type: slurm,', `type: slurm, conf: "${cluster.env.SLURM_CONF}", poll: 1s,`);

    const path = `${programs.path}:${process.env.PATH}`;
    const env = ['-i', `HOME=${home}`, `USER=${user}`, 'LANG=C.UTF-8', `PATH=${path}`, `SLURM_CONF=${cluster.env.SLURM_CONF}`];
    await cluster.run('mkdir', '-p', home, toHere('/shared/ada'));
    const shell = cluster.start('env', ...env, 'bash', '--norc');
    const ways = { configOf, variables, looks, inAnyOrder, notRun, exitCodes };
    const terminal = await followTutorial({ page, shell, home, places, ...ways });
    // `down` was the page's last word to the daemon, and nothing of it is left.
    expect(await cluster.run('squeue', '-h')).toBe('');
    await expect.poll(async () => (await terminal.type('pgrep -u "$USER" -f "onejob|bwrap" | wc -l')).output.trim()).toBe('0');
  });
});
