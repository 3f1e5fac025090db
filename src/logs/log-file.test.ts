import { spawnSync } from 'node:child_process';
import { appendFileSync, mkdirSync, readdirSync, rmSync, statSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { openAt } from '../../test/support/descriptors.ts';
import { lacks } from '../../test/support/require.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { LogChunk } from '../runtimes/runtime.ts';
import { deleteLog, LogFile, logPath } from './log-file.ts';
import { readLog } from './read.ts';

let dir: Scratch;
let path: string;
beforeEach(() => {
  dir = scratch();
  path = logPath(dir.path, 'a1');
});
afterEach(() => dir[Symbol.dispose]());

const chunk = (text: string | Uint8Array, time = 1n, stream: LogChunk['stream'] = 'stdout'): LogChunk => ({
  stream,
  time,
  bytes: typeof text === 'string' ? Buffer.from(text) : text,
});
const add = (log: LogFile, one: LogChunk): void => log.append(one, one.bytes);

async function all(pieces: AsyncIterable<{ stream: string; bytes: Uint8Array }>): Promise<[string, string][]> {
  const found: [string, string][] = [];
  for await (const { stream, bytes } of pieces) found.push([stream, Buffer.from(bytes).toString()]);
  return found;
}

describe('a log', () => {
  it('gives back what was kept, streams apart, bytes as they were', async () => {
    const log = new LogFile(path);
    const binary = Buffer.from([0, 255, 10, 13, 27, 128, 254]);
    add(log, chunk('one '));
    add(log, chunk('two\n'));
    add(log, chunk('oops\n', 2n, 'stderr'));
    log.note('a line of ours');
    add(log, chunk(binary, 3n));
    log.close();
    const pieces = [];
    for await (const piece of readLog(path)) pieces.push(piece);
    expect(pieces.slice(0, 3).map((one) => [one.stream, Buffer.from(one.bytes).toString()])).toEqual([
      ['stdout', 'one two\n'],
      ['stderr', 'oops\n'],
      ['note', 'a line of ours\n'],
    ]);
    expect(Buffer.from(pieces[3]?.bytes ?? []).equals(binary)).toBe(true);
    const rest = await all(readLog(path, pieces[1]?.next));
    expect(rest.map(([stream]) => stream)).toEqual(['note', 'stdout']);
  });

  it('knows where to go on from its records alone, counting what was dropped', () => {
    const log = new LogFile(path);
    log.append(chunk('marker\n', 5n), new Uint8Array(0));
    expect(log.hasOutput).toBe(false);
    log.append(chunk('marker\nfirst', 7n), Buffer.from('first'));
    add(log, chunk('second', 7n));
    add(log, chunk('err', 7n, 'stderr'));
    log.note('not counted');
    const expected = { time: 7n, atTime: 3, stdout: 25, stderr: 3 };
    expect(log.position).toEqual(expected);
    log.close();
    const again = new LogFile(path);
    expect(again.position).toEqual(expected);
    expect(again.hasOutput).toBe(true);
    again.close();
  });

  it('does not go back in time for a chunk that is kept late', () => {
    const log = new LogFile(path);
    add(log, chunk('new', 9n));
    add(log, chunk('early', 4n, 'stderr'));
    expect(log.position).toEqual({ time: 9n, atTime: 1, stdout: 3, stderr: 5 });
    log.close();
  });

  it('cut off at any byte goes on after its last whole record', async () => {
    const log = new LogFile(path);
    add(log, chunk('first\n', 1n));
    const { size } = statSync(path);
    const { position } = log;
    add(log, chunk('second\n', 2n));
    const whole = statSync(path).size;
    log.close();
    for (let at = size; at < whole; at += 1) {
      truncateSync(path, at);
      const torn = new LogFile(path);
      expect(torn.position).toEqual(position);
      expect(statSync(path).size).toBe(size);
      add(torn, chunk('second\n', 2n));
      torn.close();
    }
    expect(await all(readLog(path))).toEqual([['stdout', 'first\nsecond\n']]);
    appendFileSync(path, Buffer.alloc(5_000));
    new LogFile(path).close();
    expect(statSync(path).size).toBe(whole);
  });

  it('holds the same position after a restart as before it, whatever came', () => {
    const step = fc.record({
      stream: fc.constantFrom<LogChunk['stream']>('stdout', 'stderr'),
      wait: fc.nat(2),
      length: fc.nat(300),
      kept: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), fc.integer({ min: 100, max: 4_000 }), (steps, limit) => {
        rmSync(path, { force: true });
        let log = new LogFile(path, limit);
        let time = 0;
        let plain = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };
        for (const { stream, wait, length, kept } of steps) {
          time += wait;
          const bytes = Buffer.alloc(length, 'x');
          log.append({ stream, time: BigInt(time), bytes }, bytes.subarray(Math.floor(length * kept)));
          const at = plain.time === BigInt(time) ? plain.atTime + 1 : 1;
          plain = { ...plain, time: BigInt(time), atTime: at, [stream]: plain[stream] + length };
          expect(log.position).toEqual(plain);
          log.close();
          log = new LogFile(path, limit);
          expect(log.position).toEqual(plain);
        }
        log.close();
        // The cap, one note and one position.
        expect(statSync(path).size).toBeLessThan(limit + 200);
      }),
      { numRuns: 60 },
    );
  });

  it('at its cap says so once, and keeps counting without growing', async () => {
    const limit = 1024 * 1024;
    const log = new LogFile(path, limit);
    const block = chunk(Buffer.alloc(64 * 1024, 'x'));
    for (let i = 0; i < 1_024; i += 1) add(log, block);
    log.note('too late');
    expect(log.position).toMatchObject({ stdout: 64 * 2 ** 20, atTime: 1_024 });
    expect(log.capped).toBe(true);
    expect(statSync(path).size).toBeLessThan(limit + 200);
    log.close();
    const again = new LogFile(path, limit);
    add(again, block);
    expect(again.position).toMatchObject({ stdout: 64 * 2 ** 20 + 64 * 1024 });
    again.close();
    const pieces = await all(readLog(path));
    expect(pieces.filter(([stream]) => stream === 'note')).toEqual([['note', 'output over 1 MiB was not kept\n']]);
    expect(pieces.at(-1)?.[0]).toBe('note');
    const kept = pieces.reduce((sum, [stream, text]) => sum + (stream === 'stdout' ? text.length : 0), 0);
    expect(kept).toBeGreaterThan(limit * 0.99);
  });

  it('begins anew after a reset', async () => {
    const log = new LogFile(path);
    log.append(chunk('ready\n'), new Uint8Array(0));
    log.reset();
    expect(log.position).toEqual({ time: 0n, atTime: 0, stdout: 0, stderr: 0 });
    add(log, chunk('again'));
    log.close();
    expect(await all(readLog(path))).toEqual([['stdout', 'again']]);
  });

  it('with a record longer than one read comes back whole', async () => {
    const log = new LogFile(path);
    const long = 'y'.repeat(3 * 2 ** 20);
    add(log, chunk('before'));
    add(log, chunk(long, 2n, 'stderr'));
    add(log, chunk('after', 3n));
    log.close();
    expect((await all(readLog(path))).map(([stream, text]) => [stream, text.length])).toEqual([
      ['stdout', 6],
      ['stderr', long.length],
      ['stdout', 5],
    ]);
    const again = new LogFile(path);
    expect(again.position.stderr).toBe(long.length);
    again.close();
  });

  it('is deleted as often as one likes', () => {
    new LogFile(path).close();
    deleteLog(path);
    deleteLog(path);
    expect(readdirSync(dir.path)).toEqual([]);
  });
});

