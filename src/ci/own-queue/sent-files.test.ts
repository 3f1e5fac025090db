/** Files that were sent are used again only by who sent them, as they came, and their removal takes nothing from a job. */
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { joinRequest } from '../../contract/schema.ts';
import { SentFiles } from './sent-files.ts';
import { Spool } from './spool.ts';

const never = new AbortController().signal;
const limit = 1_000;
const gone = { code: 'E_WORKSPACE_UNKNOWN' };

let dir: Scratch;
let spool: Spool;
let now = 0;
const clock = { now: () => now, wall: () => Date.now() };
beforeEach(() => {
  dir = scratch();
  spool = new Spool(dir.path, () => false, clock);
});
afterEach(() => dir[Symbol.dispose]());

const keep = (text: string) => spool.keepFiles(Readable.from([Buffer.from(text)]), limit, never);
const make = (sent: string[], ...ranges: [number, number, number][]) => spool.joinWorkspace({ sent, ranges }, limit, never);
const textOf = async (id: string) => String(await buffer(spool.openWorkspace(id)));
const kept = (name = '') => join(dir.path, 'sent', name);
const workspaces = () => readdirSync(join(dir.path, 'workspaces'));

it('a workspace is made of parts of what was sent, in any order, also after a restart', async () => {
  const [one, two] = [await keep('one file'), await keep('another')];
  const id = await make([one, two], [0, 0, 4], [1, 0, 7], [0, 3, 8]);
  spool = new Spool(dir.path, () => false, clock);
  expect(spool.hasWorkspace(id)).toBe(true);
  expect(await textOf(id)).toBe('one another file');
  spool.dropWorkspace(id);
  await spool.close();
  expect(workspaces()).toEqual([]);
  expect(readdirSync(kept())).toHaveLength(2);
});

it('who knows the content, and so its hash, but not the name gets nothing', async () => {
  const name = await keep('secret of a colleague');
  const sum = createHash('sha256').update('secret of a colleague').digest('hex');
  expect(name).toContain(sum);
  for (const guess of [sum, `${'0'.repeat(36)}.${sum}`, `.${sum}`, `*.${sum}`])
    await expect(make([guess], [0, 0, 1])).rejects.toMatchObject(gone);
  // The same content again has another name.
  expect(await keep('secret of a colleague')).not.toBe(name);
});

it.each(['../onejob.db', '../workspaces/x.tar', '/etc/passwd', '.', '', `../sent/${'0'.repeat(28)}.${'0'.repeat(64)}`])(
  'no name leads out of the folder: %s',
  async (name) => {
    writeFileSync(join(dir.path, 'onejob.db'), 'the store');
    await expect(make([name], [0, 0, 1])).rejects.toMatchObject(gone);
    expect(workspaces()).toEqual([]);
  },
);

it('a checksum that a client made up fits to no file', async () => {
  const name = await keep('files');
  await expect(make([name.replace(/.{64}$/, '0'.repeat(64))], [0, 0, 1])).rejects.toMatchObject(gone);
});

it.each(['rot', 'loss'])('%s on disk is noticed before a job gets it, and the file is given up', async (damage) => {
  const name = await keep('sixteen bytes ok');
  // It was as it came within the hour, and the disk does not say that it changed.
  spool = new Spool(dir.path, () => false, clock);
  if (damage === 'rot') writeFileSync(kept(name), 'sixteen bytes 0k');
  else writeFileSync(kept(name), 'sixteen');
  await expect(make([name], [0, 0, 7])).rejects.toMatchObject(gone);
  expect(existsSync(kept(name))).toBe(false);
  expect(workspaces()).toEqual([]);
});

it('a file that was written is read again, and one that was not is not', async () => {
  const name = await keep('sixteen bytes ok');
  // Fractions of a millisecond, which do not survive the first use.
  utimesSync(kept(name), 1_000.0007, 1_000.0007);
  now += 61 * 60_000;
  await make([name], [0, 0, 7]);
  const { mtime } = statSync(kept(name));
  writeFileSync(kept(name), 'sixteen bytes 0k');
  utimesSync(kept(name), new Date(), mtime);
  expect(await textOf(await make([name], [0, 0, 7]))).toBe('sixteen');
  now += 61 * 60_000;
  await expect(make([name], [0, 0, 7])).rejects.toMatchObject(gone);
  const another = await keep('sixteen bytes ok');
  writeFileSync(kept(another), 'sixteen bytes 0k');
  utimesSync(kept(another), new Date(), new Date(1));
  await expect(make([another], [0, 0, 7])).rejects.toMatchObject(gone);
});

it('what a kill has left of one that was being made is gone after an hour', async () => {
  const name = await keep('files');
  linkSync(kept(name), join(dir.path, 'workspaces', `${'0'.repeat(36)}.0`));
  const longAgo = new Date(1);
  utimesSync(kept(name), longAgo, longAgo);
  await spool.sweepWorkspaces(Date.now() - 3_600_000);
  expect(workspaces()).toHaveLength(1);
  await spool.sweepWorkspaces(Date.now() + 3_600_000);
  expect(workspaces()).toEqual([]);
});

it.each([
  ['after the end', [0, 3, 6]],
  ['backwards', [0, 3, 2]],
  ['empty', [0, 3, 3]],
  ['of a file that is not named', [1, 0, 1]],
] as const)('a part %s is refused', async (_, range) => {
  const name = await keep('files');
  await expect(make([name], [...range])).rejects.toMatchObject(gone);
  expect(workspaces()).toEqual([]);
});

