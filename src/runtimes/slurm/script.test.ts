/** The programs of an agent, run as a node of Slurm runs them: a batch script with SLURM_JOB_ID, and nothing else of Slurm. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { plainRecipe } from '../../../test/kit/process-runtime.ts';
import { type Child, startChild } from '../../../test/support/child.ts';
import { epilogOf } from '../../../test/support/page.ts';
import { lacks } from '../../../test/support/require.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { answerIn, frame } from '../gate.ts';
import { accounts } from '../process/bubblewrap.ts';
import { hasReleased } from '../process/release.ts';
import type { SandboxKind } from './config.ts';
import { AgentFolders } from './folder.ts';
import { exitAgain, exitMissing, exitUnfit, markersWithin, releaseScript, scriptsOf } from './script.ts';

const agent = 'a1';

interface NodeOptions {
  readonly modules?: readonly string[];
  /** That the pool asks for. */
  readonly gpus?: number;
  readonly image?: string;
  readonly look?: string;
  /** More programs of the node, by name. */
  readonly programs?: Readonly<Record<string, string>>;
  /** What `nvidia-smi` is there, as a script; null: none. */
  readonly tool?: string | null;
  /** Host paths of its volumes. */
  readonly volumes?: readonly string[];
  /** The node has no programs but those of a shell. */
  readonly isBare?: boolean;
}

async function node(sandbox: SandboxKind, options: NodeOptions = {}) {
  const { modules = [], gpus = 0, tool = null, image = '', look, volumes = [], programs: more = {}, isBare = false } = options;
  const shared = scratch();
  const folders = new AgentFolders(shared.path, 'me');
  const folder = folders.of(agent);
  const { passwd, group } = accounts(null);
  const wants = { gpus, model: null, images: false, folders: true, lifetime: null, keys: {} };
  const mounts = volumes.map((host) => ({ host, container: '/data', readOnly: true, variable: null, cache: null }));
  const recipe = { ...plainRecipe, wants, mounts };
  const parts = { agent, name: 'box-1', folder, marks: folders.marks, recipe, look, modules, sandbox, image, programs: new Map() };
  await folders.make(
    { agent, pool: 'p', slot: 'p/1', fingerprint: 'f', sandbox, programs: [] },
    { ...scriptsOf(parts), passwd, group },
  );
  const programs = join(shared.path, 'programs');
  mkdirSync(programs);
  const all = { ...more, ...(tool !== null && { 'nvidia-smi': `#!/bin/sh\n${tool}\n` }) };
  for (const [name, text] of Object.entries(all)) writeFileSync(join(programs, name), text, { mode: 0o755 });
  const env = {
    PATH: isBare ? programs : `${programs}:${process.env.PATH}`,
    SLURM_JOB_ID: '7',
    SLURMD_NODENAME: 'n1',
    SLURM_JOB_GPUS: '0,3',
  };
  const start = (): Child => startChild('/bin/sh', [join(folder, 'run.sh')], { cwd: '/', env });
  const read = (name: string): string => (existsSync(join(folder, name)) ? readFileSync(join(folder, name), 'utf8') : '');
  return {
    folders,
    start,
    read,
    async release(script: string) {
      await using fifo = await open(join(folder, 'stdin'), 'w');
      await fifo.write(frame(agent, script));
    },
    until: (what: RegExp) => expect.poll(() => read('log/stdout')).toMatch(what),
    async [Symbol.asyncDispose]() {
      shared[Symbol.dispose]();
    },
  };
}

