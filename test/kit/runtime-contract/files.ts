/** What every runtime promises about files that go into a sandbox's workspace and come back. */
import { once } from 'node:events';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { expect } from 'vitest';
import type { AgentId } from '../../../src/core/slot.ts';
import type { Bench } from './bench.ts';
import { job } from './job.ts';

const never = () => new AbortController().signal;

export function fileTests(bench: Bench): void {
  const { it, standby, release, run } = bench;

  it('files', 'files put in belong to the agent, and files made come back', async () => {
    const { agent, log } = await standby();
    const long = `deep/${'n'.repeat(120)}/file with spaces\u00e9`;
    await bench.runtime.putFiles(agent, await aTar(long), never());
    const place = bench.runtime.capabilities.workspace(agent);
    const script = [
      'set -e',
      `cd '${place}'; cat hello.txt; cat link; ./tool; cat '${long}'`,
      '[ "$(stat -c %u hello.txt)" = "$(id -u)" ] && [ "$(stat -c %u deep)" = "$(id -u)" ] && echo mine',
      'echo more >>hello.txt; echo made >made.txt; mkdir -p out; printf "\\0\\377" >out/bytes; ln -s made.txt made-link; rm tool',
      'echo done; exec sleep 600',
    ].join('\n');
    await release(
      agent,
      job(script, [
        { show: { file: 'hello.txt' } },
        { show: { file: 'link' } },
        { run: 'tool' },
        { show: { file: long } },
        { mine: ['hello.txt', 'deep'], says: 'mine\n' },
        { append: 'hello.txt', text: 'more\n' },
        { file: 'made.txt', text: 'made\n' },
        { file: 'out/bytes', text: '\0\xff' },
        { link: 'made-link', to: 'made.txt' },
        { remove: 'tool' },
        { say: 'done\n' },
        { sleep: 600_000 },
      ]),
    );
    await log.until('done\n');
    expect(log.text()).toContain('hello\nhello\ntool ran\ndeep\nmine\ndone\n');
    const files = await untar(await bench.runtime.getFiles(agent, never()));
    expect(files.get('./hello.txt')).toBe('hello\nmore\n');
    expect(files.get('./made.txt')).toBe('made\n');
    expect(files.get('./out/bytes')).toBe('\0\xff');
    expect(files.get('./made-link')).toBe('-> made.txt');
    expect(files.get(`./${long}`)).toBe('deep\n');
    expect([...files.keys()].filter((path) => path !== '.' && !path.startsWith('./'))).toEqual([]);
    expect(files.has('./tool')).toBe(false);
  });

  it('files-after-exit', 'files come back after the agent has ended', async () => {
    const { agent } = await run(job('echo kept >kept.txt; exit 4', [{ file: 'kept.txt', text: 'kept\n' }, { exit: 4 }]));
    expect((await untar(await bench.runtime.getFiles(agent, never()))).get('./kept.txt')).toBe('kept\n');
  });

  it('files-some', 'only what is called so at the top comes back, where that is asked for, and no link is followed', async () => {
    const { agent } = await run(
      job(
        'mkdir -p dist/deep; echo a >dist/deep/a; echo ok >ok; ln -s /etc etc; ln dist/deep/a hard; truncate -s 10T big; echo x >-x',
        [
          { file: 'dist/deep/a', text: 'a\n' },
          { file: 'ok', text: 'ok\n' },
          { link: 'etc', to: '/etc' },
          { hardLink: 'hard', to: 'dist/deep/a' },
          { file: 'big', text: { hole: 10 * 2 ** 40 } },
          { file: '-x', text: 'x\n' },
        ],
      ),
    );
    const all = await bench.runtime.getFiles(agent, never(), ['dist', 'ok', 'etc', 'missing', '-x', 'hard']);
    const files = new Map([...(await untar(all))].map(([path, content]) => [path.replace(/^\.\//, ''), content]));
    expect(files.get('dist/deep/a') || files.get('hard')).toBe('a\n');
    expect(files.get('ok')).toBe('ok\n');
    expect(files.get('etc')).toBe('-> /etc');
    expect(files.get('-x')).toBe('x\n');
    expect(files.has('big')).toBe(false);
  });

  it('folder', 'one folder comes back alone, its names relative to it; while the agent works and after', async () => {
    const { agent, log } = await standby();
    await release(
      agent,
      job('mkdir -p .one/deep empty; echo a >.one/a; echo b >.one/deep/b; ln -s a .one/l; echo other >a; echo up; exec sleep 600', [
        { folder: '.one/deep' },
        { folder: 'empty' },
        { file: '.one/a', text: 'a\n' },
        { file: '.one/deep/b', text: 'b\n' },
        { link: '.one/l', to: 'a' },
        { file: 'a', text: 'other\n' },
        { say: 'up\n' },
        { sleep: 600_000 },
      ]),
    );
    await log.until('up\n');
    const expected = new Map([
      ['.', ''],
      ['./a', 'a\n'],
      ['./deep', ''],
      ['./deep/b', 'b\n'],
      ['./l', '-> a'],
    ]);
    expect(await folderOf(agent, '.one')).toEqual(expected);
    expect([...((await folderOf(agent, 'empty')) ?? [])]).toEqual([['.', '']]);
    await bench.runtime.signal(agent, 'KILL');
    await bench.events.exit(agent);
    expect(await folderOf(agent, '.one')).toEqual(expected);
  });

  it('folder', 'refuses what is not a folder, also a link to one: it may lead to what the job itself cannot read', async () => {
    const { agent, log } = await standby();
    await release(
      agent,
      job(
        'mkdir real; echo s >real/s; echo f >file; ln -s real near; ln -s "$PWD/real" whole; ln -s / root; ln -s /etc etc; ln -s ../etc up; ln -s none lost; ln -s loop loop; mkfifo pipe || :; echo up; exec sleep 600',
        [
          { file: 'real/s', text: 's\n' },
          { file: 'file', text: 'f\n' },
          { link: 'near', to: 'real' },
          { link: 'whole', to: `${bench.runtime.capabilities.workspace(agent)}/real` },
          { link: 'root', to: '/' },
          { link: 'etc', to: '/etc' },
          { link: 'up', to: '../etc' },
          { link: 'lost', to: 'none' },
          { link: 'loop', to: 'loop' },
          { say: 'up\n' },
          { sleep: 600_000 },
        ],
      ),
    );
    await log.until('up\n');
    await none(agent);
    await bench.runtime.signal(agent, 'KILL');
    await bench.events.exit(agent);
    await none(agent);
    expect((await folderOf(agent, 'real'))?.get('./s')).toBe('s\n');
  });

  it('folder', 'who has enough of a folder leaves it in the middle', async () => {
    const { agent } = await run(
      job('mkdir big; head -c 20000000 /dev/zero >big/file', [{ file: 'big/file', text: { zeros: 20_000_000 } }]),
    );
    const found = await bench.runtime.getFolder(agent, 'big', never());
    for await (const _ of found ?? []) break;
    expect(found?.destroyed).toBe(true);
    await once(await left(agent), 'close');
    expect((await folderOf(agent, 'big'))?.get('./file')).toHaveLength(20_000_000);
  });

  async function none(agent: AgentId): Promise<void> {
    for (const name of ['etc', 'near', 'whole', 'root', 'up', 'lost', 'loop', 'none', 'file', 'pipe']) {
      expect([name, await folderOf(agent, name)]).toEqual([name, null]);
    }
  }

  /** One that nobody has begun to read. */
  async function left(agent: AgentId): Promise<Readable> {
    return ((await bench.runtime.getFolder(agent, 'big', never())) ?? Readable.from([])).destroy();
  }

  async function folderOf(agent: AgentId, name: string): Promise<Map<string, string> | null> {
    const found = await bench.runtime.getFolder(agent, name, never());
    return found === null ? null : untar(found);
  }
}

/** A workspace with one of each kind of entry; `long` is the path of one of its files. */
async function aTar(long: string): Promise<Readable> {
  const files = pack();
  files.entry({ name: '.', type: 'directory', mode: 0o755 });
  files.entry({ name: './hello.txt', mode: 0o644, uid: 4711, gid: 4711 }, 'hello\n');
  files.entry({ name: './link', type: 'symlink', linkname: 'hello.txt' });
  files.entry({ name: './tool', mode: 0o755 }, '#!/bin/sh\necho tool ran\n');
  files.entry({ name: './empty', mode: 0o600 }, '');
  files.entry({ name: './deep', type: 'directory', mode: 0o755 });
  files.entry({ name: `./${long}`, mode: 0o644 }, 'deep\n');
  files.finalize();
  return Readable.from([await buffer(files)]);
}

/** Path to text, and of a link to `-> ` and where it leads. */
async function untar(stream: Readable): Promise<Map<string, string>> {
  const files = new Map<string, string>();
  const reader = stream.pipe(extract());
  for await (const entry of reader) {
    const body = (await buffer(entry)).toString('latin1');
    const name = entry.header.name.replace(/\/$/, '');
    files.set(name, entry.header.type === 'symlink' ? `-> ${entry.header.linkname}` : body);
  }
  return files;
}
