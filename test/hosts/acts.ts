/**
 * What is done on each host of setups.ts, in the order of a host's life: from README's first command over an installation, limits,
 * restarts and a power cut to the removal of everything. Each act finds the host as the one before left it. Some are only done where a
 * set-up is `whole`.
 */
import { cpSync, mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import type { Child } from '../support/child.ts';
import { lacks } from '../support/require.ts';
import { beginHost, importImage, longEnough, patient, tell } from './begin.ts';
import type { Host } from './machine.ts';
import { keepResult, type Versions } from './results.ts';
import { nameOf, type Setup, scriptOf, setups } from './setups.ts';

const root = join(import.meta.dirname, '..', '..');

const limits = 'memory: 128MiB, pids: 60, disk: 24MiB, volumes: ["/srv/evidence:/evidence:rw"]';
const config = `pools:
  build: { agents: 1, image: "debian:stable-slim", ${limits} }
  proc: { agents: 1, runtime: process, ${limits} }
`;
const pools = ['build', 'proc'] as const;

/** Waits, after it has said that it runs, until somebody makes the file `go`. */
const untilGo = 'echo begun; until [ -e /evidence/go ]; do sleep 0.2; done';

/** What `onejob service uninstall` leaves on purpose, as docs/operating.md removes it. */
const removal = `rm -r /opt/onejob /var/lib/onejob /etc/onejob
rm /usr/local/bin/onejob /usr/local/share/man/man1/onejob.1 /usr/local/share/bash-completion/completions/onejob
rm /usr/local/share/zsh/site-functions/_onejob /usr/local/share/fish/vendor_completions.d/onejob.fish
groupdel onejob`;

/** Everything that has the name of onejob in it. What was put there by hand is not the product's, nor AppArmor's cache of profiles. */
const traces = `find / -xdev \\( -path /root -o -path /var/cache/apparmor -o -path /proc -o -path /var/log -o -path /var/tmp -o -path /tmp \\) -prune -o -iname '*onejob*' -print
find /run /sys/fs/cgroup /dev/shm -iname '*onejob*'
systemctl list-units --all --plain --no-legend '*onejob*'; systemctl list-unit-files --no-legend '*onejob*'
getent group onejob; pgrep -af '[o]nejob/(current|[0-9])' || true`;

export interface Tried {
  readonly host: Host;
  readonly setup: Setup;
  readonly engine: 'docker' | 'podman';
  /** Starts a job of a pool. */
  job(pool: string, script: string): Child;
  /** All that the service has had so far. */
  jobs(): Promise<JobView[]>;
  /** Once its next sandbox waits for a job. */
  isReady(pool: string): Promise<void>;
  /** Once the Engine answers. */
  isUp(): Promise<unknown>;
}

function tried(host: Host, setup: Setup): Tried {
  const engine = setup.engine === 'Podman' ? 'podman' : 'docker';
  const remote = engine === 'podman' ? '--url unix:///run/podman/podman.sock' : '';
  const state = async (pool: string): Promise<string> => {
    const said = await host.start('onejob status --json').ended;
    if (said.code !== 0) return said.stderr;
    const found = JSON.parse(said.stdout).pools.find(({ name }: { name: string }) => name === pool);
    return found?.backoff?.reason ?? found?.slots[0]?.standby.state ?? 'none';
  };
  return {
    host,
    setup,
    engine,
    job: (pool, script) => host.start(`onejob run --no-workspace --pool ${pool} -- sh -c '${script}'`),
    jobs: async () => JSON.parse(await host.sh('onejob jobs --all --json')) as JobView[],
    isReady: (pool) => expect.poll(() => state(pool), patient).toBe('standby'),
    isUp: () => host.sh(`until ${engine} ${remote} version >/dev/null 2>&1; do sleep 0.5; done`),
  };
}

/** A census as the end-to-end tests take it, with the Node of the archive; whose socket the Engine has. */
async function census({ host, engine }: Tried): Promise<string> {
  const socket = engine === 'podman' ? '/run/podman/podman.sock' : '/var/run/docker.sock';
  const node = '/root/onejob/node_modules/node/bin/node --disable-warning=ExperimentalWarning';
  const { stdout, stderr } = await host.start(`${node} /mnt/clone/test/support/census.ts --engine ${socket}`).ended;
  return stdout.trim().split('\n').at(-1) ?? stderr;
}

async function begin(setup: Setup): Promise<Tried> {
  await using parts = new AsyncDisposableStack();
  const host = parts.use(await beginHost({ 'config.yml': config }, scriptOf(setup)));
  mkdirSync(join(host.share, 'clone/test'), { recursive: true });
  for (const folder of ['src', 'test/support']) cpSync(join(root, folder), join(host.share, 'clone', folder), { recursive: true });
  symlinkSync('/root/onejob/node_modules', join(host.share, 'clone/node_modules'));
  const it = tried(host, setup);
  await importImage(host, it.engine);
  if (it.engine === 'podman') await host.sh('systemctl daemon-reload').then(it.isUp);
  parts.move();
  return it;
}

async function versions({ host, engine }: Tried): Promise<Versions> {
  const said = async (script: string) => (await host.sh(script)).trim();
  const version = engine === 'podman' ? '{{.Client.Version}}' : '{{.Server.Version}}';
  return {
    engine: await said(`${engine} version --format '${version}'`),
    systemd: await said(`systemctl --version | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p'`),
    kernel: await said('uname -r'),
    groups: await said(`stat -f -c %T /sys/fs/cgroup`),
  };
}

/** Tries the hosts with this Engine one after another. `whole`: the places of those with all acts. */
export function tryHostsWith(engine: Setup['engine'], whole: readonly number[] = []): void {
  for (const [place, setup] of setups.filter((one) => one.engine === engine).entries())
    describe.skipIf(lacks('host'))(nameOf(setup), { timeout: 600_000 }, () => {
      let it: Tried;
      let found: Versions;
      const acts: Record<string, 'passed' | 'failed'> = {};

      beforeAll(async () => {
        it = await begin(setup);
        found = await versions(it);
      }, longEnough);

      afterEach(async ({ task }) => {
        const state = task.result?.state;
        if (state !== 'skip') acts[task.name] = state === 'fail' ? 'failed' : 'passed';
        if (state === 'fail') await tell(it.host);
      });

      afterAll(async () => {
        await it?.host[Symbol.asyncDispose]();
        if (found !== undefined) keepResult(setup, found, acts);
      });

      shortActs(() => it);
      if (setup.engine === 'Podman') podmanActs(() => it);
      if (whole.includes(place)) wholeActs(() => it);
      lastAct(() => it);
    });
}

function shortActs(now: () => Tried): void {
  test("README's first command", async () => {
    const { host, engine } = now();
    const run = host.start(
      `mkdir /root/empty && cd /root/empty && ../onejob/bin/onejob run -- sh -c 'echo hello from $(hostname)'`,
    );
    expect(await run.ended).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^hello from \S+\n$/),
      stderr: expect.stringContaining(`docker, because ${engine === 'podman' ? 'Podman' : 'Docker Engine'}`),
    });
    expect(await census(now())).toMatch(/ 0 of them left|Nothing/);
  });

  test('a service', async () => {
    const { host, job, isReady } = now();
    await host.sh('/root/onejob/install.sh && cp /mnt/config.yml /etc/onejob/ && onejob service install');
    for (const pool of pools) {
      await isReady(pool);
      expect(await job(pool, 'echo hello').ended).toMatchObject({ code: 0, stdout: 'hello\n' });
    }
    expect(JSON.parse(await host.sh('onejob service status --json'))).toMatchObject({ active: true, enabled: true });
    expect(await census(now())).toMatch(/ 0 of them left/);
  });

  test('limits: memory, pids and disk', async () => {
    const { job, jobs } = now();
    for (const pool of pools) {
      const memory = await job(pool, 'tail /dev/zero').ended;
      expect.soft(memory, pool).toMatchObject({ code: 137, stderr: expect.stringContaining('memory') });
      const forks = await job(pool, 'for i in $(seq 100); do sleep 60 & done').ended;
      expect.soft([forks.code, forks.stderr], pool).toEqual([2, expect.stringMatching(/fork/i)]);
      const disk = await job(pool, 'head -c 60000000 /dev/zero >file; sleep 600').ended;
      expect.soft(disk.stderr, pool).toContain('disk');
    }
    const verdicts = (await jobs()).slice(-6).map(({ pool, verdict }) => [pool, verdict?.kind, verdict?.evidence.join()]);
    expect(verdicts).toEqual(
      pools.flatMap((pool) => [
        [pool, 'code', expect.stringMatching(/memory|OOM/i)],
        [pool, 'code', 'exit code 2'],
        [pool, 'code', 'disk limit'],
      ]),
    );
  });

  test('daemon-reload, and restarts of onejob and of the Engine', async () => {
    const { host, engine, setup, job, jobs, isUp, isReady } = now();
    for (const pool of pools) await isReady(pool);
    await host.sh('rm -f /srv/evidence/go');
    const [build, proc] = pools.map((pool) => job(pool, `${untilGo}; cat /sys/fs/cgroup/memory.max 2>/dev/null; tail /dev/zero`));
    await Promise.all([build?.says(/begun/), proc?.says(/begun/)]);
    await host.sh('systemctl daemon-reload && systemctl daemon-reexec && systemctl restart onejob');
    const goesOn = setup.restart !== 'ends jobs';
    await host.sh(
      engine === 'podman' ? 'systemctl stop podman.socket podman && systemctl start podman.socket' : 'systemctl restart docker',
    );
    await isUp();
    await host.sh('touch /srv/evidence/go');
    const over = expect.stringContaining('memory');
    expect.soft(await proc?.ended).toMatchObject({ code: 137, stderr: over });
    expect
      .soft(await build?.ended)
      .toMatchObject(goesOn ? { code: 137, stderr: over } : { code: 125, stderr: expect.stringMatching(/was lost: .*Engine/) });
    const [last] = (await jobs()).slice(-2).filter(({ pool }) => pool === 'build');
    expect(last).toMatchObject(goesOn ? { attempt: 1, verdict: { kind: 'code' } } : { attempt: 1, result: { kind: 'lost' } });
    for (const pool of pools) {
      await isReady(pool);
      expect(await job(pool, 'echo again').ended).toMatchObject({ code: 0, stdout: 'again\n' });
    }
  });

  test('a power cut', () => cutWhileScriptsRun(now(), (host) => host.cut()));
}

