/** The owner's command for a broken device: its environment, and that it cannot block anything. With real programs. */
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import type { LogFields } from '../../base/log.ts';
import { type Broken, createRepair, type Repair } from './repair.ts';

let dir: Scratch | undefined;
let repair: Repair | undefined;
afterEach(() => {
  repair?.close();
  dir?.[Symbol.dispose]();
});

function repairWith(script: string | null, args: readonly string[] = []) {
  dir = scratch();
  const at = dir.path;
  const program = join(at, 'repair');
  if (script !== null) {
    writeFileSync(program, `#!/bin/sh\n${script}\n`);
    chmodSync(program, 0o755);
  }
  const lines: ({ event: string } & LogFields)[] = [];
  const say = (event: string, fields: LogFields = {}) => void lines.push({ event, ...fields });
  const looked: string[] = [];
  const clock = handClock();
  repair = createRepair({
    clock,
    log: { info: say, warn: say, error: say },
    command: { command: [program, ...args], timeout: 60_000 },
    path: '/usr/bin:/bin',
    recheck: (uuid) => looked.push(uuid),
  });
  const line = (event: string, count = 1) =>
    expect.poll(() => lines.filter((one) => one.event === event).length, { timeout: 5_000 }).toBe(count);
  return { repair, lines, looked, line, clock, at, program };
}

const broken = (uuid: string, more: Partial<Broken> = {}): Broken => ({ uuid, pciId: '0000:01:00.0', reason: 'Xid 79', ...more });

describe('the command', () => {
  test('hears of the device, gets its arguments as they are, and nothing else of the manager', async () => {
    process.env.ONEJOB_TEST_SECRET = 'hush';
    const { repair, lines, looked, line } = repairWith('echo "$ONEJOB_DEVICE|$ONEJOB_PCI|$ONEJOB_REASON|$1|$#"; env', [
      'a b; $(x)',
      '--',
    ]);
    repair.put(broken('GPU-1', { reason: 'it\'s "lost"; $(reboot)' }));
    await line('repaired');
    delete process.env.ONEJOB_TEST_SECRET;
    const output = lines[1]?.output;
    expect(String(output).split('\n')[0]).toBe('GPU-1|0000:01:00.0|it\'s "lost"; $(reboot)|a b; $(x)|2');
    expect(output).not.toContain('hush');
    expect(looked).toEqual(['GPU-1']);
    expect(lines[0]).toMatchObject({ event: 'repair', device: 'GPU-1' });
  });

  test('gets an empty address for a device without one', async () => {
    const { repair, lines, line } = repairWith('echo "<$ONEJOB_PCI>"');
    repair.put(broken('GPU-1', { pciId: null }));
    await line('repaired');
    expect(lines[1]?.output).toBe('<>');
  });

  test('that fails has its last words in the log, and the device waits for its turn', async () => {
    const { repair, lines, looked, line } = repairWith(
      'head -c 100000 /dev/zero | tr "\\0" x; echo; echo cannot reset >&2; exit 3',
    );
    repair.put(broken('GPU-1'));
    await line('repair failed');
    expect(lines[1]).toMatchObject({ device: 'GPU-1', reason: 'it exited with 3' });
    expect(String(lines[1]?.output).length).toBeLessThanOrEqual(8 * 1024);
    expect(lines[1]?.output).toMatch(/cannot reset$/);
    expect(looked).toEqual([]);
  });

  test.each([
    ['is not there', null, /cannot be started: .*ENOENT/],
    ['dies of a signal', 'kill -9 $$', /^it was ended by SIGKILL$/],
  ])('that %s is said, and the next one is run', async (_, script, why) => {
    const { repair, lines, line } = repairWith(script);
    repair.put(broken('GPU-1'));
    repair.put(broken('GPU-2'));
    await line('repair failed', 2);
    expect(lines.filter(({ event }) => event === 'repair failed').map(({ reason }) => reason)).toEqual([
      expect.stringMatching(why),
      expect.stringMatching(why),
    ]);
  });

  test('that is not a program is said', async () => {
    const { repair, lines, line, program } = repairWith(null);
    writeFileSync(program, 'no program');
    repair.put(broken('GPU-1'));
    await line('repair failed');
    expect(lines[1]?.reason).toMatch(/cannot be started: .*EACCES/);
  });
});

