/** What is sent to be built: the Dockerfile and the agent's files, and nothing that leaves its folder. */
import { randomBytes } from 'node:crypto';
import { statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { extract, pack } from 'tar-stream';
import { expect, onTestFinished, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { buildContext } from './builder.ts';

type Entry = Parameters<ReturnType<typeof pack>['entry']>[0];

async function tgz(...entries: [Entry, string?][]): Promise<string> {
  const dir = scratch();
  onTestFinished(() => dir[Symbol.dispose]());
  const tar = pack();
  for (const [head, content] of entries) tar.entry({ uid: 501, gid: 20, uname: 'me', ...head }, content ?? '');
  tar.finalize();
  const path = join(dir.path, 'agent.tar.gz');
  writeFileSync(path, gzipSync(await buffer(tar)));
  return path;
}

async function entriesOf(stream: NodeJS.ReadableStream) {
  const reader = stream.pipe(extract());
  stream.on('error', (error) => reader.destroy(error));
  const found: object[] = [];
  for await (const entry of reader) {
    const { name, type, mode, uid, gid, linkname } = entry.header;
    const text = (await buffer(entry)).toString();
    found.push({ name, type, mode, uid, gid, linkname: linkname ?? null, text });
  }
  return found;
}

const listener: [Entry, string] = [{ name: './bin/Agent.Listener', mode: 0o755 }, 'listen'];

test('a Dockerfile alone', async () => {
  expect(await entriesOf(buildContext('FROM scratch\n', null))).toMatchObject([{ name: 'Dockerfile', text: 'FROM scratch\n' }]);
});

test('the agent lies in its folder and is its user’s, with modes and links', async () => {
  const path = await tgz(
    [{ name: './', type: 'directory', mode: 0o755 }],
    listener,
    [{ name: 'bin/link', type: 'symlink', linkname: '../run.sh' }],
    [{ name: 'bin/same', type: 'link', linkname: './bin/Agent.Listener' }],
    [{ name: `${'deep/'.repeat(40)}file`, mode: 0o644 }, 'x'],
  );
  const own = { uid: 1000, gid: 1000 };
  expect((await entriesOf(buildContext('FROM x\n', path))).slice(1)).toMatchObject([
    { name: 'agent/', type: 'directory', ...own },
    { name: 'agent/bin/Agent.Listener', type: 'file', mode: 0o755, text: 'listen', ...own },
    { name: 'agent/bin/link', type: 'symlink', linkname: '../run.sh', ...own },
    { name: 'agent/bin/same', type: 'link', linkname: 'agent/bin/Agent.Listener', ...own },
    { name: `agent/${'deep/'.repeat(40)}file`, type: 'file', text: 'x', ...own },
  ]);
});

test.each<[string, [Entry, string?][], RegExp]>([
  ['a file outside', [listener, [{ name: '../../etc/cron.d/x' }, 'x']], /"..\/..\/etc\/cron.d\/x", which is outside/],
  ['an absolute path', [listener, [{ name: '/etc/passwd' }, 'x']], /outside its folder/],
  ['a hard link to outside', [listener, [{ name: 'x', type: 'link', linkname: '/etc/passwd' }]], /outside its folder/],
  ['no agent', [[{ name: 'README' }, 'x']], /neither bin\/Agent.Listener nor/],
])('%s is refused', async (_, entries, why) => {
  const path = await tgz(...entries);
  const reading = buffer(buildContext('FROM x\n', path));
  await expect(reading).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', message: expect.stringMatching(why) });
});

test('a package that is cut off in the middle of a file is refused', async () => {
  const path = await tgz(listener, [{ name: 'large' }, randomBytes(1e6).toString('hex')]);
  truncateSync(path, Math.floor(statSync(path).size / 2));
  const reading = buffer(buildContext('FROM x\n', path));
  await expect(reading).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', message: expect.stringContaining(path) });
});

test('a build may be given up in the middle of a file', async () => {
  const path = await tgz(listener, [{ name: 'large' }, randomBytes(1e6).toString('hex')]);
  const context = buildContext('FROM x\n', path);
  for await (const _ of context) break;
  expect(context.destroyed).toBe(true);
});

test('a connection that breaks meanwhile is not the package’s fault', async () => {
  const path = await tgz(listener, [{ name: 'large' }, randomBytes(1e6).toString('hex')]);
  const broken = new Error('read ECONNRESET');
  const context = buildContext('FROM x\n', path);
  const reading = (async () => {
    for await (const _ of context) context.destroy(broken);
  })();
  await expect(reading).rejects.toBe(broken);
});

test('what is not a package is refused', async () => {
  const reading = buffer(buildContext('FROM x\n', join(import.meta.dirname, 'builder.ts')));
  await expect(reading).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', message: expect.stringContaining('builder.ts') });
});
