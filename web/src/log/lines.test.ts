import { expect, test } from 'vitest';
import { Blocks, blockLines, createLineReader, longestLine, nothing } from './lines.ts';

function reader() {
  const lines: [string, string, number][] = [];
  return { lines, reader: createLineReader((stream, text, bytes) => lines.push([stream, text, bytes])) };
}

test('both streams become lines of their own, however they are cut', () => {
  const { lines, reader: read } = reader();
  const bytes = Buffer.from('eins\nzwölf\n\nopen');
  for (const byte of bytes) read.push('stdout', Uint8Array.of(byte));
  read.push('stderr', Buffer.from('bad\nhalf'));
  expect(lines).toEqual([
    ['stdout', 'eins', 5],
    ['stdout', 'zwölf', 7],
    ['stdout', '', 1],
    ['stderr', 'bad', 4],
  ]);
  expect(read.open).toEqual([
    { stream: 'stdout', text: 'open' },
    { stream: 'stderr', text: 'half' },
  ]);
  expect(read.openBytes).toEqual({ stdout: 4, stderr: 4 });
});

test('a progress bar is what it shows in the end', () => {
  const { lines, reader: read } = reader();
  read.push('stdout', Buffer.from('10%\r50%\r100%\r\nnext\r\n'));
  expect(lines.map(([, text]) => text)).toEqual(['100%', 'next']);
});

test('a line without an end is broken, and no character is', () => {
  const { lines, reader: read } = reader();
  const text = 'ä'.repeat(longestLine);
  for (let at = 0; at < 2 * longestLine; at += 1_001) read.push('stdout', Buffer.from(text).subarray(at, at + 1_001));
  const all = [...lines.map(([, part]) => part), ...read.open.map((open) => open.text)];
  expect(all.join('')).toBe(text);
  expect(Math.max(...lines.map(([, , bytes]) => bytes))).toBeLessThanOrEqual(longestLine);
  const { stdout } = read.openBytes;
  expect(lines.reduce((sum, [, , bytes]) => sum + bytes, stdout)).toBe(2 * longestLine);
});

test('full blocks stay the same objects, and leave from the front', () => {
  let key = 0;
  const blocks = new Blocks(() => key++);
  const add = (count: number) => {
    for (let n = 0; n < count; n += 1) blocks.add('stdout', `line ${n}`, { ...nothing, stdout: 10 });
  };
  add(250);
  const before = blocks.list();
  add(20);
  const after = blocks.list();
  expect(after.map(({ lines }) => lines.length)).toEqual([100, 100, 70]);
  expect(after[0]).toBe(before[0]);
  expect(after[2]).not.toBe(before[2]);
  expect(blocks.counts.stdout).toBe(2_700);
  expect(blocks.trimFront({ lines: 200, size: 1e9 })).toEqual({
    counts: { stdout: 10 * blockLines, stderr: 0 },
    lines: blockLines,
  });
  expect(blocks.lines).toBe(170);
});
