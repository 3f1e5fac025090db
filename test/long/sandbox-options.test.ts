/** What a pool's options do to a container: seen from inside by its jobs, and from outside by the Engine. */
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { engineAt } from '../support/engine-http.ts';
import { images } from '../support/images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const pools = (data: string, caches: string) => `
defaults: { runtime: docker, image: "${images.base}", network: none, standby: false }
pools:
  full:
    name: "opt.{5..}"
    env: { WHO: "I am {name}" }
    cpus: 0.5
    memory: 64MiB
    shm_size: 8MiB
    ulimits: { nofile: 100, core: { soft: 0, hard: 0 } }
    user: agent
    read_only: true
    tmpfs: { /scratch: 4MiB }
    volumes: [ "${data}:/datasets/data:DATA" ]
    caches: [ "${caches}/{name}:/cache:CACHE" ]
  plain: { network: default }
  strong: { cap_add: [NET_RAW, SYS_PTRACE], oom_score_adj: 700 }
  unsafe: { unsafe: { pid_host: true, seccomp_unconfined: true } }
`;

describe.skipIf(lacks('docker', 'busybox', 'root'))('the options of a pool', () => {
  test('hold inside of its sandboxes', async () => {
    await using here = await onejob();
    const [data, caches] = [join(here.dir, 'data'), join(here.dir, 'caches')];
    mkdirSync(data);
    mkdirSync(join(caches, 'opt.5'), { recursive: true });
    chmodSync(join(caches, 'opt.5'), 0o777);
    writeFileSync(join(data, 'x'), 'some data\n');
    here.configure(pools(data, caches));
    await here.up('--config', join(here.dir, 'config.yml'));
    const job = async (pool: string, script: string, ...more: string[]) => {
      const ended = await here.run('--pool', pool, '--no-workspace', ...more, '--', 'sh', '-c', script).ended;
      expect(ended.stderr).not.toMatch(/Cannot/);
      return ended.stdout.split('\n').slice(0, -1);
    };
    /** One line of a process's status. */
    const status = (name: string) => `sed -n 's/^${name}:[^0-9a-f]*//p' /proc/self/status`;

    const [full, plain, strong, unsafe] = await Promise.all([
      job(
        'full',
        `echo "$WHO $(hostname)"; id -un; ulimit -n; ulimit -c
        df -k /dev/shm /scratch | sed 1d | tr -s ' ' | cut -d' ' -f2
        cat $DATA/x; touch $DATA/y 2>/dev/null || echo read-only; echo kept >$CACHE/file
        touch /y 2>/dev/null || echo root read-only; touch /tmp/y /scratch/y y && echo the rest is writable
        cat /proc/self/oom_score_adj`,
      ),
      job(
        'plain',
        `${status('CapEff')}; ${status('NoNewPrivs')}; ${status('Seccomp')}; cat /proc/1/comm; cat /proc/self/oom_score_adj
        touch f; chown agent f && stat -c %U f; su agent -c 'id -un'; ip route | grep -c ^default`,
      ),
      job('strong', `${status('CapEff')}; cat /proc/self/oom_score_adj`),
      job('unsafe', `[ -d /proc/${process.pid} ] && echo 'sees the host'; ${status('Seccomp')}`),
    ]);
    expect(full).toEqual([
      ...['I am opt.5 opt.5', 'agent', '100', '0', '8192', '4096', 'some data', 'read-only'],
      ...['root read-only', 'the rest is writable', '500'],
    ]);
    expect(readFileSync(join(caches, 'opt.5', 'file'), 'utf8')).toBe('kept\n');
    // Docker's fourteen, a80425fb, without NET_RAW (bit 13), MKNOD (bit 27) and AUDIT_WRITE (bit 29).
    expect(plain).toEqual(['00000000800405fb', '0', '2', 'docker-init', '500', 'agent', 'agent', '1']);
    expect(strong).toEqual(['00000000800c25fb', '700']);
    expect(unsafe).toEqual(['sees the host', '0']);

    expect(await job('plain', 'cat $IN/x', '--volume', `${data}:/in:IN`)).toEqual(['some data']);
    const missing = join(here.dir, 'no-such-folder');
    const refused = await here.run('--pool', 'plain', '--no-workspace', '--volume', `${missing}:/in`, '--', 'true').ended;
    expect(refused.code).toBe(125);
    expect(refused.stderr).toContain(missing);
  });

  test('are what the Engine says of a standby, with its labels', async () => {
    await using here = await onejob();
    const data = join(here.dir, 'data');
    mkdirSync(join(data, 'opt.5'), { recursive: true });
    here.configure(
      pools(data, data)
        .replace('standby: false', 'standby: true')
        .replace(/ {2}plain:.*/s, ''),
    );
    await here.up('--config', join(here.dir, 'config.yml'));
    const owner = (await here.api.status()).owner;
    using engine = engineAt();
    const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.owner=${owner}`, 'onejob.pool=full'] }));
    const look = async () => (await engine.ok('GET', `/containers/json?filters=${filters}`)) as { Id: string }[];
    await expect.poll(look).toHaveLength(1);
    const [one] = await look();
    const seen = (await engine.ok('GET', `/containers/${one?.Id}/json`)) as Record<string, Record<string, unknown>>;
    expect(String(seen.Name)).toMatch(/^\/onejob-opt\.5-[0-9a-f]{10}$/);
    expect(seen.Config?.Labels).toMatchObject({
      'onejob.owner': owner,
      'onejob.pool': 'full',
      'onejob.slot': 'full/1',
      'onejob.name': 'opt.5',
      'onejob.devices': '',
      'onejob.agent': expect.stringMatching(/^[0-9a-f]{10}$/),
    });
    expect(seen.HostConfig).toMatchObject({
      NanoCpus: 5e8,
      Memory: 2 ** 26,
      MemorySwap: 2 ** 26,
      Init: true,
      AutoRemove: false,
      OomScoreAdj: 500,
      Privileged: false,
      LogConfig: { Type: 'local' },
    });
    // S8: nothing of a job, and nothing of a secret, is in what anybody on this host may read of a sandbox.
    expect(seen.Config?.Env).toEqual(expect.arrayContaining(['WHO=I am opt.5', 'DATA=/datasets/data', 'CACHE=/cache']));
  });
});

describe.skipIf(lacks('docker', 'busybox', 'root'))('network: internet', () => {
  test('is had from a config, and its rules go with the daemon', async () => {
    await using here = await onejob({ config: `pools: { web: { runtime: docker, image: "${images.base}", network: internet } }` });
    const daemon = await here.up();
    const ended = await here.run('--no-workspace', '--', 'sh', '-c', 'ip route | grep -c ^default; cat /etc/resolv.conf').ended;
    expect(ended.stdout).toMatch(/^1\n.*nameserver 127\.0\.0\.11/s);
    const kinds = async () => (await here.census()).rows.map((row) => row.kind);
    // The job's own container may be gone before the next standby's is there.
    await expect.poll(kinds).toEqual(expect.arrayContaining(['container', 'network', 'rules']));
    await daemon.stop();
    expect(await kinds()).not.toContain('rules');
  });
});
