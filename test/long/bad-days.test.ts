/**
 * Bad days that take long: a gigabyte of output, a manager that stands still, a clock that jumps, a full disk, a large
 * workspace that changes while it is sent. Running jobs notice none of it, and everything continues by itself afterwards.
 */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Transform } from 'node:stream';
import { afterAll, describe, expect, test } from 'vitest';
import { engineAt } from '../support/engine-http.ts';
import { images } from '../support/images.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { wallClock } from '../support/wall-clock.ts';

const docker = { name: 'docker', missing: lacks('docker'), pool: `runtime: docker, image: "${images.base}"` };
const bubblewrap = { name: 'bubblewrap', missing: lacks('bubblewrap'), pool: 'runtime: process' };
const members = [docker, bubblewrap];

/** Bytes of memory a process has now, from proc_pid_status(5). */
function memoryOf(pid: number): number {
  return Number(/^VmRSS:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) * 1024;
}

/** The most memory a process has until `end`, by looking often. */
async function peakOf(pid: number, end: Promise<unknown>): Promise<number> {
  let peak = memoryOf(pid);
  const timer = setInterval(() => {
    peak = Math.max(peak, memoryOf(pid));
  }, 50);
  await end;
  clearInterval(timer);
  return peak;
}

/** A disk of `size` bytes, gone afterwards. */
function tinyDisk(size: number): Disposable & { readonly path: string; fill(): void; free(): void } {
  const path = mkdtempSync(join(tmpdir(), 'oj-disk-'));
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${size},mode=755`, 'onejob-test', path]);
  if (mounted.status !== 0) throw new Error(`cannot mount a tmpfs: ${mounted.stderr}`);
  const filler = join(path, 'filler');
  return {
    path,
    fill: () => void spawnSync('dd', ['if=/dev/zero', `of=${filler}`, 'bs=4k']),
    free: () => rmSync(filler, { force: true }),
    [Symbol.dispose]() {
      spawnSync('umount', ['-l', path]);
      rmSync(path, { recursive: true });
    },
  };
}

/** It misses the end of its job, and of the agent. */
async function standsStill(pool: string): Promise<void> {
  await using here = await onejob({ config: `pools: { default: { agents: 1, ${pool} } }` });
  const flags = join(here.dir, 'flags');
  mkdirSync(flags);
  chmodSync(flags, 0o777);
  const daemon = await here.up();
  const script = 'echo begun; until [ -e /flags/go ]; do sleep 0.05; done; echo made >end; echo end; : >/flags/end; exit 4';
  const run = here.run('--volume', `${flags}:/flags:rw`, '--artifact', 'end', '--', 'sh', '-c', script);
  await run.says(/begun/);
  daemon.freeze();
  writeFileSync(join(flags, 'go'), '');
  await new Promise((resolve) => setTimeout(resolve, 30_000));
  expect(existsSync(join(flags, 'end'))).toBe(true);
  daemon.thaw();
  expect(await run.ended).toMatchObject({ code: 4, stdout: 'begun\nend\n' });
  expect(readFileSync(join(here.cwd, 'end'), 'utf8')).toBe('made\n');
}

const there = members.filter(({ missing }) => !missing);

// On both at once: it is waited for, and for nothing else.
test.skipIf(there.length === 0)('a manager that stands still for 30 s moves the end of no job', async () => {
  await Promise.all(there.map(({ pool }) => standsStill(pool)));
});

let many: string | null = null;
/** A folder of 50,000 files; making it, and removing it, may take a minute. */
function manyFiles(): string {
  if (many !== null) return many;
  many = mkdtempSync(join(tmpdir(), 'oj-many-'));
  for (let file = 0; file < 50_000; file++) {
    const folder = join(many, `folder-${Math.floor(file / 1000)}`);
    if (file % 1000 === 0) mkdirSync(folder);
    writeFileSync(join(folder, `file-${file % 1000}`), `${Math.floor(file / 1000)} ${file % 1000}\n`);
  }
  return many;
}
afterAll(() => {
  if (many !== null) rmSync(many, { recursive: true });
}, 600_000);

describe.each(members)('on $name', ({ missing, pool, name }) => {
  const it = test.skipIf(missing);

  it('a gigabyte of output: flat memory, its beginning and its end kept, one line that says what is missing', async () => {
    const limit = 8 * 2 ** 20;
    const config = `{ log_limit: 8MiB, pools: { default: { agents: 1, ${pool}, stop_grace: 1s } } }`;
    await using here = await onejob({ config });
    const daemon = await here.up();
    const warm = here.run('--no-workspace', '--', 'sh', '-c', 'seq 1 200000');
    expect((await warm.ended).stdout.length).toBe(1_288_895);
    const before = memoryOf(daemon.pid);
    const line = 'repeated '.repeat(100);
    const size = 1_073_741_824;
    const script = `echo first >&2; yes '${line}' | head -c ${size}; echo; echo FINAL ERROR >&2; exit 3`;
    const run = here.cli(['run', '--detach', '--no-workspace', '--', 'sh', '-c', script]);
    const job = (await run.ended).stdout.trim();
    let live = 0;
    const follow = (async () => {
      for await (const { stream, bytes } of here.api.logs({ job }, { follow: true })) if (stream === 'stdout') live += bytes.length;
    })();
    const peak = await peakOf(
      daemon.pid,
      here.api.settled(job).then(() => {}),
    );
    await follow;
    expect((await here.api.job(job)).result).toEqual({ kind: 'code', code: 3 });
    console.log(`${name}: a gigabyte: manager ${before >> 20} MiB before, ${peak >> 20} MiB at most; ${live} bytes shown live`);
    // Room for what Node collects late on a busy machine; by hand it was 12 MiB. A gigabyte that is held does not fit.
    expect(peak - before).toBeLessThan(192 * 2 ** 20);
    const logs = here.cli(['logs', job]);
    const { stderr } = await logs.ended;
    const out = logs.stdoutBytes;
    const gap =
      /^onejob: output is not kept here: (at least )?([\d,]+) bytes of stdout after (?:at least )?its first ([\d,]+) bytes$/gm;
    const gaps = [...stderr.matchAll(gap)].map(([, least, missing = '', after = '']) => ({
      isExact: least === undefined,
      missing: Number(missing.replaceAll(',', '')),
      after: Number(after.replaceAll(',', '')),
    }));
    const kept = gaps[0]?.after ?? 0;
    const told = out.length + gaps.reduce((sum, { missing }) => sum + missing, 0);
    // On a busy machine the Engine may delete a file of its log before anybody could count it.
    if (name === 'docker' && !gaps.every(({ isExact }) => isExact)) expect(told).toBeLessThanOrEqual(size + 1);
    else expect(told).toBe(size + 1);
    expect(kept).toBeGreaterThanOrEqual(limit / 2);
    expect(stderr).toMatch(/^first$/m);
    expect(stderr).toMatch(/^FINAL ERROR$/m);
    // What is kept is what was written, there.
    const whole = Buffer.from(`${line}\n`);
    expect(out.subarray(0, kept).equals(Buffer.alloc(kept, whole))).toBe(true);
    const end = 2 ** 20;
    const phase = (size - end) % whole.length;
    expect(out.subarray(-1 - end, -1).equals(Buffer.alloc(end + phase, whole).subarray(phase))).toBe(true);
    const files = readdirSync(join(here.stateDir, 'logs')).map((file) => statSync(join(here.stateDir, 'logs', file)).size);
    expect(files.reduce((sum, each) => sum + each, 0)).toBeLessThan(limit + 6 * 2 ** 20);
  });

  it('eight busy agents end by one SIGTERM, each with its last words', async () => {
    await using here = await onejob({ config: `pools: { default: { agents: 8, ${pool}, stop_grace: 30s } }` });
    const daemon = await here.up();
    const script = 'trap "echo bye; exit 0" TERM; echo begun; while :; do sleep 0.1; done';
    const runs = Array.from({ length: 8 }, () => here.run('--no-workspace', '--', 'sh', '-c', script));
    await Promise.all(runs.map((run) => run.says(/begun/)));
    const ends = runs.map((run) => run.ended);
    expect((await daemon.stop()).code).toBe(0);
    for (const ended of await Promise.all(ends)) expect(ended).toMatchObject({ code: 125, stdout: 'begun\nbye\n' });
    expect((await here.census()).left).toEqual([]);
  });

  it('50,000 files go in and arrive, and the daemon stays small', async () => {
    await using here = await onejob({ config: `pools: { default: { agents: 1, ${pool} } }` });
    const daemon = await here.up();
    const cwd = manyFiles();
    const before = memoryOf(daemon.pid);
    const start = performance.now();
    const run = here.cli(['run', '--', 'sh', '-c', 'find . -type f | wc -l; cat folder-49/file-999'], { cwd });
    const peak = await peakOf(daemon.pid, run.ended);
    expect(await run.ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/^ *50000\n49 999\n$/) });
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    console.log(`${name}: 50,000 files in ${seconds} s; manager ${before >> 20} MiB before, ${peak >> 20} MiB at most`);
    expect(peak - before).toBeLessThan(192 * 2 ** 20);
    // Removing so many takes as long as the disk does.
    expect((await daemon.stop()).code).toBe(0);
  });

  it('a file that vanishes while the workspace is sent is left out, and that is said', async () => {
    await using here = await onejob({ config: `pools: { default: { agents: 1, ${pool} } }` });
    await here.up();
    writeFileSync(join(here.cwd, 'a-large'), '');
    truncateSync(join(here.cwd, 'a-large'), 300 * 2 ** 20);
    for (const file of ['y-stays', 'z-vanishes']) writeFileSync(join(here.cwd, file), file);
    // Held in the middle of the large file, since nothing tells when the last one is read.
    using door = await narrowDoor(join(here.dir, 'd.sock'), here.socket, 2 ** 20);
    const run = here.cli(['run', '--', 'sh', '-c', 'ls; stat -c %s a-large'], { env: { ONEJOB_SOCKET: door.path } });
    await door.held;
    rmSync(join(here.cwd, 'z-vanishes'));
    door.open();
    const ended = await run.ended;
    expect(ended).toMatchObject({ code: 0, stdout: `a-large\ny-stays\n${300 * 2 ** 20}\n` });
    expect(ended.stderr).toMatch(/^onejob: Skipped z-vanishes: it disappeared while the workspace was sent\.$/m);
  });

  it('a wall clock that jumps moves no deadline, and no output is lost', async () => {
    await using here = await onejob({ config: `pools: { default: { agents: 2, ${pool}, stop_grace: 1s } }` });
    const clock = wallClock(here.dir);
    Object.assign(here.env, clock.env);
    await here.up();
    const tick = 'i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done';
    const long = here.run('--no-workspace', '--timeout', '1h', '--', 'sh', '-c', `${tick}; exit 8`);
    const short = here.run('--no-workspace', '--timeout', '6s', '--', 'sh', '-c', 'echo begun; sleep 600');
    const begun = short.says(/begun/).then(() => performance.now());
    const [started] = await Promise.all([begun, long.says(/line 3/)]);
    clock.jump(-400 * 86_400_000);
    await long.says(/line 8/);
    clock.jump(2 * 86_400_000);
    expect((await short.ended).code).toBe(124);
    // What is lacking is what the machine took to show that it had begun.
    expect(performance.now() - started).toBeGreaterThan(3_000);
    expect(await long.ended).toMatchObject({ code: 8, stdout: Array.from({ length: 30 }, (_, i) => `line ${i}\n`).join('') });
    clock.jump(-86_400_000);
    expect((await here.run('--no-workspace', '--timeout', '1m', '--', 'sh', '-c', 'echo after').ended).stdout).toBe('after\n');
    const jobs = await here.api.jobs({ all: true, pool: null });
    // Jobs are listed by the wall clock, so their order says nothing here.
    const job = jobs.find(({ command }) => command.join(' ').includes('exit 8'));
    const late = jobs.find(({ command }) => command.join(' ').includes('echo after'));
    // The clock did jump: that job began yesterday.
    expect(Math.abs((late?.startedAt ?? 0) + 86_400_000 - Date.now())).toBeLessThan(3_600_000);
    expect((await here.cli(['logs', job?.id ?? '']).ended).stdout).toContain('line 29');
  });

  const script = 'echo "attempt $ONEJOB_ATTEMPT"; [ "$ONEJOB_ATTEMPT" = 2 ] && exit 5; while :; do sleep 0.1; done';

  /** As an administrator's hand, or the kernel short of memory, would. */
  async function lose(agent: string): Promise<void> {
    if (name === 'docker') {
      using engine = engineAt();
      const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.agent=${agent}`] }));
      const [container] = (await engine.ok('GET', `/containers/json?filters=${filters}`)) as { Id: string }[];
      await engine.ok('DELETE', `/containers/${container?.Id}?force=1&v=1`);
      return;
    }
    // Stopped first: anyone who sees another one of them die must not live to write that down.
    for (const signal of ['SIGSTOP', 'SIGKILL'] as const) {
      for (const pid of readdirSync('/proc').filter((each) => /^\d+$/.test(each))) {
        try {
          const marked = readFileSync(`/proc/${pid}/environ`, 'latin1').split('\0').includes(`ONEJOB_AGENT_MARK=${agent}`);
          if (marked) process.kill(Number(pid), signal);
        } catch {
          // It ended meanwhile.
        }
      }
    }
  }

  test.skipIf(missing)(
    '--retries starts a job over when its agent was lost under it, and says so; without it is lost',
    async () => {
      await using here = await onejob({ config: `pools: { default: { agents: 2, ${pool}, stop_grace: 200ms } }` });
      await here.up();
      const runs = [here.run('--retries', '1', '--', 'sh', '-c', script), here.run('--', 'sh', '-c', script)] as const;
      await Promise.all(runs.map((run) => run.says(/attempt 1/)));
      for (const job of await here.api.jobs({ all: false, pool: null })) await lose(job.agent ?? '');
      const [again, lost] = [await runs[0].ended, await runs[1].ended];
      expect(again).toMatchObject({ code: 5, stdout: 'attempt 1\nattempt 2\n' });
      expect(again.stderr).toMatch(/^onejob: attempt 2$/m);
      expect(again.stderr).toMatch(/Tried again, because its agent was lost/);
      expect(lost).toMatchObject({ code: 125, stdout: 'attempt 1\n' });
      expect(lost.stderr).toMatch(/^onejob: job \w+ was lost: /m);
    },
  );
});