describe.each(['bubblewrap', 'none'] as const)('the batch script with sandbox %s', (sandbox) => {
  const isMissing = sandbox === 'bubblewrap' && lacks('bubblewrap');

  it.skipIf(isMissing)('says where it is, waits at its gate, and leaves the exit code of the job', async () => {
    await using one = await node(sandbox);
    const batch = one.start();
    await one.until(/onejob ready a1\n/);
    expect(one.folders.whereIs(agent)).toEqual({ job: '7', place: 'n1', devices: '0,3' });
    await one.release('echo "gpus $SLURM_JOB_GPUS in $(pwd)"; echo err >&2; exit 9');
    expect((await batch.ended).code).toBe(0);
    expect(one.folders.exitCode(agent)).toBe(9);
    expect(one.read('log/stdout')).toMatch(/gpus 0,3 in \S*(workspace|work)\n$/);
    expect(one.read('log/stderr')).toBe('err\n');
  });

  it.skipIf(isMissing)('passes TERM on to the job, which may end with a code of its own', async () => {
    await using one = await node(sandbox);
    const batch = one.start();
    await one.until(/ready/);
    await one.release('trap "sleep 0.5; echo bye; exit 5" TERM; echo begun; while :; do sleep 0.05; done');
    await one.until(/begun/);
    batch.signal('SIGTERM');
    await expect.poll(() => batch.running).toBe(false);
    // Slurm kills what a batch script leaves.
    expect(one.folders.exitCode(agent)).toBe(5);
    expect((await batch.ended).code).toBe(0);
    expect(one.read('log/stdout')).toMatch(/bye\n$/);
  });

  it.skipIf(isMissing).each([
    ['onejob', 'SIGUSR1', 143],
    ['Slurm, which says why', 'SIGTERM', null],
  ] as const)('leaves an exit code of a job that TERM ended unless that came from Slurm: %s', async (_, signal, code) => {
    await using one = await node(sandbox);
    const batch = one.start();
    await one.until(/ready/);
    await one.release('echo begun; sleep 600');
    await one.until(/begun/);
    batch.signal(signal);
    await expect.poll(() => batch.running).toBe(false);
    expect(one.folders.exitCode(agent)).toBe(code);
  });

  it.skipIf(isMissing)('does nothing when it is started a second time', async () => {
    await using one = await node(sandbox);
    const first = one.start();
    await one.until(/ready/);
    expect((await one.start().ended).code).toBe(exitAgain);
    expect(one.folders.wasStartedAgain(agent)).toBe(true);
    await one.release('exit 0');
    await first.ended;
    expect(one.read('log/stdout').match(/ready/g)).toHaveLength(1);
  });
});

describe.skipIf(lacks('bubblewrap'))('in bubblewrap', () => {
  it('a job sees neither munge nor the processes and files of others', async () => {
    await using one = await node('bubblewrap');
    const batch = one.start();
    await one.until(/ready/);
    await one.release('ls /run /home; ls /root /var/lib 2>&1 | head -n 3; ps -e 2>/dev/null | wc -l; hostname; id -u');
    await batch.ended;
    const lines = one.read('log/stdout').split('\n').slice(2);
    expect(lines.join('\n')).not.toMatch(/munge|slurm/);
    expect(lines).toContain('box-1');
  });
});

/** Stands for Apptainer: it writes down what it was told, and runs the command where the workspace is bound from. */
const fakeApptainer = `#!/bin/sh
printf '%s\\n' "$@" >"\${0%/*}/../told"
while [ "$1" != /bin/sh ]; do
  case $1 in *:/workspace) cd "\${1%:/workspace}" ;; esac
  shift
done
exec "$@"
`;

/** Stands for Podman: it writes down what it was told, and runs the command where the workspace is mounted from. */
const fakePodman = `#!/bin/sh
printf '%s\\n' "$*" >>"\${0%/*}/../told"
case "$*" in info*) echo crun; exit ;; image*) exit 1 ;; pull*/none*) echo "Error: no such image" >&2; exit 125 ;; *' run '*) ;; *) exit 0 ;; esac
while [ "$1" != -c ]; do
  case $1 in *:/workspace) cd "\${1%:/workspace}" ;; esac
  shift
done
exec /bin/sh "$@"
`;

