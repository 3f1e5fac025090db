import { truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import { beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { readAgentLogs } from './agent-logs.ts';

const dir = eachScratch();
let path: string;
beforeEach(() => {
  path = join(dir.path, 'a.tar');
});

async function write(files: readonly (readonly [name: string, second: number, text: string])[]): Promise<void> {
  const tar = pack();
  tar.entry({ name: './.onejob-diag/', type: 'directory' });
  for (const [name, second, text] of files) tar.entry({ name, mtime: new Date(second * 1000) }, text);
  tar.finalize();
  writeFileSync(path, await buffer(tar));
}

async function read(signal = new AbortController().signal): Promise<{ text: string; notes: string[] }> {
  const notes: string[] = [];
  const parts: Uint8Array[] = [];
  for await (const { stream, bytes } of readAgentLogs(path, signal)) {
    if (stream === 'note') notes.push(Buffer.from(bytes).toString());
    else parts.push(bytes);
  }
  return { text: Buffer.concat(parts).toString(), notes };
}

test('one file after the other, oldest first, each below its name', async () => {
  await write([
    ['./Worker_2.log', 30, 'third\n'],
    ['./pages/b.log', 10, 'second, no end of line'],
    ['./pages/a.log', 10, 'first\n'],
  ]);
  expect(await read()).toEqual({
    text: '==> pages/a.log <==\nfirst\n\n==> pages/b.log <==\nsecond, no end of line\n\n==> Worker_2.log <==\nthird\n',
    notes: [],
  });
});

test('a cut-off file is read as far as it goes, and a note says so', async () => {
  await write([
    ['./a.log', 1, 'whole\n'],
    ['./b.log', 2, 'x'.repeat(5_000)],
  ]);
  // Headers of the folder and two files, one block of text, and a bit of the second file's.
  truncateSync(path, 512 * 4 + 1_000);
  const { text, notes } = await read();
  expect(text).toBe(`==> a.log <==\nwhole\n\n==> b.log <==\n${'x'.repeat(1_000)}\n`);
  expect(notes).toEqual(['these logs were too long to keep completely\n']);
});

test.each([0, 100, 511])('a file of only %d bytes has nothing to show, and a note says so', async (length) => {
  await write([['./a.log', 1, 'text']]);
  truncateSync(path, length);
  const { text, notes } = await read();
  expect(text).toBe('');
  expect(notes).toHaveLength(1);
});

test('an empty file is shown as empty, and a name cannot move the cursor', async () => {
  await write([
    ['./empty.log', 1, ''],
    ['./evil\u001b[2J\n.log', 2, 'x\n'],
  ]);
  expect((await read()).text).toBe('==> empty.log <==\n\n==> evil [2J .log <==\nx\n');
});

test('an unreadable file is an error, not an end', async () => {
  await expect(read()).rejects.toMatchObject({ code: 'ENOENT' });
});

test('it does not wait for a reader that has left', async () => {
  await write([['./a.log', 1, 'text']]);
  await expect(read(AbortSignal.abort())).rejects.toMatchObject({ name: 'AbortError' });
});