it('parts that are too much together are refused before anything is read', async () => {
  const name = await keep('x'.repeat(600));
  await expect(make([name], [0, 0, 600], [0, 0, 600])).rejects.toMatchObject({ code: 'E_WORKSPACE_TOO_LARGE' });
  const names = await Promise.all([keep('y'.repeat(900)), keep('z'.repeat(900))]);
  await expect(make([name, ...names], [0, 0, 1])).rejects.toMatchObject(gone);
});

it('a list is short: of files, and of parts', () => {
  const ranges = (count: number) => Array.from({ length: count }, () => [0, 0, 1]);
  expect(joinRequest.safeParse({ sent: ['a'], ranges: ranges(20_000) }).success).toBe(true);
  expect(joinRequest.safeParse({ sent: ['a'], ranges: ranges(20_001) }).success).toBe(false);
  expect(joinRequest.safeParse({ sent: Array.from({ length: 17 }, () => 'a'), ranges: ranges(1) }).success).toBe(false);
  for (const wrong of [-1, 0.5, Number.MAX_SAFE_INTEGER * 2, '0'])
    expect(joinRequest.safeParse({ sent: ['a'], ranges: [[0, wrong, 1]] }).success).toBe(false);
});

it('a client that stops in the middle leaves nothing', async () => {
  async function* torn() {
    yield Buffer.from('half');
    throw new Error('client went away');
  }
  await expect(spool.keepFiles(Readable.from(torn()), limit, never)).rejects.toThrow('client went away');
  const name = await keep('files');
  await expect(spool.joinWorkspace({ sent: [name], ranges: [[0, 0, 1]] }, limit, AbortSignal.abort())).rejects.toThrow();
  expect([workspaces(), readdirSync(kept())]).toEqual([[], [name]]);
});

it('two that send and make the same at once do not disturb each other', async () => {
  const names = await Promise.all([keep('same'), keep('same')]);
  const ids = await Promise.all(names.map((name) => make([name], [0, 0, 4])));
  expect(await Promise.all(ids.map(textOf))).toEqual(['same', 'same']);
});

it('what is removed here stays for the jobs that have it', async () => {
  const name = await keep('files');
  const id = await make([name], [0, 0, 5]);
  await spool.sweepSent(Date.now() + 3_600_000);
  expect(readdirSync(kept())).toEqual([]);
  await expect(make([name], [0, 0, 5])).rejects.toMatchObject(gone);
  expect(await textOf(id)).toBe('files');
});

it('what was used lately stays longest, and use does not count for a workspace that waits for its job', async () => {
  const [old, used] = [await keep('old'), await keep('used')];
  const longAgo = new Date(Date.now() - 7_200_000);
  for (const name of [old, used]) utimesSync(kept(name), longAgo, longAgo);
  await make([used], [0, 0, 4]);
  await spool.sweepSent(Date.now() - 3_600_000);
  expect(readdirSync(kept())).toEqual([used]);
});

it('a workspace is not cut short silently', async () => {
  const id = await make([await keep('files')], [0, 0, 5]);
  appendFileSync(join(dir.path, 'workspaces', `${id}.joined`), 'torn');
  await expect(textOf(id)).rejects.toThrow();
});

it('so many that are empty do not fill the table of files', async () => {
  writeFileSync(kept(`${'0'.repeat(36)}.${'0'.repeat(64)}`), '');
  for (let n = 0; n < 1_100; n++) writeFileSync(kept(`${String(n).padStart(36, '0')}.${'1'.repeat(64)}`), '');
  await keep('');
  expect(readdirSync(kept()).length).toBeLessThanOrEqual(1_000);
});

it('one that is pushed out by another at once does not fail the run that sent it', async () => {
  const files = new SentFiles(dir.path, clock);
  await files.came(`${'0'.repeat(36)}.${'0'.repeat(64)}`);
});

it('one with as many links as the file system allows is sent again', async () => {
  const name = await keep('files');
  const many = join(dir.path, 'many');
  mkdirSync(many);
  let failed: unknown = null;
  for (let n = 0; n < 70_000 && failed === null; n++) {
    try {
      linkSync(kept(name), join(many, String(n)));
    } catch (error) {
      failed = error;
    }
  }
  if (failed !== null) await expect(make([name], [0, 0, 1])).rejects.toMatchObject(gone);
});

it('what a kill has left of the list of its parts is gone at the next start', () => {
  writeFileSync(join(dir.path, 'workspaces', `${'0'.repeat(36)}.joined.1.new`), '');
  spool = new Spool(dir.path, () => false, clock);
  expect(workspaces()).toEqual([]);
});

it('is read once, however many workspaces are made of it at the same time', async () => {
  const large = 8 << 20;
  const name = await spool.keepFiles(Readable.from([Buffer.alloc(large)]), large, never);
  now += 61 * 60_000;
  const read = () => Number(/^rchar: (\d+)/m.exec(readFileSync('/proc/self/io', 'utf8'))?.[1]);
  const before = read();
  await Promise.all(Array.from({ length: 10 }, () => spool.joinWorkspace({ sent: [name], ranges: [[0, 0, 5]] }, large, never)));
  expect(read() - before).toBeLessThan(3 * large);
});