/** Does what onejob says of a container that Podman cannot list any more; once for each that it says it of. */
async function doAsTold(host: Host): Promise<void> {
  await host.sh(`journalctl -b -o cat -u onejob | grep -o 'podman rm --force [0-9a-f]*' | sort -u | sh >/dev/null 2>&1 || true`);
}

/** The scripts of two jobs run meanwhile: each has run once, and its job is lost. */
async function cutWhileScriptsRun({ host, engine, job, jobs, isReady }: Tried, cut: (host: Host) => Promise<void>): Promise<void> {
  for (const pool of pools) await isReady(pool);
  await host.sh('cd /srv/evidence && : >build && : >proc && chmod 666 build proc && sync');
  const before = (await jobs()).length;
  const runs = pools.map((pool) => job(pool, `echo begun >>/evidence/${pool}; sync /evidence/${pool}; echo on disk; sleep 600`));
  await Promise.all(runs.map((run) => run.says(/on disk/)));
  await cut(host);
  await host.boot();
  const after = async () => {
    if (engine === 'podman') await doAsTold(host);
    return (await jobs()).slice(before).map(({ pool, state, result }) => [pool, state, result?.kind]);
  };
  await expect
    .poll(async () => (await after().catch(() => [])).toSorted(), patient)
    .toEqual([
      ['build', 'done', 'lost'],
      ['proc', 'done', 'lost'],
    ]);
  for (const pool of pools) {
    await isReady(pool);
    expect(await job(pool, 'echo again').ended).toMatchObject({ code: 0, stdout: 'again\n' });
  }
  expect(await host.sh('cat /srv/evidence/build /srv/evidence/proc')).toBe('begun\nbegun\n');
}

