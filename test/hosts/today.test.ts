/**
 * What only a host of today shows: Engine 29, systemd, a power cut, and a clock that is set back. One machine, so each test finds it
 * as the one before left it.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { quoted } from '../../src/base/quoted.ts';
import type { PoolView, StatusView } from '../../src/contract/schema.ts';
import { lacks } from '../support/require.ts';
import { beginHost, importImage, longEnough, patient, tell } from './begin.ts';
import type { Host } from './machine.ts';

const config = `pools:
  build: { agents: 1, image: "debian:stable-slim", volumes: ["/srv/evidence:/evidence:rw"] }
  strict: { agents: 1, image: "debian:stable-slim", read_only: true, user: "1000:1000" }
  proc: { agents: 1, runtime: process, volumes: ["/srv/evidence:/evidence:rw"] }
`;

describe.skipIf(lacks('host'))('a host of today', () => {
  let host: Host;

  beforeAll(async () => {
    host = await beginHost({ 'config.yml': config });
    await importImage(host, 'docker');
  }, longEnough);

  afterEach(async ({ task }) => {
    if (task.result?.state === 'fail') await tell(host);
  });

  afterAll(() => host?.[Symbol.asyncDispose]());

  const pool = async (name: string): Promise<PoolView | undefined> => {
    const said = await host.start('onejob status --json').ended;
    if (said.code !== 0) return undefined;
    return (JSON.parse(said.stdout) as StatusView).pools.find((one) => one.name === name);
  };

  /** What becomes of a pool's next sandbox: it waits for a job, or could not be made. */
  const next = async (name: string): Promise<string> => {
    const now = async (): Promise<string> => {
      const found = await pool(name);
      return found?.backoff?.reason ?? found?.slots[0]?.standby.state ?? 'none';
    };
    let state = '';
    await expect.poll(async () => (state = await now()), patient).not.toMatch(/^(none|preparing)$/);
    return state;
  };

  const jobs = async () =>
    JSON.parse(await host.sh('onejob jobs --all --json')) as { state: string; pool: string; result: unknown }[];

  test('has Engine 29, cgroup v2 and systemd', async () => {
    expect(await host.sh(`docker version --format '{{.Server.APIVersion}}'`)).toBe('1.56\n');
    expect(await host.sh(`docker info --format '{{.CgroupVersion}} {{.CgroupDriver}} {{.Driver}}'`)).toBe('2 systemd overlayfs\n');
    expect(await host.sh('ps -o comm= 1')).toBe('systemd\n');
  });

  test("runs README's first command without an installation or a config", async () => {
    const said = await host.sh(
      `mkdir /root/empty && cd /root/empty && ../onejob/bin/onejob run -- sh -c 'echo hello from $(hostname)'`,
    );
    expect(said).toMatch(/^hello from \S+\n$/);
  }, 300_000);

  test('a power cut right after its installation leaves a service that starts at boot', async () => {
    // Jobs run as other users in each sandbox.
    await host.sh('cd /srv/evidence && touch build proc && chmod 666 * && sync');
    await host.sh(
      '/root/onejob/install.sh && cp /mnt/config.yml /etc/onejob/ && sync /etc/onejob/config.yml && onejob service install',
    );
    await host.cut();
    await host.boot();
    const { stdout } = await host.start('onejob service status --json').ended;
    expect(JSON.parse(stdout)).toMatchObject({ active: true, enabled: true });
  }, 600_000);

  test('a container whose user is not root writes into its workspace below a read-only root', async () => {
    expect(await next('strict')).toBe('standby');
    const script = 'id -u; touch file && stat -c %u:%g . file; touch /etc/no 2>/dev/null || echo read-only';
    expect(await host.sh(`onejob run --no-workspace --pool strict -- sh -c '${script}'`)).toBe(
      '1000\n1000:1000\n1000:1000\nread-only\n',
    );
  }, 600_000);

  test('jobs pass after the wall clock was set back by an hour', async () => {
    await expect.poll(() => next('build'), patient).toBe('standby');
    const ends = 'echo begun; until [ -e /evidence/go ]; do sleep 0.2; done; echo end';
    const during = ['build', 'proc'].map((name) => host.start(`onejob run --no-workspace --pool ${name} -- sh -c '${ends}'`));
    await Promise.all(during.map((job) => job.says(/begun/)));
    await host.sh(`date -s '-1 hour' && touch /srv/evidence/go`);
    try {
      for (const job of during) expect.soft(await job.ended).toMatchObject({ code: 0, stdout: 'begun\nend\n' });
      for (const name of ['build', 'proc']) {
        const after = await host.start(`onejob run --no-workspace --pool ${name} -- echo passed`).ended;
        expect.soft(after, name).toMatchObject({ code: 0, stdout: 'passed\n', stderr: expect.not.stringContaining('lost') });
      }
    } finally {
      await host.sh(`date -s '+1 hour'`);
    }
  }, 600_000);

  test('a service of a user without rights limits its jobs, also those that outlive its daemon', async () => {
    const path = '/home/own/.local/bin:/usr/bin:/bin';
    const as = (script: string) =>
      `runuser -u own -- env -C /home/own HOME=/home/own XDG_RUNTIME_DIR=/run/user/4000 PATH=${path} sh -c ${quoted(script)}`;
    await host.sh('useradd --uid 4000 --create-home own && loginctl enable-linger own');
    await host.sh('tar -C /home/own -xzf /mnt/onejob.tgz && chown -R own: /home/own');
    await expect
      .poll(async () => (await host.start(as('systemctl --user is-system-running --wait')).ended).stdout, patient)
      .toMatch(/^(running|degraded)/);
    const pools = 'pools: { own: { agents: 1, runtime: process, memory: 64MiB, cpus: 1, pids: 200 } }';
    await host.sh(as(`mkdir -p .config/onejob && echo ${quoted(pools)} >.config/onejob/config.yml`));
    await host.sh(as('onejob/install.sh --user && onejob service install --user'));
    const limits = async () => {
      const found = JSON.parse((await host.start(as('onejob doctor --json')).ended).stdout) as { subject: string; level: string }[];
      return found.filter(({ subject }) => ['limits', 'pids'].includes(subject)).map(({ level }) => level);
    };
    expect.soft(await limits()).toEqual(['ok', 'ok']);
    const group = '/sys/fs/cgroup/user.slice/user-4000.slice/user@4000.service/app.slice/onejob.service';
    expect
      .soft(await host.sh(as('cat /proc/$(systemctl --user show -P MainPID onejob)/cgroup')))
      .toMatch(/onejob\.service\/daemon\n$/);

    const over = await host.start(as('onejob run --no-workspace -- tail /dev/zero')).ended;
    expect.soft(over).toMatchObject({ code: 137, stderr: expect.stringContaining('memory') });
    // One that a daemon has left to the next keeps its groups, which systemd does not take apart meanwhile.
    const job = host.start(
      as(`onejob run --no-workspace -- sh -c 'echo begun; until [ -e go ]; do sleep 0.2; done; tail /dev/zero'`),
    );
    await job.says(/begun/);
    await host.sh(as('systemctl --user restart onejob'));
    expect.soft(await host.sh(`cat ${group}/onejob/*/*/memory.max | sort -u`)).toContain(`${64 * 2 ** 20}\n`);
    await host.sh(`for work in /home/own/.local/state/onejob/agents/agents/*/work; do touch $work/go; done`);
    expect.soft(await job.ended).toMatchObject({ code: 137, stdout: 'begun\n', stderr: expect.stringContaining('memory') });
    await host.sh(as('onejob down --end'));
    expect.soft(await host.sh(`find ${group} -mindepth 1 -path '*/onejob*' -type d 2>/dev/null || true`)).toBe('');
    expect(await host.sh(as('systemctl --user is-active onejob || true'))).toBe('inactive\n');
  }, 600_000);

  test('a power cut while scripts run: each of them has run once, and its job is lost', async () => {
    // They are released long after they were accepted, so that no other sync makes up for that of their release.
    await host.sh('onejob pause');
    const before = (await jobs()).length;
    const runs = ['build', 'proc'].map((name) => {
      const script = `echo begun >>/evidence/${name}; sync /evidence/${name}; echo on disk; sleep 600`;
      return host.start(`onejob run --no-workspace --pool ${name} -- sh -c '${script}'`);
    });
    await expect.poll(async () => (await jobs()).length, patient).toBe(before + 2);
    await host.sh('onejob resume');
    await Promise.all(runs.map((job) => job.says(/on disk/)));
    await host.cut();
    await host.boot();
    const evidence = () => host.sh('cat /srv/evidence/build; cat /srv/evidence/proc');
    const now = async () =>
      (await jobs())
        .slice(before)
        .map((job) => [job.pool, job.state, job.result])
        .toSorted();
    // Either they are over, or one of them has begun again.
    const isSettled = async () =>
      (await now().catch(() => [['', 'not up']])).every(([, state]) => state === 'done') || (await evidence()) !== 'begun\nbegun\n';
    await expect.poll(isSettled, patient).toBe(true);
    expect.soft(await evidence()).toBe('begun\nbegun\n');
    const lost = expect.objectContaining({ kind: 'lost' });
    expect(await now()).toEqual([
      ['build', 'done', lost],
      ['proc', 'done', lost],
    ]);
  }, 600_000);

  test('it is switched off in order, and leaves nothing on this machine', async () => {
    await host.off();
    expect(spawnSync('pgrep', ['-f', host.share], { encoding: 'utf8' }).stdout).toBe('');
    expect(readFileSync('/proc/self/mounts', 'utf8')).not.toContain(host.share);
  }, 300_000);
});