describe('one at a time', () => {
  test('devices wait for each other; one that is named twice is looked after once, for its newest reason', async () => {
    const script = 'echo "$ONEJOB_DEVICE $ONEJOB_REASON"; until [ -e "${0%/*}/go-$ONEJOB_DEVICE" ]; do sleep 0.01; done';
    const { repair, lines, looked, line, at } = repairWith(script);
    repair.put(broken('GPU-1'));
    repair.put(broken('GPU-2', { reason: 'first' }));
    repair.put(broken('GPU-2', { reason: 'second' }));
    await line('repair');
    expect(lines.map(({ device }) => device)).toEqual(['GPU-1']);
    writeFileSync(join(at, 'go-GPU-2'), '');
    writeFileSync(join(at, 'go-GPU-1'), '');
    await line('repaired', 2);
    expect(looked).toEqual(['GPU-1', 'GPU-2']);
    expect(lines.at(-1)?.output).toBe('GPU-2 second');
  });

  test('one that does not end is killed with all it started, and the next has its turn', async () => {
    const script =
      'trap "" TERM INT HUP; [ "$ONEJOB_DEVICE" = GPU-2 ] && exit 0; sleep 1000 & echo $! >"${0%/*}/pid"; wait; sleep 1000';
    const { repair, lines, line, clock, at } = repairWith(script);
    repair.put(broken('GPU-1'));
    repair.put(broken('GPU-2'));
    await expect.poll(() => existsSync(join(at, 'pid')) && readFileSync(join(at, 'pid'), 'utf8')).toMatch(/^\d+\n$/);
    clock.advance(60_000);
    await line('repaired');
    expect(lines.find(({ event }) => event === 'repair failed')).toMatchObject({
      device: 'GPU-1',
      reason: 'it took longer than 1m and was killed',
    });
    await expect.poll(() => isThere(Number(readFileSync(join(at, 'pid'), 'utf8')))).toBe(false);
  });

  test('what it left in the background does not block, and ends', async () => {
    const { repair, lines, looked, line, clock } = repairWith('sleep 30 & echo $!');
    repair.put(broken('GPU-1'));
    await expect.poll(() => clock.next()).toBe(250);
    clock.advance(250);
    await line('repaired');
    expect(looked).toEqual(['GPU-1']);
    await expect.poll(() => isThere(Number(lines[1]?.output))).toBe(false);
  });

  test('closing kills what runs and forgets what waits', async () => {
    const { repair, lines, looked, at, line } = repairWith('echo $$ >"${0%/*}/pid"; exec sleep 1000');
    repair.put(broken('GPU-1'));
    repair.put(broken('GPU-2'));
    await expect.poll(() => existsSync(join(at, 'pid')) && readFileSync(join(at, 'pid'), 'utf8')).toMatch(/^\d+\n$/);
    repair.close();
    repair.put(broken('GPU-3'));
    await expect.poll(() => isThere(Number(readFileSync(join(at, 'pid'), 'utf8')))).toBe(false);
    await line('repair');
    expect([lines.length, looked]).toEqual([1, []]);
  });
});

test('without a command nothing is run', () => {
  const lines: string[] = [];
  const say = (event: string) => void lines.push(event);
  const idle = createRepair({
    clock: handClock(),
    log: { info: say, warn: say, error: say },
    command: null,
    path: '',
    recheck: () => {},
  });
  idle.put(broken('GPU-1'));
  expect(lines).toEqual([]);
});

/** Not even as a zombie. */
function isThere(pid: number): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}