describe('in a container of Podman', () => {
  const image = 'localhost/box:1';
  const programs = (epilog: string) => ({
    podman: fakePodman,
    scontrol: `#!/bin/sh\necho 'EnforcePartLimits       = NO'; echo 'Epilog                  = ${epilog}'; echo 'EpilogMsgTime = 2000 usec'\n`,
  });
  const told = (one: Awaited<ReturnType<typeof node>>): string =>
    readFileSync(join(one.folders.of(agent), '../../../told'), 'utf8');

  it('a job has what is named, is found by its label, and is removed at its end', async () => {
    using site = scratch();
    const epilog = join(site.path, 'epilog');
    writeFileSync(epilog, epilogOf(readFileSync('docs/runtimes/slurm.md', 'utf8')));
    await using one = await node('podman', { image, programs: programs(epilog) });
    const batch = one.start();
    await one.until(/ready/);
    await one.release('pwd; exit 4');
    await batch.ended;
    expect(one.folders.exitCode(agent)).toBe(4);
    expect(one.read('log/stdout')).toMatch(/\/a1\/work\n$/);
    const calls = told(one).split('\n');
    expect(calls.slice(0, 3)).toEqual([`image exists ${image}`, `pull -q ${image}`, expect.stringMatching(/^info /)]);
    const run = '--cgroup-manager=cgroupfs run --rm -i --init --name oj-a1 --label onejob.slurm=7 --hostname box-1';
    expect(calls[3]).toContain(run);
    expect(calls[3]).toMatch(
      /--cgroups=disabled -v \S+\/a1\/work:\/workspace -v \S+:\/home\/job -v \S+:\/tmp -e HOME=\/home\/job /,
    );
    expect(calls.at(-2)).toBe('rm -f -t 0 oj-a1');
  });

  it.each([
    ['another Epilog', '/etc/hostname'],
    ['none', '(null)'],
  ])('does not begin where Slurm has %s', async (_, epilog) => {
    await using one = await node('podman', { image, programs: programs(epilog) });
    const ended = await one.start().ended;
    const why = '"sandbox: podman" needs the Epilog of docs/runtimes/slurm.md, and Slurm has another one or none there\n';
    expect([ended.code, ended.stdout]).toEqual([exitMissing, why]);
  });

  it("ends before the gate with Podman's words when there is no such image", async () => {
    using site = scratch();
    const epilog = join(site.path, 'epilog');
    writeFileSync(epilog, '#!/bin/sh\n# onejob-epilog 1\n');
    await using one = await node('podman', { image: 'localhost/none:1', programs: programs(epilog) });
    const ended = await one.start().ended;
    expect([ended.code, ended.stderr]).toEqual([exitMissing, 'Error: no such image\n']);
  });
});

describe('in a container of Apptainer', () => {
  it('a job has what is named, and nothing else of the node', async () => {
    using images = scratch();
    const image = join(images.path, 'pytorch.sif');
    writeFileSync(image, '');
    await using one = await node('apptainer', { image, programs: { apptainer: fakeApptainer } });
    const batch = one.start();
    await one.until(/ready/);
    await one.release('echo "home $HOME, user $USER"; pwd; env | grep ENV_ | sort; exit 4');
    await batch.ended;
    expect(one.folders.exitCode(agent)).toBe(4);
    expect(one.read('log/stdout')).toMatch(
      /home \/home\/job, user job\n.*\/a1\/work\nAPPTAINERENV_SLURM_JOB_GPUS=0,3\nAPPTAINERENV_SLURM_JOB_ID=7\n$/,
    );
    const told = readFileSync(join(one.folders.of(agent), '../../../told'), 'utf8').split('\n');
    expect(told.slice(0, 2)).toEqual(['exec', '--containall']);
    expect(told).toEqual(expect.arrayContaining(['--pwd', '/workspace', image, '--hostname', 'box-1']));
    expect(told.filter((word) => word.startsWith('/') && word.includes(':')).map((word) => word.replace(/^.*:/, ''))).toEqual([
      '/home/job',
      '/workspace',
      '/tmp',
    ]);
    expect(told).not.toContain('--nv');
  });

  it('a node without it is not fit, and says so', async () => {
    await using one = await node('apptainer', { image: '/shared/pytorch.sif', isBare: true });
    expect((await one.start().ended).code).toBe(exitUnfit);
    const why = 'Apptainer is not installed, which "sandbox: apptainer" needs';
    expect(one.folders.unfit(agent)).toEqual({ node: 'n1', why });
  });

  it('an image that the node has not ends it before the gate, and the node stays fit', async () => {
    await using one = await node('apptainer', { image: '/no/such.sif', programs: { apptainer: fakeApptainer } });
    const ended = await one.start().ended;
    expect([ended.code, ended.stdout]).toEqual([exitMissing, '/no/such.sif does not exist there\n']);
    expect([one.folders.unfit(agent), one.folders.whereIs(agent)]).toEqual([null, null]);
  });
});

