/**
 * Containers of jobs on a host of today: Engine 29, and version 2 of control groups, where the limits of single containers hold. What
 * else they do is in test/long/containers*.test.ts, on the Engine of this machine.
 */
import { copyFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { quoted } from '../../src/base/quoted.ts';
import { packThisClone } from '../support/cloud-machine.ts';
import { engineBase } from '../support/engine-base.ts';
import { lacks } from '../support/require.ts';
import { createHost, type Host, makeHost } from './machine.ts';

/** It has the `docker` command, too. */
const image = 'debian:trixie-slim';
const config = `pools:
  box: { agents: 1, image: "${image}", containers: true, memory: 512MiB, stop_grace: 1s }
`;

/** What of the sandbox a job makes an image of: some programs, and what they are linked to. */
const makeImage = `mkdir -p /tmp/box/tmp /tmp/box/mnt; cd /tmp/box; ln -s usr/bin bin
for one in sh cat ls wc sleep touch mount true perl; do
  cp --parents -Lf /usr/bin/$one $(ldd /usr/bin/$one | grep -o '/[^ )]*') .
done
tar -c . | docker import - box:1 >/dev/null`;

/** Takes memory in one piece: in many, and for `tail /dev/zero`, this kernel needs minutes. */
const greedy = `perl -e 'my $all = "x" x 900_000_000; print "survived\\n"'`;

describe.skipIf(lacks('host', 'engineBase'))('containers of jobs on a host of today', () => {
  let host: Host;

  beforeAll(async () => {
    await makeHost();
    host = createHost();
    using archive = packThisClone();
    copyFileSync(archive.path, join(host.share, 'onejob.tgz'));
    copyFileSync(engineBase, join(host.share, 'base.tar'));
    writeFileSync(join(host.share, 'config.yml'), config);
    await host.boot();
    await host.sh(`tar -C /root -xzf /mnt/onejob.tgz && docker import /mnt/base.tar ${image} && sync`);
    await host.sh('/root/onejob/install.sh && cp /mnt/config.yml /etc/onejob/ && onejob service install');
  }, 3_600_000);

  afterEach(async ({ task }) => {
    if (task.result?.state !== 'fail') return;
    const { stdout } = await host.start('journalctl --no-pager -o cat -u onejob -n 20; docker ps -a').ended;
    console.log(`${stdout}\n${host.look()}`);
  });

  afterAll(async () => {
    await host?.[Symbol.asyncDispose]();
  });

  async function job(...lines: readonly string[]) {
    return await host.start(`onejob run --no-workspace --pool box -- sh -ec ${quoted(lines.join('\n'))}`).ended;
  }

  test('the control group of an engine is its own, and that of the host is not to be seen', async () => {
    const said = await job(
      'docker info --format "{{.CgroupVersion}} {{.CgroupDriver}}"',
      'ls -d /sys/fs/cgroup/system.slice || echo hidden',
    );
    expect(said).toMatchObject({ code: 0, stdout: '2 cgroupfs\nhidden\n' });
  }, 900_000);

  test('the limits of a container are those that its job asked for', async () => {
    const said = await job(
      makeImage,
      'docker run --rm -m 64m --cpus 0.5 --pids-limit 40 box:1 sh -c "cd /sys/fs/cgroup; cat memory.max cpu.max pids.max"',
      `docker run --rm -m 64m box:1 ${greedy} || echo ended with $?`,
    );
    // What it was asked for has ended it: that is no limit of the pool, and the job goes on.
    expect(said).toMatchObject({ code: 0, stdout: '67108864\n50000 100000\n40\nended with 137\n' });
  }, 600_000);

  test('what ends with its limit is not told as the limit of the pool, and what reaches that of the pool is', async () => {
    const own = await job(makeImage, `exec docker run --rm -m 64m box:1 ${greedy}`);
    expect.soft(own.code).toBe(137);
    expect.soft(own.stderr).not.toContain('memory');
    const pools = await job(makeImage, `exec docker run --rm box:1 ${greedy}`);
    expect.soft(pools.code).toBe(137);
    expect.soft(pools.stderr).toContain('memory');
  }, 900_000);

  test('containers share processes and memory, have all rights, and publish ports at the localhost of the job', async () => {
    const said = await job(
      makeImage,
      'docker run -d --name one -p 8088:80 box:1 sleep 1000 >/dev/null',
      `docker exec one sh -c 'echo from inside'`,
      `docker run --rm --pid host box:1 sh -c '[ $(ls -d /proc/[0-9]* | wc -l) -gt 3 ] && echo processes'`,
      'docker run --rm --ipc host box:1 sh -c "touch /dev/shm/mine && echo memory"',
      'docker run --rm --privileged box:1 sh -c "mount -t tmpfs none /mnt && echo rights"',
      'perl -MIO::Socket::INET -e \'print IO::Socket::INET->new("127.0.0.1:8088") ? "port\\n" : "no port: $!\\n"\'',
    );
    expect(said).toMatchObject({ code: 0, stdout: 'from inside\nprocesses\nmemory\nrights\nport\n' });
  }, 600_000);

  test('a job builds an image, and brings up a compose file that waits for a healthy service', async () => {
    const said = await job(
      makeImage,
      'printf "FROM box:1\\nRUN echo built >/b\\n" >Dockerfile',
      `cat >compose.yaml <<'END'
services:
  db: { image: "box:1", command: sleep 1000, init: true, healthcheck: { test: [CMD, "true"], interval: 1s } }
  app: { build: ., command: cat /b, depends_on: { db: { condition: service_healthy } } }
END`,
      'docker compose up -d --quiet-pull >/dev/null 2>&1',
      'docker wait $(docker compose ps -aq app) >/dev/null; docker logs $(docker compose ps -aq app)',
    );
    expect(said).toMatchObject({ code: 0, stdout: 'built\n' });
  }, 900_000);

  test('nothing of them is left once the service has been taken down', async () => {
    await host.sh('onejob down --end');
    const left = await host.sh(
      'docker ps -aq; docker volume ls -q; find /sys/fs/cgroup -type d -name "docker-*.scope"; pgrep -x dockerd | tail -n +2',
    );
    expect(left).toBe('');
  }, 600_000);
});
