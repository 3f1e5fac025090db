import { execFileSync } from 'node:child_process';
import { accessSync, appendFileSync, constants, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import type { GpuFinding } from './inventory.ts';
import { isAfter } from './kernel-log.ts';
import { createKernelLog } from './kernel-reader.ts';

const dir = eachScratch();
let path = '';
beforeEach(() => {
  path = join(dir.path, 'kmsg');
});

const record = (seq: number, xid: number, place = '0000:01:00') =>
  `4,${seq},${seq * 1_000_000},-;NVRM: Xid (PCI:${place}): ${xid}, pid=1\n`;

test('events from before the first look are there, and the mark tells what came after it', async () => {
  writeFileSync(path, `6,1,1,-;hello\n${record(2, 13)} SUBSYSTEM=pci\n`);
  using log = createKernelLog({ path, uptime: () => 50 });
  const before = await log.look();
  expect(before).toMatchObject({ readable: true, lost: false, mark: { seq: 2, at: 50 } });
  expect(before.events.map((event) => event.xid)).toEqual([13]);

  appendFileSync(path, record(3, 79) + record(4, 13, '0000:02:00'));
  const after = await log.look();
  expect(after.events.filter((event) => isAfter(event, before.mark)).map(({ xid, pciId }) => [xid, pciId])).toEqual([
    [79, '0000:01:00'],
    [13, '0000:02:00'],
  ]);
});

test('half a record waits for its other half', async () => {
  writeFileSync(path, record(1, 13).slice(0, 30));
  using log = createKernelLog({ path, uptime: () => 0 });
  expect((await log.look()).events).toEqual([]);
  appendFileSync(path, record(1, 13).slice(30));
  expect((await log.look()).events.map((event) => event.xid)).toEqual([13]);
});

test('a flood of the same error is kept once, the newest, and pushes nothing else out', async () => {
  const flood = Array.from({ length: 20_000 }, (_, n) => record(n + 2, 31)).join('');
  writeFileSync(path, record(1, 79, '0000:02:00') + flood);
  using log = createKernelLog({ path, uptime: () => 0 });
  const { events, lost } = await log.look();
  expect(events.map(({ xid, seq }) => [xid, seq])).toEqual([
    [79, 1],
    [31, 20_001],
  ]);
  expect(lost).toBe(false);
});

test('two looks at once share one', async () => {
  writeFileSync(path, record(1, 13));
  using log = createKernelLog({ path, uptime: () => 0 });
  const [first, second] = await Promise.all([log.look(), log.look()]);
  expect(first).toBe(second);
});

test('a log that is not there is said once, and taken up when it appears', async () => {
  const said: GpuFinding[] = [];
  using log = createKernelLog({ path, uptime: () => 7, say: (finding) => said.push(finding) });
  expect(await log.look()).toMatchObject({ readable: false, events: [], mark: { seq: null, at: 7 } });
  expect((await log.look()).readable).toBe(false);
  expect(said).toMatchObject([{ code: 'kernel-log-unreadable', subject: 'host', level: 'warning' }]);
  expect(said[0]?.message).toContain(path);
  expect(said[0]?.message).toContain('ENOENT');
  writeFileSync(path, record(9, 79));
  expect(await log.look()).toMatchObject({ readable: true, events: [{ xid: 79 }] });
  expect(said).toHaveLength(1);
});

test('a log that fails while it is read is unreadable, not empty', async () => {
  mkdirSync(path);
  const said: GpuFinding[] = [];
  using log = createKernelLog({ path, uptime: () => 0, say: (finding) => said.push(finding) });
  for (const _ of [1, 2]) expect((await log.look()).readable).toBe(false);
  expect(said.map(({ message }) => message)).toEqual([expect.stringContaining('EISDIR')]);
});

test('an empty log does not block', async () => {
  execFileSync('mkfifo', [path]);
  using log = createKernelLog({ path, uptime: () => 0 });
  expect(await log.look()).toMatchObject({ readable: true, events: [] });
});

const canRead = (() => {
  try {
    accessSync('/dev/kmsg', constants.R_OK);
    return true;
  } catch {
    return false;
  }
})();

test.skipIf(!canRead)("this host's own log is read to its end", async () => {
  const said: GpuFinding[] = [];
  using log = createKernelLog({ uptime: () => 0, say: (finding) => said.push(finding) });
  const first = await log.look();
  const second = await log.look();
  if (!first.readable) return expect(said[0]?.message).toContain('/dev/kmsg');
  expect(first.mark.seq).toBeGreaterThan(0);
  expect(second.mark.seq).toBeGreaterThanOrEqual(first.mark.seq ?? 0);
});
