/** What a job gets is the folder as it is, whatever was sent before, and only what changed is on its way. */
import { chmodSync, mkdirSync, readdirSync, renameSync, rmSync, symlinkSync, utimesSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import type { Client } from '../api/client.ts';
import { OnejobError } from '../base/errors.ts';
import { Spool } from '../ci/own-queue/spool.ts';
import type { JoinRequest } from '../contract/schema.ts';
import { packWorkspace } from '../workspace/pack.ts';
import { sendWorkspace } from './send-workspace.ts';

const never = new AbortController().signal;
let dir: Scratch;
let top: string;
let spool: Spool;
let calls: string[];
beforeEach(() => {
  dir = scratch();
  top = join(dir.path, 'top');
  mkdirSync(join(dir.path, 'state'));
  spool = new Spool(join(dir.path, 'state'), () => false);
  calls = [];
});
afterEach(() => dir[Symbol.dispose]());

/** Files that are unchanged for a while: the clock of this test is ahead. */
const later = 60_000;

function put(path: string, content: string | Buffer = path): void {
  mkdirSync(dirname(join(top, path)), { recursive: true });
  writeFileSync(join(top, path), content);
}

const client = {
  async keepFiles(files: Readable) {
    const tar = await buffer(files);
    calls.push(`keep ${tar.length}`);
    return spool.keepFiles(Readable.from([tar]), 2 ** 30, never);
  },
  async putWorkspace(files: Readable) {
    calls.push('put');
    return spool.putWorkspace(files, 2 ** 30, never);
  },
  async call(_: string, { body }: { body: JoinRequest }) {
    calls.push(`join ${body.sent.length}`);
    return { id: await spool.joinWorkspace(body, 2 ** 30, never) };
  },
};

/** What was called; fails unless the job gets what it would get if all were sent. */
async function send(to: Partial<typeof client> = {}): Promise<string[]> {
  calls = [];
  const options = {
    client: { ...client, ...to } as unknown as Client,
    cacheHome: join(dir.path, 'cache'),
    daemon: 'd',
    warn: () => {},
    progress: () => {},
  };
  const listed = await packWorkspace(top);
  const id = await sendWorkspace({ ...listed, at: listed.at + later }, options);
  const got = await buffer(spool.openWorkspace(id));
  expect(got.equals(await buffer((await packWorkspace(top)).stream))).toBe(true);
  return calls;
}

it('a folder that did not change is not sent again, and of a change only that', async () => {
  for (let n = 0; n < 50; n += 1) put(`src/${n % 5}/${n}.txt`, 'x'.repeat(n * 100));
  put('large', Buffer.alloc(600_000, 7));
  put(`${'long/'.repeat(40)}name`);
  symlinkSync('large', join(top, 'link'));
  expect(await send()).toEqual([expect.stringMatching(/^keep \d{6}$/), 'join 1']);
  expect(await send()).toEqual(['join 1']);
  put('src/3/13.txt', 'changed');
  expect(await send()).toEqual(['keep 2048', 'join 2']);
  expect(await send()).toEqual(['join 2']);
});

it.each<[string, () => void]>([
  ['a new file', () => put('src/new')],
  ['a file less', () => rmSync(join(top, 'src/b'))],
  ['another mode', () => chmodSync(join(top, 'src/b'), 0o755)],
  ['another time', () => utimesSync(join(top, 'src/b'), 1, 1)],
  [
    'a link in place of a file',
    () => {
      rmSync(join(top, 'src/b'));
      symlinkSync('a', join(top, 'src/b'));
    },
  ],
  [
    'a folder in place of a file',
    () => {
      rmSync(join(top, 'src/b'));
      put('src/b/c');
    },
  ],
  ['another name', () => renameSync(join(top, 'src'), join(top, 'lib'))],
  [
    'the same size and time, but another inode',
    () => {
      put('src/c', 'src/B');
      utimesSync(join(top, 'src/c'), 1, 1);
      renameSync(join(top, 'src/c'), join(top, 'src/b'));
    },
  ],
])('%s is noticed', async (_, change) => {
  for (const path of ['src/a', 'src/b', 'other/a', 'other/b']) put(path);
  put('large', Buffer.alloc(100_000));
  utimesSync(join(top, 'src/b'), 1, 1);
  await send();
  change();
  const [first = ''] = await send();
  expect(Number(first.replace('keep ', ''))).toBeLessThan(20_000);
});

it('what the daemon has no more, or damaged, is sent again', async () => {
  put('a', Buffer.alloc(10_000));
  await send();
  const kept = join(dir.path, 'state', 'sent');
  for (const name of readdirSync(kept)) writeFileSync(join(kept, name), 'damaged');
  expect(await send()).toEqual(['join 1', expect.stringMatching('keep'), 'join 1']);
  expect(await send()).toEqual(['join 1']);
  for (const name of readdirSync(kept)) rmSync(join(kept, name));
  expect(await send()).toEqual(['join 1', expect.stringMatching('keep'), 'join 1']);
});

it('a daemon that keeps nothing gets the whole, as before', async () => {
  put('a');
  const refuse = async (): Promise<never> => {
    throw new OnejobError('E_API_VERSION', 'of another version');
  };
  expect(await send({ keepFiles: refuse })).toEqual(['put']);
  expect(await send()).toHaveLength(2);
  expect(await send({ call: refuse })).toEqual(['put']);
});

it('a daemon whose disk has no room to keep it gets the whole', async () => {
  put('a');
  const forget = async (): Promise<never> => {
    throw new OnejobError('E_WORKSPACE_UNKNOWN', 'gone');
  };
  expect(await send({ call: forget })).toEqual(['keep 2048', 'keep 2048', 'put']);
});

it('another failure is one', async () => {
  put('a');
  const full = async (): Promise<never> => {
    throw new OnejobError('E_STATE_FULL', 'no room');
  };
  await expect(send({ keepFiles: full })).rejects.toMatchObject({ code: 'E_STATE_FULL' });
  expect(calls).toEqual([]);
});

it('an empty folder is a workspace, too', async () => {
  mkdirSync(top);
  expect(await send()).toEqual(['keep 1024', 'join 1']);
  expect(await send()).toHaveLength(2);
});