describe.each([
  { ...docker, size: 6 * 2 ** 20 },
  // Its sandboxes lie on the same disk; with so little free on it, nothing is started before either.
  { ...bubblewrap, size: 48 * 2 ** 20 },
])('on $name, with a full state disk', ({ missing, pool, size, name }) => {
  test.skipIf(missing || lacks('mount'))('what runs continues, nothing new begins, all recovers', async () => {
    using disk = tinyDisk(size);
    await using here = await onejob();
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    mkdirSync(join(disk.path, 'state'), { mode: 0o700 });
    symlinkSync(join(disk.path, 'state'), here.stateDir);
    here.configure(`pools: { default: { agents: 1, ${pool}, stop_grace: 1s, volumes: ["${flags}:/flags"] } }`);
    here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
    await here.up();
    const script = 'echo begun; until [ -e /flags/go ]; do sleep 0.05; done; seq 1 3000; exit 4';
    const running = here.run('--no-workspace', '--', 'sh', '-c', script);
    await running.says(/begun/);
    const waiting = (await here.run('--no-workspace', '--detach', '--', 'sh', '-c', 'echo waited').ended).stdout.trim();

    disk.fill();
    const refused = await untilRefused(here);
    expect(refused.code).toBe(125);
    expect(refused.stderr).toMatch(/no space left/i);
    expect(refused.stderr).toContain('Free some space on the disk that holds');
    const sent = await here.run('--', 'true').ended;
    expect(sent.code).toBe(125);
    expect(sent.stderr).toMatch(/no space left/i);
    // The job that runs continues and ends; only its end cannot be written down yet.
    writeFileSync(join(flags, 'go'), '');
    const pausedBy = async () => (await here.api.status()).pools[0]?.paused.join();
    await expect.poll(pausedBy, { timeout: 20_000 }).toMatch(/no space left/i);
    expect(await here.api.job(waiting)).toMatchObject({ state: 'queued', reason: expect.stringMatching(/no space left/i) });
    expect((await here.cli(['status']).ended).stdout).toMatch(/no space left/i);

    disk.free();
    const ended = await running.ended;
    expect(ended.code).toBe(4);
    expect(ended.stdout).toMatch(/^begun\n/);
    // Where the sandbox's own log lies on the full disk, too, what it wrote meanwhile was never there.
    if (name === 'docker')
      expect(ended.stderr).toMatch(/^onejob: output is not kept here: 13,893 bytes of stdout after its first 6 bytes$/m);
    expect((await here.api.settled(waiting)).result).toEqual({ kind: 'code', code: 0 });
    expect((await here.run('--', 'sh', '-c', 'echo new').ended).stdout).toBe('new\n');
    expect(await pausedBy()).toBe('');
    // Deleted once anyone who waits has been told.
    await expect.poll(() => readdirSync(join(here.stateDir, 'workspaces'))).toEqual([]);
    await here.close();
  });
});

