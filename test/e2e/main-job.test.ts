/** The main job as a user sees it: one script in, one exit code out, on each runtime, whatever happens to the manager. */
import { describe, expect, test } from 'vitest';
import { isAlive } from '../support/child.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const runtimes = [
  { runtime: 'docker', skip: lacks('docker', 'image') },
  { runtime: 'process', skip: false },
] as const;

for (const { runtime, skip } of runtimes) {
  const config = JSON.stringify({ pools: { default: { runtime, agents: 2 } } });

  describe.skipIf(skip)(`on ${runtime}`, () => {
    test('run without a daemon: output apart, exit code passed on, nothing left', async () => {
      await using home = await onejob({ config });
      const ended = await home.run('--', 'sh', '-c', 'echo out; echo err >&2; exit 7').ended;
      expect(ended.stdout).toBe('out\n');
      expect(ended.stderr).toContain('err\n');
      expect(ended.code).toBe(7);
    });

    test('up, two jobs at once, SIGTERM: ends with 0 and leaves nothing', async () => {
      await using home = await onejob({ config });
      const daemon = await home.up();
      const [one, two] = await Promise.all([home.run('--', 'echo', '1').ended, home.run('--', 'echo', '2').ended]);
      expect([one.code, one.stdout, two.code, two.stdout]).toEqual([0, '1\n', 0, '2\n']);
      const ended = await daemon.stop();
      expect(ended.code).toBe(0);
    });

    test('a manager that is killed under a job: the next one takes over, the job ends as itself', async () => {
      await using home = await onejob({ config });
      const first = await home.up();
      const { id } = await home.api.submit({ command: ['sh', '-c', 'echo begun; sleep 3; echo done; exit 5'] });
      await home.cli(['logs', '-f', id]).says(/begun/);
      await first.kill();
      expect(isAlive(first.pid)).toBe(false);
      await home.up();
      const job = await home.api.settled(id);
      expect(job.result).toEqual({ kind: 'code', code: 5 });
      expect(job.attempt).toBe(1);
      const log = await home.cli(['logs', id]).ended;
      expect(log.stdout).toBe('begun\ndone\n');
    });

    test('a second daemon is refused, and says whose place it is', async () => {
      await using home = await onejob({ config });
      const first = await home.up();
      const second = await home.cli(['up']).ended;
      expect(second.code).not.toBe(0);
      expect(second.stderr + second.stdout).toContain(String(first.pid));
    });
  });
}
