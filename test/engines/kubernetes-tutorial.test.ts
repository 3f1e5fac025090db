/** docs/tutorials/kubernetes.md as a new user follows it: every command of the page, in its order, on a real Kubernetes. */
import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startChild } from '../support/child.ts';
import { images } from '../support/images.ts';
import { type Kubernetes, startKubernetes } from '../support/kubernetes.ts';
import { kubernetesProgram } from '../support/kubernetes-programs.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { followTutorial } from '../support/tutorial.ts';

const page = 'docs/tutorials/kubernetes.md';
const program = join(import.meta.dirname, '../../bin/onejob');

const variables: readonly (readonly [RegExp, string])[] = [
  [/\boj-[0-9a-f]{10}\b/g, 'oj-ID'],
  [/\b[0-9a-f]{12}\b/g, 'ID'],
  [/\b\d\d:\d\d:\d\d\b/g, 'CLOCK'],
  [/\b\d+(?:ms|[smh])\b(?:\d+s\b)?(?: \d+[smh]\b)*/g, 'TIME'],
  [/\bpid[= ]\d+/g, 'pid'],
  [/\b\d+\.\d+\.\d+\b(?!\.)/g, 'VERSION'],
  [/\bGPU-[\w-]+/g, 'GPU-ID'],
  [/\bgpu\/\d\b/g, 'gpu/N'],
  [/tcp:\S+/g, 'tcp:ADDRESS'],
  // Kubernetes adds what it tried to make room.
  [/(Insufficient nvidia.com\/gpu\.)[^\n]*/g, '$1'],
];

/** Root's daemon has its files elsewhere. */
const ordinary = ['--reuid=nobody', '--regid=nogroup', '--clear-groups'];

/** Why that user cannot follow the page here, such as a clone in a folder of root's. */
function lacksUser(): boolean {
  return spawnSync('setpriv', [...ordinary, 'test', '-r', program]).status !== 0;
}

describe.skipIf(lacks('kubernetes') || lacksUser())(page, () => {
  let cluster: Kubernetes;
  beforeAll(async () => {
    cluster = await startKubernetes();
  });
  afterAll(() => cluster?.[Symbol.asyncDispose]());

  test('every command prints what the page says', async () => {
    using folder = scratch();
    chmodSync(folder.path, 0o755);
    const [home, programs] = [join(folder.path, 'home'), join(folder.path, 'bin')];
    for (const path of [join(home, '.kube'), programs]) mkdirSync(path, { recursive: true });
    copyFileSync(cluster.kubeconfig, join(home, '.kube/config'));
    symlinkSync(program, join(programs, 'onejob'));
    symlinkSync(kubernetesProgram('kubectl', '1.37'), join(programs, 'kubectl'));
    const env = { HOME: home, USER: 'ada', LANG: 'C.UTF-8', PATH: `${programs}:${process.env.PATH}` };
    execFileSync('chown', ['-R', 'nobody:nogroup', home]);
    const shell = startChild('setpriv', [...ordinary, 'bash', '--norc'], { cwd: home, env });
    try {
      const terminal = await followTutorial({
        page,
        shell,
        home,
        places: [
          ['/home/ada', home],
          ['busybox:1.36', images.base],
        ],
        variables,
        looks: /^(?:onejob (?:status|doctor)|kubectl .*get)\b/,
        inAnyOrder: /^(?:onejob status|kubectl .*get)\b/,
        exitCodes: { 'onejob wait "$SLEEPERS"': 1 },
      });
      await expect.poll(async () => (await terminal.type(`pgrep -f ${home} | wc -l`)).output.trim()).toBe('0');
    } finally {
      // A page that breaks off leaves its daemon running.
      spawnSync('setpriv', [...ordinary, program, 'down'], { env });
      await shell.kill();
    }
  });
});