describe('following', () => {
  it('gives everything to every follower, early or late, until the log is closed', async () => {
    const log = new LogFile(path);
    const followers = [all(log.read({ follow: true })), all(log.read({ follow: true }))];
    let text = '';
    for (let i = 0; i < 500; i += 1) {
      text += `${i}\n`;
      add(log, chunk(`${i}\n`, BigInt(i)));
      if (i === 250) followers.push(all(log.read({ follow: true })));
      if (i % 7 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    log.close();
    for (const pieces of await Promise.all(followers)) expect(pieces.map(([, part]) => part).join('')).toBe(text);
    expect(openAt(path)).toEqual([]);
  });

  it('goes on from a given place', async () => {
    const log = new LogFile(path);
    add(log, chunk('old'));
    const first = log.read({ follow: true });
    const { value } = await first.next();
    const rest = all(log.read({ follow: true, from: value?.next ?? 0 }));
    add(log, chunk('new', 2n));
    log.close();
    expect(await rest).toEqual([['stdout', 'new']]);
    await first.return();
  });

  it('ends when the reader leaves or is told to, and leaves no descriptor behind', async () => {
    const log = new LogFile(path);
    expect(openAt(path)).toHaveLength(1);
    const abort = new AbortController();
    const waiting = all(log.read({ follow: true, signal: abort.signal }));
    add(log, chunk('x'));
    for await (const _ of log.read({ follow: true })) break;
    abort.abort();
    expect(await waiting).toEqual([['stdout', 'x']]);
    expect(openAt(path)).toHaveLength(1);
    log.close();
  });

  it('of a slow reader holds neither the writer nor memory up', async () => {
    const log = new LogFile(path);
    const slow = log.read({ follow: true });
    add(log, chunk('x'));
    await slow.next();
    const before = process.memoryUsage().external;
    const block = chunk(Buffer.alloc(64 * 1024));
    for (let i = 0; i < 512; i += 1) add(log, block);
    expect(process.memoryUsage().external - before).toBeLessThan(8 * 2 ** 20);
    await slow.return();
    log.close();
  });
});

describe.skipIf(lacks('mount', 'root'))('on a full disk', () => {
  it('refuses a chunk whole, and takes the same one once there is room', async () => {
    const disk = join(dir.path, 'disk');
    mkdirSync(disk);
    expect(spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=256k', 'none', disk]).status).toBe(0);
    try {
      const filler = join(disk, 'filler');
      const there = join(disk, 'a.log');
      const log = new LogFile(there);
      add(log, chunk('before\n'));
      const { position } = log;
      spawnSync('dd', ['if=/dev/zero', `of=${filler}`, 'bs=4k']);
      const big = chunk(Buffer.alloc(20_000, 'z'), 2n);
      const full = expect.objectContaining({ code: 'E_STATE_FULL', retry: true, message: expect.stringContaining(there) });
      expect(() => add(log, big)).toThrow(full);
      expect(() => add(log, big)).toThrow(full);
      expect(log.position).toEqual(position);
      rmSync(filler);
      add(log, big);
      log.close();
      expect(await all(readLog(there))).toEqual([['stdout', `before\n${'z'.repeat(20_000)}`]]);
    } finally {
      spawnSync('umount', [disk]);
    }
  });
});
