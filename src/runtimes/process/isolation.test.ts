/** What a hostile job can reach, and which limits apply, with real sandboxes. The parts that need root say so. */
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import { exchange } from '../../../test/support/exchanger.ts';
import type { Exit } from '../../core/slot.ts';
import type { Recipe, Runtime } from '../../ports/runtime.ts';
import { allPids, readOr } from '../../system/process-identity.ts';
import { frame, MarkerFilter, readyMarker } from '../gate.ts';
import { firstUid } from '../uids.ts';
import { probeBubblewrap } from './bubblewrap.ts';
import { findCgroups } from './cgroup.ts';
import { createProcessRuntime } from './process.ts';

const never = new AbortController().signal;
const root = process.getuid?.() === 0;
const bubblewrap = (await probeBubblewrap(never, root ? firstUid : null)).sandbox.end === 'works';
const cgroups = findCgroups(`probe-${process.pid}`);

/** What a mode or a machine does not promise is not a test of it, so that it does not count as one that was left out. */
function testIn(applies: boolean): typeof test | ((...test: unknown[]) => void) {
  return applies ? test : () => {};
}

describe.each(['auto', 'off'] as const)('jobs with bubblewrap %s', (mode) => {
  const owner = `hostile-${process.pid}-${mode}`;
  let dir: string;
  let secrets: string;
  let socket: Server;
  let runtime: Runtime;
  let events: ReturnType<typeof watch>;
  const told: string[] = [];

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'onejob-state-'));
    secrets = mkdtempSync(join(tmpdir(), 'onejob-secrets-'));
    chmodSync(secrets, 0o755);
    writeFileSync(join(secrets, 'token'), 'hush', { mode: 0o600 });
    writeFileSync(join(dir, 'store.db'), 'hush', { mode: 0o600 });
    socket = createServer((client) => client.end('hush')).listen(join(secrets, 'engine.sock'));
    await new Promise((resolve) => socket.once('listening', resolve));
    chmodSync(join(secrets, 'engine.sock'), 0o660);
    runtime = await createProcessRuntime({ owner, dir: join(dir, 'agents'), bubblewrap: mode });
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
    await runtime.sweep(never);
    expect(leftoversOf(join(dir, 'agents'), owner)).toEqual([]);
    await events.stop();
    socket.close();
    for (const path of [dir, secrets]) rmSync(path, { recursive: true });
  });

  const standby = async (changes: Partial<Recipe> = {}) => {
    const spec = specOf({ ...plainRecipe, ...changes });
    await runtime.prepare(spec, (line) => told.push(line), never);
    const log = follow(runtime, spec.agent);
    await log.until(`${readyMarker(spec.agent)}\n`);
    return { agent: spec.agent, log };
  };
  const run = async (script: string, changes: Partial<Recipe> = {}): Promise<{ out: string; exit: Exit; agent: string }> => {
    const { agent, log } = await standby(changes);
    await runtime.release(agent, frame(agent, script), never);
    const exit = await events.exit(agent);
    await log.ended;
    const filter = new MarkerFilter(agent);
    const out = log.chunks.map((chunk) => Buffer.from(chunk.stream === 'stdout' ? filter.push(chunk.bytes) : chunk.bytes));
    return { out: Buffer.concat(out).toString(), exit, agent };
  };

  const sandboxed = mode === 'auto' && bubblewrap;
  const separate = root || sandboxed;

  testIn(separate)('cannot read what is secret on this host', async () => {
    const other = await standby();
    await runtime.release(
      other.agent,
      frame(other.agent, 'echo hush >mine; chmod 644 mine; chmod 755 . ..; echo up; exec sleep 600'),
      never,
    );
    await other.log.until('up\n');
    const places = [
      `${secrets}/token`,
      `${dir}/store.db`,
      '/etc/shadow',
      `/proc/${process.pid}/environ`,
      `/proc/${process.pid}/root/etc/shadow`,
      `${runtime.capabilities.workspace(other.agent).replace('/workspace', `${dir}/agents/agents/${other.agent}/work`)}/mine`,
    ];
    const script = [
      ...places.map((path) => `cat '${path}' 2>/dev/null && echo 'READ ${path}'`),
      `ls '${dir}' 2>/dev/null && echo 'LISTED state'`,
      `for s in '${secrets}/engine.sock' /var/run/docker.sock /run/docker.sock; do [ -w $s ] && echo "OPEN $s"; done`,
      'cat /proc/[0-9]*/environ 2>/dev/null | grep -q hush && echo READ environ',
      'mount -o remount,rw / 2>/dev/null && echo REMOUNTED; touch /usr/x /etc/x 2>/dev/null && echo WROTE',
      'id -u; id -G; grep -E "^(CapEff|CapPrm|CapBnd|NoNewPrivs)" /proc/self/status',
    ];
    const { out } = await run(script.join('\n'));
    expect(out).not.toMatch(/READ|LISTED|OPEN|REMOUNTED|WROTE|hush/);
    const [uid, groups] = out.split('\n');
    expect(Number(uid)).not.toBe(0);
    if (root) expect(Number(uid)).toBeGreaterThan(firstUid);
    if (root) expect(groups).toBe(uid);
    if (root) expect(out.match(/Cap\w+:\t0{16}/g)).toHaveLength(3);
    expect(out).toContain('NoNewPrivs:\t1');
    await runtime.remove(other.agent);
  });

  testIn(sandboxed)('get no folder that became a link after it was checked', async () => {
    mkdirSync(join(secrets, 'checked'));
    symlinkSync('/etc', join(secrets, 'swapped'));
    for (const name of ['checked', 'swapped']) {
      const host = join(secrets, name);
      const mounts = [{ host, container: '/data', readOnly: true, variable: null, cache: null }];
      // As if each had been a folder when it was checked.
      const spec = specOf({ ...plainRecipe, mounts }, { places: [host] });
      await runtime.prepare(spec, () => {}, never);
      const released = runtime.release(spec.agent, frame(spec.agent, 'exit 0'), never);
      if (name === 'checked') await released;
      else await expect(released).rejects.toMatchObject({ code: 'E_MOUNT_CHANGED' });
    }
  });

  testIn(sandboxed)('leave no shell with a folder that became a link after it was checked', async () => {
    mkdirSync(join(secrets, 'plain'));
    writeFileSync(join(secrets, 'plain', 'file'), '');
    symlinkSync('/etc', join(secrets, 'moved'));
    const { agent } = await run('exit 1');
    await runtime.holding?.hold(agent);
    const shell = (name: string) => {
      const host = join(secrets, name);
      const mounts = [{ host, container: '/data', readOnly: true, variable: null, cache: null }];
      const spec = specOf({ ...plainRecipe, mounts }, { places: [host] });
      return runtime.holding?.shell(agent, { spec, command: ['ls', '/data'], terminal: null }, never);
    };
    const good = await shell('plain');
    let said = '';
    for await (const { bytes } of good?.output ?? []) said += Buffer.from(bytes).toString();
    expect([said, await good?.ended]).toEqual(['file\n', 0]);
    await expect(shell('moved')).rejects.toMatchObject({ code: 'E_MOUNT_CHANGED' });
    await runtime.holding?.release(agent);
  });

  testIn(root)('run as users that no two agents share', async () => {
    const made = await Promise.all(Array.from({ length: 4 }, () => run('id -u')));
    expect(new Set(made.map(({ out }) => out)).size).toBe(4);
  });

  testIn(sandboxed)('see their own processes, host name and files only', async () => {
    const { out } = await run(
      'hostname; ls /; ls /proc | grep -c "^[0-9]"; ls -A /home /tmp /run /workspace; echo $HOME; touch $HOME/x /tmp/y',
    );
    expect(out).toMatch(/^con\.1\n/);
    expect(out.split('\n')).not.toContain('root');
    expect(out).toContain('/home:\njob\n');
    expect(out).toContain('/home/job\n');
  });

  testIn(sandboxed)('leave no process behind, not even one of another session', async () => {
    const mark = `70${process.pid}`;
    const other = `setsid sh -c 'trap "" TERM HUP; : >there; sleep ${mark}; :' >/dev/null 2>&1`;
    const { exit } = await run(`${other} & until [ -e there ]; do sleep 0.02; done; exit 0`);
    expect(exit).toEqual({ kind: 'code', code: 0 });
    await expect.poll(() => readdirSync('/proc').some((pid) => /^\d+$/.test(pid) && commandOf(pid).includes(mark))).toBe(false);
  });

  testIn(separate)("make no system call that reaches the manager's keys, or outlives them", async () => {
    const [keyctl, add] = process.arch === 'arm64' ? [219, 217] : [250, 248];
    // The session's keyring by its number, which makes one where there is none; a key in it for the next job.
    const calls = `0 + syscall(${keyctl}, 0, -3, 1), 0 + $!, 0 + syscall(${add}, $t = "user", $n = "left", $v = "x", 1, -3), 0 + $!`;
    const { out } = await run(
      `perl -e '$, = " "; print ${calls}'; echo; grep ^Seccomp: /proc/self/status; unshare -Ur true 2>/dev/null && echo NAMESPACE; echo over`,
    );
    expect(out).toBe('-1 1 -1 1\nSeccomp:\t2\nover\n');
  });

  testIn(sandboxed)("are not told the names of the manager's keys", async () => {
    const { out } = await run('cat /proc/keys 2>/dev/null && echo READ; echo over');
    expect(out).toBe('over\n');
  });

  testIn(separate)('run compilers, interpreters and tools as ever', async () => {
    const script = [
      'cd $ONEJOB_WORKSPACE 2>/dev/null || cd /workspace',
      `printf '#include <pthread.h>\\n#include <stdio.h>\\nvoid *f(void *x) { return x; } int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); pthread_join(t, 0); puts("threads"); }' >a.c`,
      'if command -v gcc >/dev/null; then gcc -pthread a.c -o a && ./a; else echo threads; fi',
      'git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && echo git',
      `perl -MSocket -e 'socket($s, AF_INET, SOCK_STREAM, 0) && print "socket\\n"'`,
      'tar -cf x.tar a.c && tar -xf x.tar && xz -9 -T2 x.tar && echo tar',
      'sleep 0.1 & wait; (ulimit -c 0; timeout 5 sh -c "echo timeout")',
    ];
    const { out } = await run(script.join('\n'));
    expect(out).toBe('threads\ngit\nsocket\ntar\ntimeout\n');
  });

  testIn(sandboxed)('have no network when told so', async () => {
    // Some kernels give each network an interface for tunnels, such as sit0, which leads nowhere.
    const { out } = await run(
      'grep -c : /proc/net/route; wc -l </proc/net/route; grep -v "sit0\\|tunl0" /proc/net/dev | grep -c :',
      {
        network: 'none',
      },
    );
    expect(out).toBe('0\n1\n1\n');
  });

  test('get no descriptor and no variable of the manager', async () => {
    process.env.ONEJOB_TEST_SECRET = 'hush';
    const { out } = await run('env; for fd in /proc/$$/fd/*; do echo "fd $(readlink $fd)"; done');
    delete process.env.ONEJOB_TEST_SECRET;
    expect(out).not.toContain('hush');
    const targets = [...out.matchAll(/^fd (.*)$/gm)]
      .map(([, target]) => target)
      .filter((target) => !/^(pipe:\[\d+\]|\/dev\/null)$/.test(target ?? ''));
    expect(targets).toEqual([]);
  });

  testIn(root && mode === 'off')('have their files where no user of the host can put something first', () => {
    const above = (path: string): string[] => (path === '/' ? [path] : [path, ...above(dirname(path))]);
    const open = above(runtime.capabilities.workspace('agent')).filter((path) => {
      const found = lstatSync(path, { throwIfNoEntry: false });
      return found !== undefined && (found.uid !== 0 || (found.mode & 0o022) !== 0);
    });
    expect(open).toEqual([]);
  });

  testIn(root && mode === 'off')('leave nothing in shared folders, and nothing of the host goes with it', async () => {
    const left = join('/tmp', `oj-left-${process.pid}`);
    const [victims, links] = [join(secrets, 'victims'), join(secrets, 'links')];
    for (const path of [victims, links]) mkdirSync(path);
    chmodSync(links, 0o777);
    for (let n = 0; n < 50; n++) writeFileSync(join(victims, `of-root-${n}`), '', { mode: 0o600 });
    for (let n = 0; n < 100; n++) symlinkSync(victims, join(links, String(n)));
    const script = [
      'umask 0',
      `mkdir ${left} && for n in $(seq 0 99); do mkdir ${left}/$n && : >${left}/$n/f; done`,
      `mkdir "$(printf '${left}-\\377')" && ln -s ${victims} "$(printf '${left}-\\377/link')" && ln -s ${victims} ${left}-link`,
      'echo made; exec sleep 600',
    ];
    const { agent, log } = await standby();
    await runtime.release(agent, frame(agent, script.join('\n')), never);
    await log.until('made\n');
    await exchange(left, links, 100);
    const isLeft = async () => (await runtime.list(never)).some((one) => one.agent === agent);
    // Who exchanges folders may keep some of them from being removed for a moment, and onejob tries again.
    for (let tries = 0; tries < 50 && (await isLeft()); tries++)
      await runtime.remove(agent).catch((error: unknown) => expect(error).toMatchObject({ code: 'E_REMOVE', retry: true }));
    expect(await isLeft()).toBe(false);
    expect(readdirSync(victims).length).toBe(50);
    const names = readdirSync('/tmp', { encoding: 'latin1' }).filter((name) => name.startsWith(`oj-left-${process.pid}`));
    expect(names).toEqual([]);
  });

  testIn(root && mode === 'off')(
    'leave no memory and no queue of the kernel behind, and nothing where programs keep their locks',
    async () => {
      const left = `/run/lock/oj-left-${process.pid}`;
      const { agent, out } = await run(`ipcmk -M 65536 -Q -S 1 >/dev/null && echo made; echo x >${left}; id -u`);
      const [made, uid] = out.split('\n');
      expect(made).toBe('made');
      await runtime.remove(agent);
      for (const kind of ['shm', 'msg', 'sem'])
        expect(readFileSync(`/proc/sysvipc/${kind}`, 'utf8')).not.toMatch(new RegExp(`\\b${uid}\\b`));
      expect(existsSync(left)).toBe(false);
    },
  );

  testIn(root && mode === 'off')(
    'take over no program that reads their files: it finds nothing of them, and has no right that they lack',
    async () => {
      const none = { top: null, unified: null, memory: null, cpu: null, pids: null, kills: false };
      const bare = await createProcessRuntime({ owner: `${owner}-left`, dir: join(dir, 'left'), bubblewrap: mode, cgroups: none });
      const seen = watch(bare);
      await seen.connected();
      const spec = specOf(plainRecipe);
      const { agent } = spec;
      await bare.prepare(spec, () => {}, never);
      const log = follow(bare, agent);
      await log.until(`${readyMarker(agent)}\n`);
      const script =
        "setsid sh -c 'echo $$ >left; exec sleep 600' & while ! [ -s left ]; do sleep 0.05; done; head -c 8000000 /dev/zero >big; cat left; id -u";
      await bare.release(agent, frame(agent, script), never);
      await seen.exit(agent);
      await log.ended;
      const [pid = '', uid = ''] = log.chunks
        .map(({ bytes }) => Buffer.from(bytes).toString())
        .join('')
        .trim()
        .split('\n')
        .slice(-2);
      expect(existsSync(`/proc/${pid}`)).toBe(true);
      // Nobody reads the stream, so tar is there to be looked at.
      const files = await bare.getFiles(agent, never);
      expect(existsSync(`/proc/${pid}`)).toBe(false);
      const statuses = () =>
        allPids()
          .map((one) => readOr(`/proc/${one}/status`, ''))
          .filter((text) => text.includes(`Uid:\t${uid}\t`));
      await expect.poll(statuses).toEqual([expect.stringMatching(/^Name:\ttar$/m)]);
      expect(statuses().join('')).toMatch(/CapBnd:\t0{16}\nCapAmb:\t0{16}\nNoNewPrivs:\t1\nSeccomp:\t2/);
      files.destroy();
      await bare.remove(agent);
      await seen.stop();
    },
  );

  testIn(sandboxed)('get mounts at their place, read-only unless told otherwise', async () => {
    const data = join(secrets, 'data');
    mkdirSync(data);
    chmodSync(data, 0o777);
    writeFileSync(join(data, 'a'), 'set\n');
    const mount = { host: data, container: '/datasets/x', readOnly: true, variable: 'DATA', cache: null };
    const fixed = await run('cat $DATA/a; touch $DATA/b 2>/dev/null || echo fixed', { mounts: [mount] });
    expect(fixed.out).toBe('set\nfixed\n');
    await run('touch /datasets/x/b', { mounts: [{ ...mount, readOnly: false }] });
    expect(existsSync(join(data, 'b'))).toBe(true);
  });

  test('get their limits on descriptors and core files, and are ended first when memory is short', async () => {
    const ulimits = [
      { name: 'nofile', soft: 100, hard: 200 },
      { name: 'core', soft: 0, hard: 0 },
    ];
    const { out } = await run('ulimit -Sn; ulimit -Hn; ulimit -c; cat /proc/self/oom_score_adj', { ulimits, oomScoreAdj: 600 });
    expect(out).toBe('100\n200\n0\n600\n');
    expect((await run('ulimit -Hc')).out).toBe('0\n');
    if (root) expect((await run('ulimit -Hc', { ulimits: [{ name: 'core', soft: 512, hard: 1024 }] })).out).toMatch(/^[12]\n/);
  });

  test('are ended by the kernel at their memory limit, or told that there is none', async () => {
    const script = 'exec tail /dev/zero';
    if (cgroups.memory === null) {
      await standby({ memory: 64 * 1024 * 1024 });
      expect(told.join('\n')).toContain('The memory limit of 67108864 bytes is not enforced');
      return;
    }
    expect((await run(script, { memory: 64 * 1024 * 1024 })).exit).toEqual({ kind: 'oom', peak: expect.any(Number) });
  });

  /** Starts as many as it can, up to 200, and says how many it could. */
  const forks = `perl -e 'for (1..200) { my $p = fork; last if !defined $p; if (!$p) { sleep 60; exit } push @p, $p } print scalar @p; kill 9, @p'`;

  testIn(cgroups.pids !== null)('get no more processes than asked for', async () => {
    const { out } = await run(forks, { pids: 64 });
    expect(Number(out)).toBeGreaterThan(40);
    expect(Number(out)).toBeLessThan(64);
    expect((await run(forks, { pids: null })).out).toBe('200');
  });

  testIn(separate)('get no more processes than asked for without a control group either', async () => {
    const none = { top: null, unified: null, memory: null, cpu: null, pids: null, kills: false };
    const bare = await createProcessRuntime({ owner: `${owner}-bare`, dir: join(dir, 'bare'), bubblewrap: mode, cgroups: none });
    const seen = watch(bare);
    await seen.connected();
    const spec = specOf({ ...plainRecipe, pids: 64 });
    await bare.prepare(spec, () => {}, never);
    const log = follow(bare, spec.agent);
    await log.until(`${readyMarker(spec.agent)}\n`);
    await bare.release(spec.agent, frame(spec.agent, forks), never);
    await seen.exit(spec.agent);
    await log.ended;
    const started = Number(/\d+$/.exec(log.text())?.[0]);
    expect(started).toBeGreaterThan(40);
    expect(started).toBeLessThan(64);
    await bare.remove(spec.agent);
    await seen.stop();
    await bare.sweep(never);
  });

  testIn(cgroups.cpu !== null)('get no more CPU than asked for', async () => {
    const started = performance.now();
    const { out } = await run('i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; times | tail -n 1; times', { cpus: 0.2 });
    const seconds = [...out.matchAll(/(\d+)m([\d.]+)s/g)].map(([, m, s]) => Number(m) * 60 + Number(s));
    expect((Math.max(...seconds) / (performance.now() - started)) * 1000).toBeLessThan(0.5);
  });

  test('are refused by name what the runtime does not support', async () => {
    const refused = (changes: Partial<Recipe>, code: string) =>
      expect(runtime.prepare(specOf({ ...plainRecipe, ...changes }), () => {}, never)).rejects.toMatchObject({
        code,
        retry: false,
      });
    await refused({ network: 'internet' }, 'E_RECIPE');
    await refused({ capAdd: ['NET_ADMIN'] }, 'E_RECIPE');
    await refused({ unsafe: { ...plainRecipe.unsafe, privileged: true } }, 'E_RECIPE');
    await refused(
      { mounts: [{ host: '/no/such', container: '/no/such', readOnly: true, variable: null, cache: null }] },
      'E_MOUNT_MISSING',
    );
    expect(leftoversOf(join(dir, 'agents'), 'nobody').filter((path) => path.includes('.new-'))).toEqual([]);
  });
});

function commandOf(pid: string): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'latin1');
  } catch {
    return '';
  }
}
