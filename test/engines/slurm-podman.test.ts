/** Containers of a real Podman on a real Slurm, whose Epilog is that of docs/runtimes/slurm.md. As root, with runc: they outlive their batch job. */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { onejob } from '../support/onejob.ts';
import { epilogOf } from '../support/page.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';
import { startSlurm } from '../support/slurm.ts';

const podman = (...words: string[]): string => execFileSync('podman', words, { encoding: 'utf8' }).trim();

/** An image of busybox alone. */
function smallImage(folder: string) {
  const [files, archive, name] = [join(folder, 'files'), join(folder, 'image.tar'), `localhost/onejob-test-${process.pid}:1`];
  for (const one of ['bin', 'tmp', 'etc', 'proc', 'sys', 'dev', 'run']) mkdirSync(join(files, one), { recursive: true });
  copyFileSync(execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim(), join(files, 'bin/busybox'));
  for (const one of ['sh', 'sleep', 'id', 'cat']) symlinkSync('busybox', join(files, 'bin', one));
  execFileSync('tar', ['-c', '-f', archive, '-C', files, '.']);
  podman('import', '-q', archive, name);
  return { name, [Symbol.dispose]: () => void podman('rmi', '-f', name) };
}

test.skipIf(lacks('slurm', 'podman', 'busybox'))(
  'a container of Podman that outlives scancel is removed by the Epilog',
  async () => {
    using files = scratch();
    using image = smallImage(files.path);
    const epilog = join(files.path, 'epilog');
    const log = join(files.path, 'log');
    const text = epilogOf(readFileSync('docs/runtimes/slurm.md', 'utf8'));
    const looks = text.replace(/^\[ -z "\$left" \]/m, `echo "found $(echo "$left" | grep -c .)" >>${log}\n$&`);
    writeFileSync(epilog, looks, { mode: 0o755 });
    await using cluster = await startSlurm({ nodes: 1, conf: [`Epilog=${epilog}`] });
    const runtime = `{ type: slurm, folder: "${cluster.folder}/onejob", ${cluster.keys}, poll: 1s }`;
    // As many as root may have in a container that has less rights than the host's.
    const pool = `runtime: cluster, agents: 1, ulimits: { nofile: 1024, nproc: 1000 }, slurm: { sandbox: podman, image: "${image.name}" }`;
    await using home = await onejob({ config: `runtimes: { cluster: ${runtime} }\npools: { pod: { ${pool} } }\n` });
    await home.up();
    const run = (script: string) => home.run('--pool', 'pod', '--no-workspace', '--', 'sh', '-c', script);

    expect(await run('echo "$HOME $ONEJOB_JOB_ID" | cat; exit 3').ended).toMatchObject({
      code: 3,
      stdout: expect.stringMatching(/^\/home\/job /),
    });

    const stays = 'trap "" TERM; echo begun; sleep 600; sleep 600';
    const job = run(stays);
    await job.says(/begun/);
    const id = await cluster.run('squeue', '-h', '-t', 'R', '-o', '%i');
    const of = (one: string): string => podman('ps', '-aq', '--filter', `label=onejob.slurm=${one.trim()}`);
    expect(of(id)).not.toBe('');
    await cluster.run('scancel', '-s', 'KILL', id.trim());
    expect(await job.ended).toMatchObject({ code: 125, stderr: expect.stringMatching(/somebody cancelled it with scancel/) });
    await expect.poll(() => of(id)).toBe('');

    // Where Slurm kills all of a batch job at once, nothing of it is left that could remove the container.
    const options =
      '--rm --init --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 --network host --label onejob.slurm=$SLURM_JOB_ID';
    const client = `exec podman --cgroup-manager=cgroupfs run ${options} ${image.name} sh -c '${stays}'`;
    const alone = await cluster.run('sbatch', '--parsable', '--output=/dev/null', '--wrap', client);
    await expect.poll(() => podman('ps', '-q', '--filter', `label=onejob.slurm=${alone.trim()}`)).not.toBe('');
    await cluster.run('scancel', '-s', 'KILL', alone.trim());
    await expect.poll(() => readFileSync(log, 'utf8')).toContain('found 1\n');
    await expect.poll(() => of(alone)).toBe('');
  },
);