function podmanActs(now: () => Tried): void {
  test('a container that a power cut left half written', async () => {
    const { host } = now();
    await cutWhileScriptsRun(now(), async () => {
      // Podman does not sync a layer that it makes, so a cut leaves this now and then.
      await host.sh('for lower in /var/lib/containers/storage/overlay/*/lower; do : >$lower; done; sync');
      await host.cut();
    });
    expect(await host.sh('journalctl -b -o cat -u onejob')).toContain('podman rm --force');
  });
}

function wholeActs(now: () => Tried): void {
  test('a reboot', () => cutWhileScriptsRun(now(), (host) => host.off()));

  test('a clock that jumps', async () => {
    const { host, job } = now();
    for (const jump of ['-1 hour', '+3 hours']) {
      await host.sh('rm -f /srv/evidence/go');
      const during = pools.map((pool) => job(pool, `${untilGo}; echo end`));
      await Promise.all(during.map((run) => run.says(/begun/)));
      await host.sh(`date -s '${jump}' && touch /srv/evidence/go`);
      for (const run of during) expect.soft(await run.ended, jump).toMatchObject({ code: 0, stdout: 'begun\nend\n' });
      for (const pool of pools)
        expect.soft(await job(pool, 'echo passed').ended, jump).toMatchObject({ code: 0, stdout: 'passed\n' });
    }
    await host.sh(`date -s '-2 hours'`);
  });

  test('an upgrade, and back', async () => {
    const { host, job } = now();
    await host.sh(`rm -f /srv/evidence/go; mkdir -p /root/next && cd /root/next && tar -xzf /mnt/onejob.tgz
sed -i 's/^  "version": ".*",/  "version": "9.0.0",/' onejob/package.json && tar -I 'gzip -1' -cf onejob.tgz onejob && rm -r onejob`);
    const during = pools.map((pool) => job(pool, `${untilGo}; echo end`));
    await Promise.all(during.map((run) => run.says(/begun/)));
    expect(await host.sh('onejob service upgrade /root/next/onejob.tgz')).toContain('version 9.0.0 now');
    await host.sh('onejob service rollback');
    expect(await host.sh('onejob --version')).not.toContain('9.0.0');
    await host.sh('touch /srv/evidence/go');
    for (const run of during) expect.soft(await run.ended).toMatchObject({ code: 0, stdout: 'begun\nend\n' });
    expect(await census(now())).toMatch(/ 0 of them left/);
  });

  test('a full disk below the state', async () => {
    const { host, job, isReady } = now();
    const mount =
      'truncate -s 96M /srv/disk && busybox mke2fs -F /srv/disk >/dev/null && mount -t ext4 -o loop /srv/disk /var/lib/onejob';
    await withStateOn(now(), mount, async () => {
      await host.sh('cat /dev/zero >/var/lib/onejob/filler 2>/dev/null || true; sync');
      const refused = await job('build', 'echo never').ended;
      expect.soft(refused.code).not.toBe(0);
      expect.soft(refused.stderr).toMatch(/full|space/i);
      expect.soft((await host.start('onejob status').ended).stdout).toMatch(/The disk that holds .* left/);
      await host.sh('rm /var/lib/onejob/filler');
      for (const pool of pools) {
        await isReady(pool);
        await expect.poll(async () => (await job(pool, 'echo again').ended).stdout, patient).toBe('again\n');
      }
    });
  });

  test('a full disk below the Engine', async () => {
    const { host, job, isReady } = now();
    await withStateOn(now(), 'mount -t tmpfs tmpfs /var/lib/onejob', async () => {
      await host.sh('rm -f /srv/evidence/go');
      const during = job('build', `${untilGo}; exit 3`);
      await during.says(/begun/);
      await host.sh(`for size in 1G 64M 1M 4K; do while fallocate -l $size "$(mktemp /srv/filler.XXXXXX)"; do :; done 2>/dev/null; done
sync; ! head -c 1M /dev/zero >/srv/filler.last`);
      await expect.poll(async () => (await host.start('onejob status').ended).stdout, patient).toMatch(/below disk\.min_free/);
      await host.sh('touch /srv/evidence/go');
      expect.soft((await during.ended).code).toBe(3);
      const waits = job('build', 'echo waited');
      await waits.says(/nothing new starts: .*below disk\.min_free/);
      await host.sh('rm /srv/filler.*');
      expect.soft(await waits.ended).toMatchObject({ code: 0, stdout: 'waited\n' });
      for (const pool of pools) {
        await isReady(pool);
        expect(await job(pool, 'echo again').ended).toMatchObject({ code: 0, stdout: 'again\n' });
      }
    });
  });
}

/** Gives an act a disk of its own below the state, which is as before afterwards. `mount`: makes it, and mounts it there. */
async function withStateOn({ host, isReady }: Tried, mount: string, act: () => Promise<void>): Promise<void> {
  await host.sh(`systemctl stop onejob && mkdir -p /srv/was && cp -a /var/lib/onejob/. /srv/was/
${mount} && cp -a /srv/was/. /var/lib/onejob/ && systemctl start onejob`);
  for (const pool of pools) await isReady(pool);
  await act();
  await host.sh(`systemctl stop onejob && rm -rf /srv/was && cp -a /var/lib/onejob /srv/was && umount /var/lib/onejob
rm -rf /var/lib/onejob && mv /srv/was /var/lib/onejob && rm -f /srv/disk && systemctl start onejob`);
}

function lastAct(now: () => Tried): void {
  test('its removal, with a census', async () => {
    const { host } = now();
    await host.sh('onejob down --end --forget && onejob service uninstall');
    expect.soft(await census(now())).toMatch(/ 0 of them left|Nothing/);
    await host.sh(removal);
    expect(await census(now())).toBe('Nothing of onejob is here.');
    expect((await host.sh(traces)).trim()).toBe('');
  });
}
