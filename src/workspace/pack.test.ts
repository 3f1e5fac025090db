import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  createWriteStream,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { afterEach, beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { openAt } from '../../test/support/descriptors.ts';
import { asNobody } from '../../test/support/nobody.ts';
import { lacks } from '../../test/support/require.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { listWorkspace } from './list.ts';
import { packWorkspace } from './pack.ts';

let dir: Scratch;
let top: string;
beforeEach(() => {
  dir = scratch();
  top = join(dir.path, 'top');
  mkdirSync(top);
});
afterEach(() => dir[Symbol.dispose]());

function put(path: string, content: string | Buffer = path): void {
  mkdirSync(dirname(join(top, path)), { recursive: true });
  writeFileSync(join(top, path), content);
}
const git = (...args: string[]) =>
  execFileSync('git', ['-c', 'user.name=t', '-c', 'user.email=t@t', '-c', 'protocol.file.allow=always', ...args], {
    cwd: top,
    stdio: 'pipe',
  });

/** Packs the folder and unpacks it with the system's tar: names to contents, links as `-> target`. */
async function sent(folder = top): Promise<{ found: Record<string, string>; warnings: string[] }> {
  const warnings: string[] = [];
  const { stream } = await packWorkspace(folder, { warn: (line) => warnings.push(line) });
  const out = join(dir.path, 'out');
  rmSync(out, { recursive: true, force: true });
  mkdirSync(out);
  const tar = join(dir.path, 'tar');
  await pipeline(stream, createWriteStream(tar));
  const run = spawnSync('tar', ['--warning=no-timestamp', '-xf', tar, '-C', out], { encoding: 'utf8' });
  expect([run.status, run.stderr]).toEqual([0, '']);
  const found: Record<string, string> = {};
  const look = (folder: string): void => {
    for (const entry of readdirSync(folder, { withFileTypes: true })) {
      const path = join(folder, entry.name);
      const name = path.slice(out.length + 1);
      if (entry.isDirectory()) look(path);
      else found[name] = entry.isSymbolicLink() ? `-> ${readlinkSync(path)}` : readFileSync(path, 'latin1');
    }
  };
  look(out);
  return { found, warnings };
}

describe('a plain folder', () => {
  it.each([
    ['a pipe that nobody writes to', (path: string) => execFileSync('mkfifo', [path])],
    ['a link to a device without an end', (path: string) => symlinkSync('/dev/zero', path)],
  ])('whose .onejobignore is %s is an error, and nothing waits', async (_, make) => {
    make(join(top, '.onejobignore'));
    await expect(packWorkspace(top)).rejects.toMatchObject({
      code: 'E_WORKSPACE_READ',
      message: expect.stringContaining('it is not a file'),
    });
  });

  it('is sent whole, but for .git and what .onejobignore names', async () => {
    for (const path of ['a', 'b/c', '.dot', '.git/config', 'sub/.git/config', 'node_modules/x', 'n.log']) put(path);
    put('.onejobignore', 'node_modules/\n*.log\n');
    const { found, warnings } = await sent();
    expect(Object.keys(found).sort()).toEqual(
      ['.dot', '.onejobignore', 'a', 'b/c', 'sub/.git/config'].filter((one) => !one.includes('.git/')),
    );
    expect(warnings).toEqual([]);
  });

  it('keeps modes, links wherever they point, and odd names', async () => {
    put('run.sh');
    chmodSync(join(top, 'run.sh'), 0o750);
    symlinkSync('/etc/passwd', join(top, 'out'));
    symlinkSync('nowhere', join(top, 'dangling'));
    symlinkSync('.', join(top, 'loop'));
    const odd = [
      'new\nline',
      'quo"te\'s',
      ' space ',
      '-dash',
      'é'.repeat(90),
      '💥',
      '*?[x]',
      'back\\slash',
      `${'long/'.repeat(40)}end`,
    ];
    for (const name of odd) put(name, 'x');
    const { found } = await sent();
    expect(found).toEqual({
      'run.sh': 'run.sh',
      out: '-> /etc/passwd',
      dangling: '-> nowhere',
      loop: '-> .',
      ...Object.fromEntries(odd.map((name) => [name, 'x'])),
    });
    expect(lstatSync(join(dir.path, 'out', 'run.sh')).mode & 0o777).toBe(0o750);
  });

  it('names every folder before its contents, so that it gets the owner of the files', async () => {
    for (const path of ['a/b/c/file', 'a/b/other', 'z']) put(path);
    chmodSync(join(top, 'a', 'b', 'c'), 0o550);
    const { stream } = await packWorkspace(top);
    const tar = join(dir.path, 'tar');
    await pipeline(stream, createWriteStream(tar));
    const listed = spawnSync('tar', ['-tvf', tar], { encoding: 'utf8' }).stdout.trim().split('\n');
    const names = listed.map((line) => line.split(' ').at(-1) ?? '');
    expect([...names].sort()).toEqual(['a', 'a/b', 'a/b/c', 'a/b/c/file', 'a/b/other', 'z']);
    for (const name of names.filter((one) => one.includes('/')))
      expect(names.indexOf(dirname(name))).toBeLessThan(names.indexOf(name));
    expect(listed.find((line) => line.endsWith(' a/b/c'))).toMatch(/^drwxr-x---/);
  });

  it('leaves out, with a warning, anything but files, and names that tar cannot hold', async () => {
    put('a');
    execFileSync('mkfifo', [join(top, 'pipe')]);
    closeSync(openSync(Buffer.concat([Buffer.from(`${top}/`), Buffer.from([0xff, 0x41])]), 'w'));
    const { found, warnings } = await sent();
    expect(Object.keys(found)).toEqual(['a']);
    expect(warnings.sort()).toEqual([
      'Skipped "ÿA" in .: its name is not UTF-8.',
      'Skipped pipe: it is neither a file nor a link.',
    ]);
  });

  it('is an empty tar if it is empty, and an error if it does not exist', async () => {
    expect((await sent()).found).toEqual({});
    await expect(packWorkspace(join(top, 'none'))).rejects.toMatchObject({
      code: 'E_WORKSPACE_READ',
      message: `Cannot send the workspace ${join(top, 'none')}: there is no such folder.`,
    });
    put('file');
    await expect(packWorkspace(join(top, 'file'))).rejects.toMatchObject({
      code: 'E_WORKSPACE_READ',
      message: `Cannot send the workspace ${join(top, 'file')}: it is not a folder.`,
    });
  });

  it('over the limit is refused before anything is sent, naming the largest files', async () => {
    put('small');
    put('data/model.bin', '');
    truncateSync(join(top, 'data/model.bin'), 3 * 2 ** 30);
    await expect(packWorkspace(top)).rejects.toMatchObject({
      code: 'E_WORKSPACE_TOO_LARGE',
      message: expect.stringMatching(/3 GiB in 2 files, but at most 2 GiB can be sent\. Largest: data\/model\.bin \(3 GiB\)/),
      hint: expect.stringContaining('.onejobignore'),
    });
  });
});

describe('a folder that changes while it is read', () => {
  const large = Buffer.alloc(2 * 2 ** 20, 'L');

  it('still gives a valid tar', async () => {
    for (const name of ['a-vanishes', 'b-shrinks', 'c-grows', 'd-stays', 'e-becomes-link']) put(name, large);
    const warnings: string[] = [];
    const { stream } = await packWorkspace(top, { warn: (line) => warnings.push(line) });
    // Nothing is read before it is asked for.
    rmSync(join(top, 'a-vanishes'));
    rmSync(join(top, 'e-becomes-link'));
    symlinkSync('/etc/passwd', join(top, 'e-becomes-link'));
    const parts: Buffer[] = [];
    let seen = 0;
    for await (const part of stream) {
      parts.push(part);
      seen += part.length;
      if (seen > 300_000) truncateSync(join(top, 'b-shrinks'), 1_000_000);
      if (seen > large.length + 500_000 && seen < large.length + 1_500_000)
        writeFileSync(join(top, 'c-grows'), 'more', { flag: 'a' });
    }
    const run = spawnSync('tar', ['-tvf', '-'], { input: Buffer.concat(parts), encoding: 'utf8' });
    expect([run.status, run.stderr]).toEqual([0, '']);
    const sizes = run.stdout
      .trim()
      .split('\n')
      .map((line) => [line.split(/\s+/)[5], Number(line.split(/\s+/)[2])]);
    expect(sizes).toEqual([
      ['b-shrinks', large.length],
      ['c-grows', large.length],
      ['d-stays', large.length],
      ['e-becomes-link', 0],
    ]);
    expect(warnings).toEqual([
      'Skipped a-vanishes: it disappeared while the workspace was sent.',
      expect.stringMatching(/^b-shrinks shrank while it was sent/),
      expect.stringMatching(/^c-grows grew while it was sent/),
    ]);
  });

  it('leaves nothing open when sending is aborted', async () => {
    put('big', large);
    const { stream } = await packWorkspace(top);
    for await (const _ of stream) {
      expect(openAt(top)).toHaveLength(1);
      break;
    }
    expect(stream.destroyed).toBe(true);
    await expect.poll(() => openAt(top)).toEqual([]);
  });
});

describe('a git work tree', () => {
  it('is what git tracks and does not ignore, as it is on disk', async () => {
    git('init', '-q');
    put('.gitignore', 'ignored/\n*.tmp\n');
    for (const path of ['tracked', 'changed', 'deleted', 'ignored/x', 'x.tmp', 'forced.tmp', 'folder/é "q"']) put(path);
    git('add', '.');
    git('add', '-f', 'forced.tmp');
    git('commit', '-qm', 'x');
    put('changed', 'new content');
    put('untracked');
    put('.onejobignore', 'tracked\n');
    rmSync(join(top, 'deleted'));
    const { found } = await sent();
    expect(Object.keys(found).sort()).toEqual(
      ['.gitignore', '.onejobignore', 'changed', 'folder/é "q"', 'forced.tmp', 'tracked', 'untracked'].sort(),
    );
    expect(found.changed).toBe('new content');
    expect(Object.keys((await sent(join(top, 'folder'))).found)).toEqual(['é "q"']);
  });

  it('brings submodules and nested repositories as plain files', async () => {
    git('init', '-q', 'lib');
    put('lib/code');
    put('lib/.gitignore', 'junk\n');
    execFileSync('git', ['-C', join(top, 'lib'), 'add', '.']);
    execFileSync('git', ['-C', join(top, 'lib'), '-c', 'user.name=t', '-c', 'user.email=t@t', 'commit', '-qm', 'x']);
    git('init', '-q', 'main');
    top = join(top, 'main');
    put('own');
    git('submodule', '--quiet', 'add', '../lib', 'vendor/lib');
    git('init', '-q', 'nested');
    put('nested/file');
    put('vendor/lib/junk');
    put('vendor/lib/fresh');
    const { found } = await sent();
    expect(Object.keys(found).sort()).toEqual(
      ['.gitmodules', 'own', 'vendor/lib/.gitignore', 'vendor/lib/code', 'vendor/lib/fresh', 'nested/file'].sort(),
    );
  });

  it('sends nothing behind a link that replaced a tracked folder', async () => {
    git('init', '-q');
    put('etc/passwd', 'ours');
    put('file/below');
    git('add', '.');
    rmSync(join(top, 'etc'), { recursive: true });
    rmSync(join(top, 'file'), { recursive: true });
    symlinkSync('/etc', join(top, 'etc'));
    put('file', 'now a file');
    expect((await sent()).found).toEqual({ etc: '-> /etc', file: 'now a file' });
  });

  it('is a plain folder if its .git is not a repository', async () => {
    put('.git/notes');
    put('a');
    expect(Object.keys((await sent()).found)).toEqual(['a']);
  });

  it.each([
    ['a watcher of files', 'core.fsmonitor', (program: string) => program],
    ['a hook', 'core.hooksPath', (program: string) => dirname(program)],
    ['a helper that fetches what is missing', 'remote.origin.url', (program: string) => `ext::${program}`],
  ])('runs no program that its own config names: %s', async (_, key, value) => {
    // A folder of a clone can be a repository by itself: git tracks such files.
    git('init', '-q');
    for (let at = 0; at < 3; at += 1) put(`folder/${at}/file`);
    git('add', '.');
    git('commit', '-qm', 'x');
    const program = join(dir.path, 'hooks', 'post-index-change');
    mkdirSync(dirname(program));
    writeFileSync(program, `#!/bin/sh\ntouch ${join(dir.path, 'RAN')}\n`, { mode: 0o755 });
    if (key === 'remote.origin.url') {
      // The index names folders only, and the objects that say what is in them are elsewhere.
      git('sparse-checkout', 'set', '--cone', '--sparse-index', 'folder/0');
      for (const [name, set] of [
        ['core.repositoryFormatVersion', '1'],
        ['extensions.partialClone', 'origin'],
        ['protocol.ext.allow', 'always'],
      ] as const)
        git('config', name, set);
      for (const entry of readdirSync(join(top, '.git/objects')))
        if (/^..$/.test(entry)) rmSync(join(top, '.git/objects', entry), { recursive: true });
    }
    git('config', key, value(program));
    await packWorkspace(top).catch((error: unknown) => expect(error).toMatchObject({ code: 'E_WORKSPACE_READ' }));
    expect(existsSync(join(dir.path, 'RAN'))).toBe(false);
  });

  it.each(['../secret', '.git/config', 'x/../../up'])(
    'sends nothing outside of it, and no .git, whatever its index names: %s',
    async (path) => {
      writeFileSync(join(dir.path, 'secret'), 'hush');
      writeFileSync(join(dir.path, 'up'), 'hush');
      git('init', '-q');
      put('x/kept');
      // git itself makes no such name, so another one of the same length is replaced.
      const name = 'n'.repeat(path.length);
      put(name);
      git('add', '.');
      rmSync(join(top, name));
      const index = readFileSync(join(top, '.git/index'), 'latin1');
      expect(index).toContain(name);
      writeFileSync(join(top, '.git/index'), index.replace(name, path), 'latin1');
      const warnings: string[] = [];
      const { stream } = await packWorkspace(top, { warn: (line) => warnings.push(line) });
      const tar = (await buffer(stream)).toString('latin1');
      expect(tar).toContain('x/kept');
      expect(tar).not.toMatch(/hush|repositoryformatversion/);
      expect(warnings).toEqual([expect.stringContaining(JSON.stringify(path))]);
    },
  );

  it('that git cannot read is an error, not a folder sent whole', async () => {
    put('.git', 'gitdir: /nowhere\n');
    put('secret');
    await expect(packWorkspace(top)).rejects.toMatchObject({
      code: 'E_WORKSPACE_READ',
      message: expect.stringContaining('not a git repository'),
    });
  });
});

it('50,000 files take little memory, and the tar is complete', async () => {
  // In memory where there is such a place: making so many files can take a disk half a minute.
  const fast = existsSync('/dev/shm') ? mkdtempSync('/dev/shm/onejob-test-') : null;
  onTestFinished(() => rmSync(fast ?? top, { recursive: true }));
  top = fast ?? top;
  for (let folder = 0; folder < 50; folder += 1) {
    mkdirSync(join(top, `d${folder}`));
    for (let file = 0; file < 1_000; file += 1) writeFileSync(join(top, `d${folder}`, `f${file}`), 'x');
  }
  const { stream, files, bytes } = await packWorkspace(top);
  expect(files).toBe(50_000);
  const before = process.memoryUsage();
  let [seen, most, parts] = [0, 0, 0];
  for await (const part of stream) {
    seen += part.length;
    parts += 1;
    if (parts % 100 === 0) most = Math.max(most, process.memoryUsage.rss() - before.rss);
  }
  expect(seen).toBe(bytes);
  expect(most).toBeLessThan(150 * 2 ** 20);
}, 120_000);

it('is packed the same way for every user', async () => {
  put('a');
  put('b');
  const [one, two] = [await packWorkspace(top), await packWorkspace(top)];
  expect((await buffer(one.stream)).equals(await buffer(two.stream))).toBe(true);
});

it.skipIf(existsSync('/.git') || existsSync('/.onejobignore'))('is never the whole host by accident', async () => {
  await expect(packWorkspace('/')).rejects.toMatchObject({ code: 'E_WORKSPACE_READ', message: expect.stringContaining('whole') });
});

it('does not walk into another file system', async () => {
  const { paths, warnings } = await listWorkspace('/dev');
  expect(paths).toContain('null');
  expect(paths.filter((path) => path.startsWith('pts/'))).toEqual([]);
  expect(warnings).toContain(
    'Skipped pts: another file system is mounted there; "--workspace" or "--volume" can give it to the job.',
  );
});

it('keeps times before 1970 and after 2038', async () => {
  for (const [name, at] of [
    ['past', -86_400],
    ['now', 1_700_000_000],
    ['future', 4_102_444_800],
  ] as const) {
    put(name);
    // Node takes a negative number for now.
    utimesSync(join(top, name), new Date(at * 1000), new Date(at * 1000));
  }
  await sent();
  const times = ['past', 'now', 'future'].map((name) => lstatSync(join(dir.path, 'out', name)).mtimeMs / 1000);
  expect(times).toEqual([-86_400, 1_700_000_000, 4_102_444_800]);
});

it('leaves out a link to a name that is not UTF-8, which would arrive as another', async () => {
  symlinkSync(Buffer.from([0x66, 0xe9]), join(top, 'odd'));
  put('fine');
  const { found, warnings } = await sent();
  expect(found).toEqual({ fine: 'fine' });
  expect(warnings).toEqual(['Skipped odd: it links to "f\u00e9", which is not UTF-8.']);
});

describe.skipIf(lacks('root'))('what this user may not read', () => {
  it('is an error that names the folder', async () => {
    chmodSync(top, 0o700);
    chmodSync(dir.path, 0o711);
    await asNobody(async () => {
      await expect(packWorkspace(top)).rejects.toMatchObject({
        code: 'E_WORKSPACE_READ',
        message: expect.stringMatching(new RegExp(`^Cannot read ${top}/.git for the workspace: EACCES`)),
      });
    });
  });

  it('is left out with a warning if it is something in it', async () => {
    put('closed/x');
    put('open');
    chmodSync(join(top, 'closed'), 0o744);
    chmodSync(dir.path, 0o711);
    const warnings: string[] = [];
    await asNobody(async () => {
      const { stream, files } = await packWorkspace(top, { warn: (line) => warnings.push(line) });
      stream.destroy();
      expect(files).toBe(1);
    });
    expect(warnings).toEqual(['Skipped closed/x: EACCES.']);
  });
});

it('a file that the disk cannot read is an error that names it', async () => {
  // A process can open its own memory, and fails to read its first page with EIO.
  const { stream } = await packWorkspace(`/proc/self/task/${process.pid}`);
  await expect(buffer(stream)).rejects.toMatchObject({
    code: 'E_WORKSPACE_READ',
    message: expect.stringMatching(/^Cannot read .*\/mem for the workspace: EIO/),
  });
});
