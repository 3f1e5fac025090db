/** One folder of an archive: its names, anything but a folder, and that nothing continues after the consumer has left. */
import { PassThrough, Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { expect, test } from 'vitest';
import { insideFolder } from './workspace.ts';

interface Entry {
  readonly name: string;
  readonly type?: 'directory' | 'link' | 'symlink';
  readonly linkname?: string;
  readonly body?: string;
}

async function tar(...entries: readonly Entry[]): Promise<Buffer> {
  const files = pack();
  for (const { body, ...header } of entries) files.entry(header, body ?? '');
  files.finalize();
  return buffer(files);
}

const closed = (source: Readable) => source.closed || new Promise((done) => source.once('close', done));
const folder: Entry = { name: 'own/', type: 'directory' };

test.each(['own/', 'own'])('entries under "%s" are now under "./", including hard links and similar names', async (name) => {
  const long = 'n'.repeat(150);
  const bytes = await tar(
    { ...folder, name },
    { name: 'own/own/', type: 'directory' },
    { name: `own/own/${long}`, body: 'a\n' },
    { name: 'own/hard', type: 'link', linkname: `own/own/${long}` },
    { name: 'own/soft', type: 'symlink', linkname: 'own/x' },
  );
  const inside = await insideFolder(Readable.from([bytes]), 'own');
  const seen: unknown[] = [];
  for await (const entry of (inside ?? Readable.from([])).pipe(extract())) {
    seen.push([entry.header.name, entry.header.linkname, (await buffer(entry)).toString()]);
  }
  expect(seen).toEqual([
    ['./', null, ''],
    ['./own/', null, ''],
    [`./own/${long}`, null, 'a\n'],
    ['./hard', `./own/${long}`, ''],
    ['./soft', 'own/x', ''],
  ]);
});

test.each<[string, Entry[]]>([
  ['a link that was put in place of the folder', [{ name: 'own', type: 'symlink', linkname: '/etc' }]],
  ['a folder of another name', [{ name: 'other/', type: 'directory' }]],
  ['the top', [{ name: '/', type: 'directory' }]],
  ['a file', [{ name: 'own' }]],
  ['nothing', []],
])('%s is not a folder, and the archive is not read on', async (_, entries) => {
  const source = Readable.from([await tar(...entries)]);
  expect(await insideFolder(source, 'own')).toBeNull();
  await closed(source);
  expect(source.destroyed).toBe(true);
});

test('a consumer that stops ends the archive', async () => {
  const head = (await tar(folder)).subarray(0, 512);
  const file = (await tar({ name: 'own/big', body: 'x'.repeat(1_000_000) })).subarray(0, 200_000);
  const source = new PassThrough();
  source.write(Buffer.concat([head, file]));
  const inside = await insideFolder(source, 'own');
  for await (const _ of inside ?? []) break;
  await closed(source);
  expect(source.destroyed).toBe(true);
});

test('a cut-off archive fails, before and after its first entry', async () => {
  const source = new PassThrough();
  const asked = insideFolder(source, 'own');
  source.destroy(new Error('broken pipe'));
  await expect(asked).rejects.toThrow('broken pipe');
  const later = new PassThrough();
  later.write((await tar(folder)).subarray(0, 512));
  const inside = await insideFolder(later, 'own');
  later.destroy(new Error('broken pipe'));
  await expect(buffer(inside ?? Readable.from([]))).rejects.toThrow('broken pipe');
});