/** Hands in jobs until one is refused: what is already allocated on the disk may take a few. */
async function untilRefused(here: Home) {
  for (let i = 0; i < 50; i++) {
    const ended = await here.run('--no-workspace', '--detach', '--priority', '-5', '--', 'true').ended;
    if (ended.code !== 0) return { ...ended, code: ended.code };
  }
  throw new Error('50 jobs were accepted on a full disk');
}

/** A way to the socket at `to` that holds up anyone who has sent `limit` bytes until it is opened. */
async function narrowDoor(path: string, to: string, limit: number) {
  const [held, opened] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const server = createServer({ allowHalfOpen: true }, (client) => {
    const daemon = connect({ path: to, allowHalfOpen: true });
    let passed = 0;
    const narrow = new Transform({
      async transform(bytes: Buffer, _encoding, done) {
        passed += bytes.length;
        if (passed > limit) {
          held.resolve();
          await opened.promise;
        }
        done(null, bytes);
      },
    });
    client.pipe(narrow).pipe(daemon).pipe(client);
    for (const [one, other] of [
      [client, daemon],
      [daemon, client],
    ] as const) {
      one.on('error', () => {});
      one.once('close', () => other.destroy());
    }
  });
  server.listen(path);
  await once(server, 'listening');
  return { path, held: held.promise, open: opened.resolve, [Symbol.dispose]: () => void server.close() };
}
