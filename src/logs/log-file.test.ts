import { spawnSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, readdirSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { beforeEach, describe, expect, it } from 'vitest';
import { openAt } from '../../test/support/descriptors.ts';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { lacks } from '../../test/support/require.ts';
import type { LogPiece } from '../contract/manager.ts';
import { type LogChunk, start } from '../ports/runtime.ts';
import { createLogFolder, deleteLog, LogFile } from './log-file.ts';
import { type Part, partsOf, takeOver } from './parts.ts';
import { Cursor, keptPieces, readLog } from './read.ts';
import { encodeHead, encodePosition } from './record.ts';

const dir = eachScratch();
let path: string;
beforeEach(() => {
  path = createLogFolder(dir.path).path('a1');
});

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
  it('knows when its first output was printed, whatever came before and after', () => {
    const folder = createLogFolder(dir.path);
    expect(folder.firstOutputAt('a1')).toBe(null);
    const log = new LogFile(path);
    log.note('a line of ours');
    log.append(chunk('marker', 1_000_000_000n), new Uint8Array());
    expect(folder.firstOutputAt('a1')).toBe(null);
    add(log, chunk('x'.repeat(100_000), 2_000_000_000n, 'stderr'));
    add(log, chunk('y', 3_000_000_000n));
    log.close();
    expect(folder.firstOutputAt('a1')).toBe(2_000);
  });

  it('returns what was kept, by stream, with unchanged bytes', async () => {
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
  });

  it('knows from its records alone where to continue, including dropped bytes', () => {
    const log = new LogFile(path);
    log.append(chunk('marker\n', 5n), new Uint8Array(0));
    expect(log.hasOutput).toBe(false);
    log.append(chunk('marker\nfirst', 7n), Buffer.from('first'));
    add(log, chunk('second', 7n));
    add(log, chunk('err', 7n, 'stderr'));
    log.note('not counted');
    const expected = { ...start, time: 7n, atTime: 3, stdout: 25, stderr: 3 };
    expect(log.position).toEqual(expected);
    log.close();
    const again = new LogFile(path);
    expect(again.position).toEqual(expected);
    expect(again.hasOutput).toBe(true);
    again.close();
  });

  it('does not go back in time for a late chunk', () => {
    const log = new LogFile(path);
    add(log, chunk('new', 9n));
    add(log, chunk('early', 4n, 'stderr'));
    expect(log.position).toEqual({ ...start, time: 9n, atTime: 1, stdout: 3, stderr: 5 });
    log.close();
  });

  it('continues after its last whole record when it is cut off at any byte', async () => {
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

  it('has the same position after a restart, whatever came', () => {
    const step = fc.record({
      stream: fc.constantFrom<LogChunk['stream']>('stdout', 'stderr'),
      wait: fc.nat(2),
      length: fc.nat(300),
      kept: fc.double({ min: 0, max: 1, noNaN: true }),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 30 }), fc.integer({ min: 100, max: 4_000 }), (steps, limit) => {
        deleteLog(path);
        let log = new LogFile(path, { limit });
        let time = 0;
        let plain = { time: 0n, atTime: 0, stdout: 0, stderr: 0, holes: 0 };
        for (const { stream, wait, length, kept } of steps) {
          time += wait;
          const bytes = Buffer.alloc(length, 'x');
          log.append({ stream, time: BigInt(time), bytes }, bytes.subarray(Math.floor(length * kept)));
          const at = plain.time === BigInt(time) ? plain.atTime + 1 : 1;
          plain = { ...plain, time: BigInt(time), atTime: at, [stream]: plain[stream] + length };
          expect(log.position).toEqual(plain);
          log.close();
          log = new LogFile(path, { limit });
          expect(log.position).toEqual(plain);
        }
        log.close();
      }),
      { numRuns: 60 },
    );
  });

  /** Each byte says where it stands in its stream. */
  const written = (from: number, length: number): Buffer => Buffer.from(Array.from({ length }, (_, i) => ((from + i) * 7) % 251));

  it('keeps the beginning and the end beyond its limit, and says how much is missing between them and where', async () => {
    const step = fc.record({
      stream: fc.constantFrom('stdout' as const, 'stderr' as const),
      length: fc.integer({ min: 1, max: 700 }),
      reopen: fc.nat(5),
      missing: fc.oneof({ weight: 9, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.integer({ min: 1, max: 2_000 }) }),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { maxLength: 60 }),
        fc.integer({ min: 100, max: 8_000 }),
        fc.nat(500),
        async (steps, limit, atLeast) => {
          deleteLog(path);
          const options = { limit, endKept: atLeast };
          let log = new LogFile(path, options);
          const seen: LogPiece[] = [];
          const total = { stdout: 0, stderr: 0 };
          let time = 0n;
          const since = { stdout: 0, stderr: 0 };
          for (const { stream, length, reopen, missing } of steps) {
            time += 1n;
            total[stream] += missing;
            if (missing > 0) since[stream] = total[stream];
            add(log, { ...chunk(written(total[stream], length), time, stream), missing });
            total[stream] += length;
            if (reopen !== 0) continue;
            log.close();
            log = new LogFile(path, options);
          }
          for await (const piece of log.read()) seen.push(piece);
          log.close();
          const stored = await gather(readLog(path));
          expect(await gather(seen)).toEqual(stored);
          for (const stream of ['stdout', 'stderr'] as const) {
            const whole = written(0, total[stream]);
            expect(stored[stream].at).toBe(total[stream]);
            for (const { from, bytes } of stored[stream].parts)
              expect(bytes.equals(whole.subarray(from, from + bytes.length))).toBe(true);
            const last = stored[stream].parts.at(-1);
            // The end is there, and whole as far as is promised.
            if (total[stream] > 0)
              expect(last?.bytes.length ?? 0).toBeGreaterThanOrEqual(Math.min(atLeast, total[stream] - since[stream]));
            if (total.stdout + total.stderr <= limit) expect(last?.bytes.length ?? 0).toBe(total[stream] - since[stream]);
          }
          const size = readdirSync(dir.path).reduce((sum, file) => sum + statSync(join(dir.path, file)).size, 0);
          expect(size).toBeLessThan(limit + 3 * 700 + 2 * atLeast + steps.length * 21 + 400);
        },
      ),
      { numRuns: 150 },
    );
  });

  /** What was given of each stream, joined where nothing is missing, and how far that goes. */
  async function gather(pieces: AsyncIterable<LogPiece> | Iterable<LogPiece>) {
    const found = {
      stdout: { at: 0, parts: [] as { from: number; bytes: Buffer }[] },
      stderr: { at: 0, parts: [] as { from: number; bytes: Buffer }[] },
    };
    for await (const { stream, bytes, gap } of pieces) {
      for (const each of ['stdout', 'stderr'] as const) {
        const one = found[each];
        if (gap !== undefined) {
          expect(gap.after[each]).toBe(one.at);
          one.at += gap.missing[each];
        }
        if (each !== stream) continue;
        const last = one.parts.at(-1);
        if (last !== undefined && last.from + last.bytes.length === one.at) last.bytes = Buffer.concat([last.bytes, bytes]);
        else one.parts.push({ from: one.at, bytes: Buffer.from(bytes) });
        one.at += bytes.length;
      }
    }
    return found;
  }

  it('keeps or counts every byte, and says so where output of unknown length was lost, whatever it drops later', async () => {
    const step = fc.record({
      stream: fc.constantFrom('stdout' as const, 'stderr' as const),
      length: fc.nat(700),
      reopen: fc.nat(5),
      missing: fc.oneof({ weight: 9, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.integer({ min: 1, max: 2_000 }) }),
      gap: fc.nat(30).map((one) => one === 0),
    });
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { maxLength: 60 }),
        fc.integer({ min: 100, max: 8_000 }),
        fc.nat(500),
        async (steps, limit, endKept) => {
          deleteLog(path);
          let log = new LogFile(path, { limit, endKept });
          let total = 0;
          let hasHole = false;
          for (const [at, { stream, length, reopen, missing, gap }] of steps.entries()) {
            add(log, { ...chunk(Buffer.alloc(length, 'x'), BigInt(at + 1), stream), missing, ...(gap ? { gap } : {}) });
            total += missing + length;
            hasHole ||= gap;
            if (reopen !== 0) continue;
            log.close();
            log = new LogFile(path, { limit, endKept });
          }
          let sum = 0;
          let isSaid = false;
          let before = 0;
          const pieces: LogPiece[] = [];
          for await (const piece of log.read()) pieces.push(piece);
          log.close();
          for (const { stream, bytes, gap } of pieces) {
            if (gap !== undefined) {
              expect(gap.after.stdout + gap.after.stderr).toBe(before);
              expect(gap.holes === undefined).toBe(gap.holes !== 'here' && !isSaid);
              isSaid ||= gap.holes === 'here';
              sum += gap.missing.stdout + gap.missing.stderr;
              if (gap.holes !== undefined) expect(Buffer.from(bytes).toString()).toMatch(/at least|may be missing/);
            } else if (stream !== 'note') sum += bytes.length;
            before = sum;
          }
          expect(sum).toBe(total);
          expect(isSaid).toBe(hasHole);
        },
      ),
      { numRuns: 150 },
    );
  });

  it('never joins what was before output of unknown length to what came after it', async () => {
    const log = new LogFile(path, { limit: 400, endKept: 300 });
    for (let at = 0; at < 12; at += 1) add(log, chunk('a'.repeat(50), BigInt(at + 1), 'stderr'));
    add(log, { ...chunk('b'.repeat(50), 20n, 'stderr'), gap: true });
    for (let at = 0; at < 40; at += 1) add(log, chunk('c'.repeat(50), BigInt(at + 30)));
    log.close();
    const pieces = await all(readLog(path));
    expect(pieces.find(([stream, text]) => stream === 'stderr' && /ab/.test(text))).toBeUndefined();
    expect(pieces.some(([stream, text]) => stream === 'stderr' && text.endsWith('b'))).toBe(true);
    expect(pieces.filter(([stream]) => stream === 'note').join('')).toMatch(/at least/);
  });

  it('says so in one line, and never takes more disk than its limit and the ends of both streams', async () => {
    const limit = 1024 * 1024;
    const log = new LogFile(path, { limit });
    add(log, chunk('the first word\n', 1n, 'stderr'));
    const block = chunk(Buffer.alloc(64 * 1024, 'x'), 2n);
    for (let i = 0; i < 1_024; i += 1) add(log, block);
    expect(log.position).toMatchObject({ stdout: 64 * 2 ** 20, atTime: 1_024 });
    log.close();
    const again = new LogFile(path, { limit });
    add(again, { ...block, time: 3n });
    expect(again.position).toMatchObject({ stdout: 64 * 2 ** 20 + 64 * 1024 });
    again.close();
    const pieces = await all(readLog(path));
    const notes = pieces.filter(([stream]) => stream === 'note').map(([, text]) => text);
    expect(notes).toEqual([
      expect.stringMatching(/^output is not kept here: [\d,]+ bytes of stdout after its first 5[\d,]+ bytes\n$/),
    ]);
    expect(pieces[0]).toEqual(['stderr', 'the first word\n']);
    const kept = pieces.reduce((sum, [stream, text]) => sum + (stream === 'stdout' ? text.length : 0), 0);
    expect(kept).toBeGreaterThan(1.5 * limit);
    const size = readdirSync(dir.path).reduce((sum, file) => sum + statSync(join(dir.path, file)).size, 0);
    expect(size).toBeLessThan(3 * limit);
  });

  it('keeps the last words of a stream that ended long ago, too', async () => {
    const log = new LogFile(path, { limit: 8 * 2 ** 20 });
    add(log, chunk(Buffer.alloc(5 * 2 ** 20, 'x'), 1n));
    add(log, chunk('FINAL ERROR\n', 2n, 'stderr'));
    const block = Buffer.alloc(256 * 1024, 'y');
    for (let i = 0; i < 200; i += 1) add(log, chunk(block, 3n));
    log.close();
    expect((await all(readLog(path))).filter(([stream]) => stream === 'stderr')).toEqual([['stderr', 'FINAL ERROR\n']]);
  });

  it('reads the same after a kill between any two steps of dropping its oldest part', async () => {
    const log = new LogFile(path, { limit: 4_000, endKept: 600 });
    for (let i = 0; i < 8; i += 1) add(log, chunk(written(i * 1_000, 1_000), BigInt(i + 1)));
    add(log, chunk('last words', 20n, 'stderr'));
    log.close();
    const before = await gather(readLog(path));
    const { parts, kept } = partsOf(path);
    const [older, newer] = parts as [Part, Part];
    takeOver(kept, older, newer.start, { stdout: 600, stderr: 600 });
    const reopened = new LogFile(path, { limit: 4_000, endKept: 600 });
    expect(existsSync(older.path)).toBe(false);
    reopened.close();
    const after = await gather(readLog(path));
    expect(after.stdout.at).toBe(before.stdout.at);
    expect(after.stderr).toEqual(before.stderr);
    // One that was begun, and not yet written to.
    writeFileSync(older.path, '');
    new LogFile(path, { limit: 4_000, endKept: 600 }).close();
    expect(await gather(readLog(path))).toEqual(after);
  });

  /** One byte on each stream in turn, each as its own record. */
  const inTurn = (log: LogFile, times: number): void => {
    for (let i = 0; i < times; i += 1) add(log, chunk(written(Math.floor(i / 2), 1), 1n, i % 2 === 0 ? 'stdout' : 'stderr'));
  };
  const sizeOnDisk = (): number => readdirSync(dir.path).reduce((sum, file) => sum + statSync(join(dir.path, file)).size, 0);

  it('keeps the ends of streams that alternate by the byte in few records, complete and in order', async () => {
    const part = join(dir.path, 'part');
    const kept = `${path}.kept`;
    const heads = [encodePosition({ ...start, stdout: 1_000, stderr: 2_000 })];
    const each = 40_000;
    for (let i = 0; i < each; i += 1) {
      for (const [type, from] of [['stdout', 1_000] as const, ['stderr', 2_000] as const])
        heads.push(encodeHead({ type, time: 1n, atTime: 1, dropped: 0, length: 1 }), written(from + i, 1));
    }
    writeFileSync(part, Buffer.concat(heads));
    const end = { ...start, stdout: 1_000 + each, stderr: 2_000 + each };
    takeOver(kept, { path: part, start: { ...start, stdout: 1_000, stderr: 2_000 } }, end, {
      stdout: 30_000,
      stderr: 20_000,
    });
    expect(statSync(kept).size).toBeLessThan((50_000 * 4) / 3);
    const cursor = new Cursor();
    const pieces = keptPieces(kept, cursor);
    expect(pieces.length).toBeLessThan(50_000 / 64 + 2);
    const found = await gather(pieces);
    for (const [stream, wanted] of [['stdout', 30_000] as const, ['stderr', 20_000] as const]) {
      const [only, ...more] = found[stream].parts;
      expect(more).toEqual([]);
      expect(only?.from).toBe(end[stream] - wanted);
      expect(only?.bytes.equals(written(end[stream] - wanted, wanted))).toBe(true);
    }
    // Where both streams have bytes they still come side by side.
    const lead = { stdout: 0, stderr: 0 };
    for (const { stream, bytes } of pieces.slice(1).reverse()) {
      if (stream === 'note') continue;
      lead[stream] += bytes.length;
      if (lead.stderr < 20_000) expect(Math.abs(lead.stdout - lead.stderr)).toBeLessThan(256);
    }
  });

  it('takes over the end of one stream past any number of records of the other', async () => {
    const log = new LogFile(path, { limit: 8 * 2 ** 20 });
    add(log, chunk(Buffer.alloc(4 * 2 ** 20), 1n));
    inTurn(log, 128 * 1024);
    const block = Buffer.alloc(256 * 1024, 'y');
    for (let i = 0; i < 64; i += 1) add(log, chunk(block, 3n));
    log.close();
    const { stderr } = await gather(readLog(path));
    expect(stderr.parts).toEqual([{ from: 0, bytes: written(0, 64 * 1024) }]);
    expect(statSync(`${path}.kept`).size).toBeLessThan(64 * 1024 + 200);
  });

  it('takes at most about twice its limit on disk, however small the pieces of output', async () => {
    const limit = 64 * 1024;
    const log = new LogFile(path, { limit, endKept: 0 });
    inTurn(log, 2 * limit);
    log.close();
    expect(sizeOnDisk()).toBeLessThan(2 * limit + 3 * 64 * 1024 + 1_000);
    const again = new LogFile(path, { limit, endKept: 0 });
    expect(again.position).toMatchObject({ stdout: limit, stderr: limit });
    again.close();
    const { stdout, stderr } = await gather(readLog(path));
    expect([stdout.at, stderr.at]).toEqual([limit, limit]);
  });

  it('with a small limit does not write the kept ends again for every few bytes', () => {
    const log = new LogFile(path, { limit: 1_024, endKept: 2 ** 20 });
    const files = new Set<number>();
    for (let i = 0; i < 2_000; i += 1) {
      add(log, chunk(Buffer.alloc(1_024, 'z')));
      if (existsSync(`${path}.kept`)) files.add(statSync(`${path}.kept`).ino * 1e9 + statSync(`${path}.kept`).mtimeMs);
    }
    log.close();
    expect(files.size).toBeLessThan(10);
  });

  it('gives the right positions of taken-over output after left-out output', async () => {
    let why: string | null = null;
    const log = new LogFile(path, { limit: 4_000, endKept: 1_500, noRoom: () => why });
    let at = 0;
    const print = (length: number): void => {
      add(log, chunk(written(at, length), BigInt(at + 1)));
      at += length;
    };
    for (let i = 0; i < 3; i += 1) print(1_000);
    why = 'the disk is nearly full';
    print(500);
    why = null;
    for (let i = 0; i < 5; i += 1) print(250);
    log.close();
    const { stdout } = await gather(readLog(path));
    expect(stdout.at).toBe(at);
    for (const { from, bytes } of stdout.parts) expect(bytes.equals(written(from, bytes.length))).toBe(true);
  });

  it('leaves output out while its disk is full, and says from where to where', async () => {
    let why: string | null = null;
    const log = new LogFile(path, { noRoom: () => why });
    add(log, chunk('before\n', 1n));
    why = 'the disk is nearly full';
    for (let i = 2; i < 1_000; i += 1) add(log, chunk('lost\n', BigInt(i)));
    const { size } = statSync(path);
    expect(size).toBeLessThan(200);
    why = null;
    add(log, chunk('after\n', 2_000n));
    const { position } = log;
    log.close();
    expect(await all(readLog(path))).toEqual([
      ['stdout', 'before\n'],
      ['note', 'the disk is nearly full\n'],
      ['note', 'output is not kept here: 4,990 bytes of stdout after its first 7 bytes\n'],
      ['stdout', 'after\n'],
    ]);
    const again = new LogFile(path);
    expect(again.position).toEqual(position);
    again.close();
  });

  it('frees its disk when somebody deletes it, and continues without reading again', async () => {
    const log = new LogFile(path);
    const block = chunk(Buffer.alloc(512 * 1024, 'x'), 1n);
    for (let i = 0; i < 3; i += 1) add(log, block);
    rmSync(path);
    expect(await all(log.read())).toEqual([]);
    for (let i = 0; i < 4; i += 1) add(log, block);
    expect(existsSync(path) && openAt(dir.path)).toEqual([path]);
    add(log, chunk('after', 2n));
    const { position } = log;
    log.close();
    expect((await all(readLog(path))).at(-1)?.[1]).toMatch(/after$/);
    const again = new LogFile(path);
    expect(again.position).toEqual(position);
    again.close();
  });

  it('starts again after a reset', async () => {
    const log = new LogFile(path);
    log.append(chunk('ready\n'), new Uint8Array(0));
    log.reset();
    expect(log.position).toEqual(start);
    add(log, chunk('again'));
    log.close();
    expect(await all(readLog(path))).toEqual([['stdout', 'again']]);
  });

  it('returns a record longer than one read completely', async () => {
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

  it('may be deleted repeatedly', () => {
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

  it('gives a fast follower all of a log that keeps only its ends, and tells a slow one what is missing', async () => {
    const log = new LogFile(path, { limit: 64 * 1024, endKept: 0 });
    const fast = log.read({ follow: true });
    const slow = log.read({ follow: true });
    let [text, whole] = ['', 'begin\n'];
    const take = async (): Promise<void> => {
      const { value, done } = await fast.next();
      // Without its file a follower ends, and what it lacks never comes.
      if (done === true) throw new Error(`the follower ended after ${text.length} of ${whole.length} bytes`);
      text += Buffer.from(value?.bytes ?? []).toString();
    };
    add(log, chunk('begin\n', 1n));
    await take();
    await slow.next();
    for (let i = 0; i < 2_000; i += 1) {
      const line = `${i} ${'.'.repeat(100)}\n`;
      whole += line;
      add(log, chunk(line, BigInt(i + 2)));
      while (text.length < whole.length) await take();
    }
    expect(text).toBe(whole);
    log.close();
    await fast.return();
    let [at, notes] = [6, 0];
    for await (const { stream, bytes, gap } of slow) {
      if (gap !== undefined) {
        notes += 1;
        expect(gap.after.stdout).toBe(at);
        at += gap.missing.stdout;
      }
      if (stream !== 'stdout') continue;
      expect(Buffer.from(bytes).toString()).toBe(whole.slice(at, at + bytes.length));
      at += bytes.length;
    }
    expect([at, notes]).toEqual([whole.length, 1]);
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

  it('does not slow down the writer, or grow memory, for a slow reader', async () => {
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
  it('refuses a whole chunk, and takes the same one once there is room', async () => {
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
