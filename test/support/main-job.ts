/** The main job, on one runtime: one script in, one exit code out, through the real command line and a real daemon. */
import { chmodSync, existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Daemon, type Home, onejob } from './onejob.ts';

interface MainJobWays {
  /** Where onejob is not to run as the user of the tests. */
  readonly make?: typeof onejob;
  /** Standard error comes as standard output, in its order. */
  readonly joinsOutput?: boolean;
  /** Jobs may see folders of this machine; default true. */
  readonly hasFolders?: boolean;
}

/**
 * `pool`: keys of the pool, as YAML. `top`: other keys of the config, known once everything that `beforeAll` starts is there.
 */
export function mainJob(
  name: string,
  missing: boolean,
  pool: string,
  top: () => string = () => '',
  { make = onejob, joinsOutput = false, hasFolders = true }: MainJobWays = {},
): void {
  describe(`on ${name}`, () => {
    // As long as a slow machine may take to come to a job's last words.
    const home = (agents: number, grace = '30s'): Promise<Home> =>
      make({ config: `${top()}pools: { default: { agents: ${agents}, ${pool}, stop_grace: ${grace} } }` });
    const it = test.skipIf(missing);

    // Of the tests that only need a daemon: starting one and its agents takes longer than what most of them ask of it.
    let shared: Home;
    let daemon: Daemon;
    beforeAll(async () => {
      if (missing) return;
      shared = await home(2);
      daemon = await shared.up();
    });
    afterAll(() => shared?.close());

    it('runs a command in a fresh agent and ends with its code, its streams kept apart', async () => {
      const ended = await shared.run('--', 'sh', '-c', 'echo out; echo err >&2; cat; exit 7').ended;
      expect(ended).toMatchObject({ code: 7, stdout: joinsOutput ? 'out\nerr\n' : 'out\n' });
      if (!joinsOutput) expect(ended.stderr).toMatch(/^err$/m);
      const again = await shared.run('--', 'sh', '-c', 'touch /tmp/mark; echo "$CI $ONEJOB_POOL $(hostname)"').ended;
      expect(again.stdout).toMatch(/^true default \S+-default-[12]\n$/);
      expect((await shared.run('--', 'sh', '-c', 'ls /tmp').ended).stdout).toBe('');
    });

    it('works without a daemon, and leaves none', async () => {
      await using here = await home(1);
      const ended = await here.run('--no-workspace', '--', 'sh', '-c', 'echo hello').ended;
      expect(ended).toMatchObject({ code: 0, stdout: 'hello\n' });
    });

    it('two runs without a daemon share one, and a detached one outlives its client', async () => {
      await using here = await home(2);
      const [one, two, three] = [
        here.run('--', 'echo', '1'),
        here.run('--', 'echo', '2'),
        here.run('--detach', '--', 'sh', '-c', 'sleep 0.3; echo 3'),
      ];
      expect((await one.ended).stdout).toBe('1\n');
      expect((await two.ended).stdout).toBe('2\n');
      const id = (await three.ended).stdout.trim();
      expect((await here.cli(['logs', '-f', id]).ended).stdout).toBe('3\n');
      expect((await here.cli(['jobs', '--all', '--json']).ended).stdout).toContain(id);
    });

    it('passes on 127 for a command that does not exist', async () => {
      expect((await shared.run('--', 'no-such-command').ended).code).toBe(127);
    });

    it('ends a job over its time limit with its grace period, its last words kept', async () => {
      // Long enough for a slow machine to come to the trap first.
      const ended = await shared.run(
        '--timeout',
        '5s',
        '--',
        'sh',
        '-c',
        'trap "echo last; exit 3" TERM; echo first; while :; do sleep 0.05; done',
      ).ended;
      expect(ended.stdout).toBe('first\nlast\n');
      expect(ended.code).toBe(124);
    });

    it('kills a job that ignores TERM, with everything it started', async () => {
      await using here = await home(1, '2s');
      await here.up();
      const run = here.run(
        '--timeout',
        '200ms',
        '--',
        'sh',
        '-c',
        'trap "" TERM; (setsid sh -c "trap \\"\\" TERM; sleep 600" &); sleep 600',
      );
      expect((await run.ended).code).toBe(124);
    });

    it('Ctrl-C cancels the job and waits for its end', async () => {
      const run = shared.run('--', 'sh', '-c', 'trap "echo bye; exit 0" TERM; echo begun; while :; do sleep 0.05; done');
      await run.says(/begun/);
      run.signal('SIGINT');
      const ended = await run.ended;
      expect(ended.code).toBe(130);
      expect(ended.stdout).toBe('begun\nbye\n');
    });

    it('sends the workspace in and brings artifacts back, also from a job that failed', async () => {
      mkdirSync(join(shared.cwd, 'src'));
      writeFileSync(join(shared.cwd, 'src', "odd name'\n.txt"), 'content');
      symlinkSync('/etc/hostname', join(shared.cwd, 'outward'));
      const script =
        'set -e; test -L outward; mkdir -p out/deep; cat src/*.txt >out/deep/copy; echo x >out/skip.bin; id -u >out/owner; stat -c %u src >out/stat; exit 4';
      const ended = await shared.run(
        '--artifact',
        'out/**/copy',
        '--artifact',
        'out/owner',
        '--artifact',
        'out/stat',
        '--',
        'sh',
        '-c',
        script,
      ).ended;
      expect(ended.code, ended.stderr).toBe(4);
      expect(readFileSync(join(shared.cwd, 'out', 'deep', 'copy'), 'utf8')).toBe('content');
      expect(existsSync(join(shared.cwd, 'out', 'skip.bin'))).toBe(false);
      expect(readFileSync(join(shared.cwd, 'out', 'stat'), 'utf8')).toBe(readFileSync(join(shared.cwd, 'out', 'owner'), 'utf8'));
    });

    it('S5: a job continues while the manager is dead, and its whole output and its code are there afterwards', async () => {
      await using here = await home(1);
      const first = await here.up();
      const script = 'i=0; while [ $i -lt 20 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; exit 5';
      const run = here.run('--', 'sh', '-c', script);
      await run.says(/line 3/);
      await first.kill();
      await here.up();
      const lines = Array.from({ length: 20 }, (_, i) => `line ${i}\n`).join('');
      expect(await run.ended).toMatchObject({ code: 5, stdout: lines });
      const [job] = await here.api.jobs({ all: true, pool: null });
      expect((await here.cli(['logs', job?.id ?? '']).ended).stdout).toBe(lines);
    });

    it('S10: stopping ends busy agents and leaves nothing', async () => {
      await using here = await home(2);
      const daemon = await here.up();
      const runs = [1, 2].map(() =>
        here.run('--', 'sh', '-c', 'trap "echo bye; exit 0" TERM; echo begun; while :; do sleep 0.05; done'),
      );
      await Promise.all(runs.map((run) => run.says(/begun/)));
      expect((await daemon.stop()).code).toBe(0);
      for (const run of runs) {
        const ended = await run.ended;
        expect(ended.stdout).toBe('begun\nbye\n');
        expect(ended.code).toBe(125);
      }
      expect((await here.census()).left).toEqual([]);
    });

    it('refuses a second daemon on the same state', async () => {
      const second = await shared.cli(['up']).ended;
      expect(second.code).not.toBe(0);
      expect(second.stdout + second.stderr).toMatch(/[Aa]nother/);
    });

    it('the job runs on while the manager is stopped, and ends when it ended', async () => {
      const flags = join(shared.dir, 'flags');
      mkdirSync(flags);
      if (!hasFolders) {
        const refused = await shared.run('--volume', `${flags}:/flags`, '--', 'true').ended;
        expect(refused).toMatchObject({ code: 125, stderr: expect.stringContaining('see no folders of hosts') });
        return;
      }
      chmodSync(flags, 0o777);
      const script = 'echo begun; until [ -e /flags/go ]; do sleep 0.05; done; echo made >end; : >/flags/end; exit 6';
      const run = shared.run('--volume', `${flags}:/flags:rw`, '--artifact', 'end', '--', 'sh', '-c', script);
      await run.says(/begun/);
      daemon.freeze();
      writeFileSync(join(flags, 'go'), '');
      await expect.poll(() => existsSync(join(flags, 'end'))).toBe(true);
      daemon.thaw();
      expect(await run.ended).toMatchObject({ code: 6, stdout: 'begun\n' });
      expect(readFileSync(join(shared.cwd, 'end'), 'utf8')).toBe('made\n');
    });
  });
}