it('an agent whose service asks what its sandbox has answers before its gate, which takes one script only', async () => {
  const look = 'n=0; while [ "$n" -lt 1000 ]; do n=$((n + 1)); echo "line $n"; done; cat; exit 3';
  await using one = await node('none', { look });
  const batch = one.start();
  await one.until(/onejob ready a1\n/);
  const [before = ''] = one.read('log/stdout').split('\u001eonejob ready');
  const answer = answerIn(agent, before);
  expect([answer.code, answer.text.split('\n').length]).toEqual(['3', 1001]);
  const folder = one.folders.of(agent);
  expect(hasReleased(folder, agent, markersWithin)).toBe(false);
  await one.release('echo out; exit 5');
  await batch.ended;
  expect([one.folders.exitCode(agent), one.read('log/stdout').endsWith('released a1\nout\n')]).toEqual([5, true]);
  expect(hasReleased(folder, agent, markersWithin)).toBe(true);
  // Nobody would read another script: the step would wait for ever.
  expect(
    (await startChild('/bin/sh', ['-c', releaseScript(folder, agent)], { cwd: '/', env: { PATH: process.env.PATH } }).ended).code,
  ).toBe(0);
});

it.each([
  ['a node without modules', {}, 'its command "module" is missing, which "modules" needs'],
  [
    'a module that the node has not',
    { programs: { module: '#!/bin/sh\necho "Lmod: unknown" >&2; echo "#%Module" >&2; exit 3\n' } },
    'the module cuda/12.4 cannot be loaded there: "module load" ended with 3',
  ],
])('%s ends it before the gate', async (_, parts, words) => {
  await using one = await node('none', { modules: ['cuda/12.4'], ...parts });
  const ended = await one.start().ended;
  expect([ended.code, ended.stdout]).toEqual([exitMissing, `${words}\n`]);
  expect(one.folders.whereIs(agent)).toBeNull();
  expect(one.read('log/stdout')).toBe('');
});

it.each([
  ['bubblewrap', 'bubblewrap is not installed, which "sandbox: bubblewrap" needs'],
  ['apptainer', 'Apptainer is not installed, which "sandbox: apptainer" needs'],
] as const)('a node without %s is not fit, and says so', async (sandbox, why) => {
  await using one = await node(sandbox, { isBare: true, image: '/shared/pytorch.sif' });
  expect((await one.start().ended).code).toBe(exitUnfit);
  expect(one.folders.unfit(agent)).toEqual({ node: 'n1', why });
});

it.each(['bubblewrap', 'apptainer', 'none'] as const)(
  'a volume that the node has not ends it before the gate, and the node stays fit: %s',
  async (sandbox) => {
    const programs = { apptainer: fakeApptainer, bwrap: '#!/bin/sh\n' };
    await using one = await node(sandbox, { volumes: ["/no/su'ch"], programs, image: 'docker://pytorch' });
    const ended = await one.start().ended;
    expect([ended.code, ended.stdout]).toEqual([exitMissing, "/no/su'ch does not exist there\n"]);
    expect([one.folders.unfit(agent), one.folders.whereIs(agent)]).toEqual([null, null]);
  },
);

describe('what Slurm granted', () => {
  const two = 'case "$1" in -L) echo "GPU 0: A"; echo "GPU 1: B" ;; *) echo "$APPS" ;; esac';

  it.each([
    ['is what was asked for, on a node without a tool of NVIDIA', 2, null, null],
    ['is what was asked for, and nothing runs on it', 2, two, null],
    [
      'is more than is hidden, so that the tool shows those of others',
      2,
      two.replace('echo "GPU 1: B"', 'echo "GPU 1: B"; echo "GPU 2: C"').replace('"$APPS"', '77'),
      null,
    ],
    ['is fewer than were asked for', 3, null, 'it was asked for 3 GPUs, and Slurm granted 2'],
    ['does not answer', 2, 'echo "No devices were found"; exit 6', 'nvidia-smi fails: No devices were found'],
    ['is in use', 2, two.replace('"$APPS"', '77'), 'a GPU is in use by process 77 '],
  ])('%s', async (_, gpus, tool, why) => {
    await using one = await node('none', { gpus, tool });
    const batch = one.start();
    if (why === null) {
      await one.until(/ready/);
      await one.release('exit 0');
      expect((await batch.ended).code).toBe(0);
      return;
    }
    expect((await batch.ended).code).toBe(exitUnfit);
    expect(one.folders.unfit(agent)).toEqual({ node: 'n1', why });
    expect(one.read('log/stdout')).toBe('');
  });
});
