/** A file server that is away: a FUSE whose program never answers, as NFS of a dead host. Mounted where only this test sees it. */
import { execFile } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

const root = join(import.meta.dirname, '..', '..');
const node = process.execPath;

/** Runs a command where `folder` is on such a server. Killed after a minute, with its mount. */
async function onDeadServer(folder: string, ...command: string[]): Promise<string> {
  mkdirSync(folder);
  const options = 'fd=3,rootmode=40000,user_id=0,group_id=0,allow_other';
  const script = `exec 3<>/dev/fuse; mount -i -t fuse.sshfs -o ${options} dead "$0" || exit; "$@"`;
  const { stdout } = await promisify(execFile)('unshare', ['-m', '/bin/sh', '-c', script, folder, ...command], {
    cwd: root,
    timeout: 60_000,
    killSignal: 'SIGKILL',
  });
  return stdout;
}

/** The program of such a server that reads requests, and answers only the first, in which the kernel introduces itself. */
const reader = `
const { readSync, writeSync } = require('node:fs');
const bytes = Buffer.alloc(1 << 17);
readSync(3, bytes);
const answer = Buffer.alloc(80);
answer.writeUInt32LE(80, 0);
bytes.copy(answer, 8, 8, 16);
answer.writeUInt32LE(7, 16);
answer.writeUInt32LE(31, 20);
answer.writeUInt32LE(4096, 36);
writeSync(3, answer);
try {
  for (;;) readSync(3, bytes);
} catch {}`;

describe.skipIf(lacks('mount', 'fuse'))('with a volume on a file server that is away', () => {
  test('config check does not wait for it', async () => {
    using dir = scratch();
    const config = join(dir.path, 'config.yml');
    const volume = join(dir.path, 'server', 'data');
    const pool = `{ service: own, runtime: process, volumes: ["${volume}:/data"] }`;
    writeFileSync(config, `state_dir: ${dir.path}/state\npools: { p: ${pool} }\n`);
    const said = await onDeadServer(join(dir.path, 'server'), node, 'src/main.ts', 'config', 'check', '--config', config);
    expect(said).toContain(`pools.p.volumes[0]: is ${volume}, on a file server that does not answer`);
    expect(said).toContain('is valid');
  });

  test('a sandbox is refused, to be tried again', async () => {
    using dir = scratch();
    const volume = join(dir.path, 'server', 'data');
    const program = `
      import { checkFolders } from '${root}/src/runtimes/process/prepare.ts';
      const mounts = [{ host: '${volume}', container: '/data', readOnly: true, variable: null, cache: null }];
      await checkFolders({ mounts }).catch(({ code, retry }) => console.log(code, retry));`;
    const said = await onDeadServer(join(dir.path, 'server'), node, '--input-type=module', '-e', program);
    expect(said.trim()).toBe('E_MOUNT_AWAY true');
  });

  test('a Dockerfile, the program of an agent and a secret are not waited for', async () => {
    using dir = scratch();
    const at = (name: string) => join(dir.path, 'server', name);
    // All threads for files would be taken if each attempt began a read that never ends.
    const program = `
      import { readFile } from 'node:fs/promises';
      import { getPackage } from '${root}/src/images/agent-package.ts';
      import { readDockerfile } from '${root}/src/images/plan.ts';
      import { readSecret } from '${root}/src/schema/secret-reference.ts';
      const agent = { type: 'azure-pipelines', version: '4.248.0', from: '${at('agent.tar.gz')}', sha256: null };
      const calls = [
        () => readDockerfile('${at('Dockerfile')}'),
        () => getPackage(agent, { dir: '${dir.path}' }, () => {}, new AbortController().signal),
        () => readSecret({ kind: 'file', path: '${at('token')}', expires: null }),
      ];
      const said = await Promise.all(Array.from({ length: 8 }, () => calls).flat().map((call) => call().catch(({ code, message }) => code + ' ' + message)));
      for (const one of said.slice(0, 3)) console.log(one);
      console.log((await readFile('/proc/self/comm', 'utf8')).trim() !== '');
      process.exit(0);`;
    const said = await onDeadServer(join(dir.path, 'server'), node, '--input-type=module', '-e', program);
    const [dockerfile, agent, secret, reads] = said.trim().split('\n');
    expect(dockerfile).toBe(`E_IMAGE_BUILD Cannot read the Dockerfile ${at('Dockerfile')}: its file server does not answer.`);
    expect(agent).toMatch(/^E_AGENT_PACKAGE .* its file server does not answer/);
    expect(secret).toBe(`E_SECRET The secret file ${at('token')} cannot be read: its file server does not answer.`);
    expect(reads).toBe('true');
  });

  test('a program that hangs there, and cannot be killed, is the only one', async () => {
    using dir = scratch();
    const server = join(dir.path, 'server');
    const program = `
      import { spawn, spawnSync } from 'node:child_process';
      import { setTimeout as sleep } from 'node:timers/promises';
      import { lookAt } from '${root}/src/system/file-server.ts';
      import { childrenOf } from '${root}/src/system/process-identity.ts';
      const answers = spawn(process.execPath, ['-e', ${JSON.stringify(reader)}], { stdio: ['ignore', 'ignore', 'inherit', 3] });
      for (let times = 0; times < 3; times++) {
        const looks = await lookAt(['${server}/data']);
        console.log(looks.get('${server}/data').real, childrenOf(process.pid).filter((pid) => pid !== answers.pid).length);
      }
      // It is busy, but what hangs is freed.
      spawnSync('umount', ['-i', '-c', '-f', '${server}']);
      while (childrenOf(process.pid).length > 0) await sleep(10);
      process.exit(0);`;
    const said = await onDeadServer(server, node, '--input-type=module', '-e', program);
    expect(said.trim().split('\n')).toEqual(['null 1', 'null 1', 'null 1']);
  });
});
