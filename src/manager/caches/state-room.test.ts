import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { lacks } from '../../../test/support/require.ts';
import { LogFile } from '../../logs/log-file.ts';
import { readLog } from '../../logs/read.ts';
import { createStateRoom } from './state-room.ts';

const dir = eachScratch();

test('keeps a twentieth of the disk, half a GiB at most, and says what takes the most of it', async () => {
  const disk = { size: 100 * 2 ** 30, free: 600 * 2 ** 20 };
  let now = 0;
  const room = createStateRoom({ dir: dir.path, now: () => now, look: () => disk });
  expect([room.noRoom(), room.problem(), await room.findings()]).toEqual([null, null, []]);
  disk.free = 500 * 2 ** 20;
  expect(room.noRoom()).toBe(null);
  now += 100;
  expect(room.noRoom()).toMatch(/^no output is kept from here on: the disk that holds .* has 500 MiB left$/);
  expect(room.problem()).toContain('has 500 MiB left; onejob keeps no job output until 512 MiB are free.');
  mkdirSync(join(dir.path, 'artifacts'));
  mkdirSync(join(dir.path, 'logs'));
  writeFileSync(join(dir.path, 'artifacts/j1.tar'), Buffer.alloc(3 * 2 ** 20));
  writeFileSync(join(dir.path, 'logs/a1.log'), Buffer.alloc(2 * 2 ** 20));
  expect(await room.findings()).toMatchObject([
    {
      level: 'error',
      message: expect.stringContaining('The largest items in it: artifacts 3 MiB, logs 2 MiB.'),
      hint: expect.stringContaining('"onejob jobs prune"'),
    },
  ]);
  Object.assign(disk, { size: 2 ** 20, free: 50_000 });
  expect(room.problem()).toContain('until 51.2 KiB are free');
});

test.skipIf(lacks('mount', 'root'))('doctor notices that nothing can be written, also while nobody tries', async () => {
  const disk = join(dir.path, 'disk');
  mkdirSync(disk);
  const mounted = (...options: string[]) => spawnSync('mount', [...options, 'none', disk]).status;
  expect(mounted('-t', 'tmpfs', '-o', 'size=8m')).toBe(0);
  try {
    const room = createStateRoom({ dir: disk, now: () => 0 });
    expect([await room.findings(), readdirSync(disk)]).toEqual([[], []]);
    expect(mounted('-o', 'remount,ro')).toBe(0);
    expect(await room.findings()).toMatchObject([
      {
        level: 'error',
        subject: 'state disk',
        message: expect.stringMatching(
          /^Cannot write \S+: the disk rejected the write \(EROFS.*\)\. Nothing new starts; running jobs/,
        ),
        hint: expect.stringContaining('"dmesg"'),
      },
    ]);
  } finally {
    spawnSync('umount', ['-l', disk]);
  }
});

test.skipIf(lacks('mount', 'root'))('a chatty job leaves room on a small disk, and is kept again once there is some', async () => {
  const disk = join(dir.path, 'disk');
  mkdirSync(disk);
  expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'none', disk]).status).toBe(0);
  try {
    let now = 0;
    const { noRoom } = createStateRoom({ dir: disk, now: () => now });
    const path = join(disk, 'a1.log');
    const other = join(disk, 'other');
    writeFileSync(other, Buffer.alloc(2 * 2 ** 20));
    const log = new LogFile(path, { noRoom });
    const bytes = Buffer.alloc(64 * 1024, 'x');
    for (let i = 0; i < 1_000; i += 1) {
      now += 100;
      log.append({ stream: 'stdout', time: BigInt(i + 1), bytes }, bytes);
    }
    const { bavail, bsize } = statfsSync(disk);
    expect(bavail * bsize).toBeGreaterThan(0.04 * 8 * 2 ** 20);
    rmSync(other);
    now += 100;
    log.append({ stream: 'stdout', time: 2_000n, bytes: Buffer.from('last\n') }, Buffer.from('last\n'));
    log.close();
    const notes: string[] = [];
    let [kept, end] = [0, ''];
    for await (const piece of readLog(path)) {
      end = Buffer.from(piece.bytes).toString().slice(-5);
      if (piece.stream === 'note') notes.push(Buffer.from(piece.bytes).toString());
      else kept += piece.bytes.length;
    }
    const missing = 1_000 * bytes.length + 5 - kept;
    expect(notes).toEqual([
      expect.stringMatching(/^no output is kept from here on: the disk that holds /),
      `output is not kept here: ${missing.toLocaleString('en-US')} bytes of stdout after its first ${(kept - 5).toLocaleString('en-US')} bytes\n`,
    ]);
    expect(end).toBe('last\n');
  } finally {
    spawnSync('umount', [disk]);
  }
});
