/**
 * The disk with the state becomes read-only under a running daemon, as the kernel makes it after an error of the disk. A dashboard
 * is open meanwhile. Nothing ends: the daemon says what is wrong wherever people look, and a restart on the repaired disk finds the jobs.
 */
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { buildDashboard, openBrowser, visit } from '../../web/test/browser.ts';
import { images } from '../support/images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

function must(command: string, ...args: string[]): void {
  const { status, stderr, error } = spawnSync(command, args, { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${command} ${args.join(' ')}: ${error ?? stderr}`);
}

/** An ext4 of its own, gone afterwards. */
function smallDisk(): Disposable & { readonly path: string; fail(): void; repair(): void } {
  const dir = mkdtempSync(join(tmpdir(), 'oj-ext4-'));
  const [image, path] = [join(dir, 'image'), join(dir, 'mount')];
  writeFileSync(image, '');
  truncateSync(image, 2 ** 28);
  mkdirSync(path);
  must('mkfs.ext4', '-q', '-F', image);
  must('mount', '-o', 'loop', image, path);
  return {
    path,
    /** What the kernel does after an error, some time after the last write: also files that are open cannot be written any more. */
    fail() {
      must('sync', '-f', path);
      must('mount', '-o', 'remount,abort', path);
    },
    repair() {
      must('umount', path);
      // 1: errors were corrected.
      const { status, stdout } = spawnSync('e2fsck', ['-f', '-p', image], { encoding: 'utf8' });
      if (status !== 0 && status !== 1) throw new Error(`e2fsck: ${stdout}`);
      must('mount', '-o', 'loop', image, path);
    },
    [Symbol.dispose]() {
      spawnSync('umount', ['-l', path]);
      rmSync(dir, { recursive: true });
    },
  };
}

test.skipIf(lacks('loop', 'docker', 'chromium'))(
  'a state disk that becomes read-only ends nothing, and everybody is told',
  async () => {
    await buildDashboard();
    await using browser = await openBrowser();
    using disk = smallDisk();
    await using here = await onejob();
    const flags = join(here.dir, 'flags');
    mkdirSync(flags);
    chmodSync(flags, 0o777);
    mkdirSync(join(disk.path, 'state'), { mode: 0o700 });
    symlinkSync(join(disk.path, 'state'), here.stateDir);
    here.configure(`pools: { default: { agents: 2, runtime: docker, image: "${images.base}", volumes: ["${flags}:/flags"] } }`);
    here.env.ONEJOB_CONFIG = join(here.dir, 'config.yml');
    const daemon = await here.up();
    const script = (flag: string) => `echo begun; until [ -e /flags/${flag} ]; do sleep 0.05; done; echo over; exit 4`;
    const ends = await here.api.submit({ command: ['sh', '-c', script('first')] });
    const runs = await here.api.submit({ command: ['sh', '-c', script('second')] });
    const waits = await here.api.submit({ command: ['sh', '-c', 'echo waited'] });
    for (const { id } of [ends, runs]) {
      for await (const { bytes } of here.api.logs({ job: id }, { follow: true }))
        if (/begun/.test(Buffer.from(bytes).toString())) break;
    }
    const said = await here.cli(['dashboard', '--json']).ended;
    await using view = await visit(browser, (JSON.parse(said.stdout || said.stderr) as { url: string }).url);
    const { page } = view;
    await page.locator('.link-live').waitFor({ state: 'attached' });

    disk.fail();
    // Nothing has been written since: only who looks can know.
    const doctor = await here.cli(['doctor']).ended;
    expect(doctor.code).toBe(1);
    expect(doctor.stdout.replaceAll(/\s+/g, ' ')).toMatch(
      /error state disk: Cannot write \S+: the disk rejected the write \(EROFS.*"dmesg"/,
    );
    const refused = await here.run('--no-workspace', '--detach', '--', 'true').ended;
    expect(refused).toMatchObject({ code: 125, stderr: expect.stringContaining('the disk rejected the write') });

    // One job ends meanwhile; its end cannot be written down yet, and nobody takes it for lost.
    writeFileSync(join(flags, 'first'), '');
    const why = 'Cannot write \\S+onejob\\.db: the disk rejected the write';
    const told = new RegExp(`nothing new starts: ${why}`);
    await page
      .getByText(new RegExp(`starts nothing new: ${why}`))
      .first()
      .waitFor();
    expect((await here.cli(['status']).ended).stdout).toMatch(told);
    expect(await here.api.job(waits.id)).toMatchObject({ state: 'queued', reason: expect.stringMatching(told) });
    for (const { id } of [ends, runs]) expect(await here.api.job(id)).toMatchObject({ state: 'running' });
    expect(await page.locator('main').innerText()).not.toContain('..');
    expect((await here.cli(['logs', ends.id]).ended).stdout).toMatch(/^begun$/m);
    expect(daemon.child.running).toBe(true);

    // The disk is repaired: its file system has to be mounted again, so the daemon leaves its agents for a moment.
    expect(await here.cli(['down', '--leave']).ended).toMatchObject({ code: 0 });
    const ended = await daemon.child.ended;
    expect([ended.code, ended.stderr]).toEqual([0, '']);
    await page.getByText(/Connection lost since/).waitFor();
    disk.repair();
    await here.up();
    await page.locator('.link-live').waitFor({ state: 'attached' });
    writeFileSync(join(flags, 'second'), '');
    for (const { id } of [ends, runs]) {
      expect((await here.api.settled(id)).result).toEqual({ kind: 'code', code: 4 });
      expect((await here.cli(['logs', id]).ended).stdout).toBe('begun\nover\n');
    }
    expect((await here.api.settled(waits.id)).result).toEqual({ kind: 'code', code: 0 });
    expect((await here.cli(['doctor']).ended).stdout).not.toContain('state disk');
    // Before its disk is gone.
    await here.close();
  },
);
