/** The files of a job: which are sent in, how they arrive, which come back, and that no job writes outside of them. */
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Child } from '../support/child.ts';
import { images } from '../support/images.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const members = [
  { name: 'docker', missing: lacks('docker'), pool: `runtime: docker, image: "${images.base}"` },
  { name: 'bubblewrap', missing: lacks('bubblewrap'), pool: 'runtime: process' },
];

/** A folder of its own for each job, filled by `files`: a path with its text, or a link with its target. */
function folderOf(here: Home, files: Readonly<Record<string, string | { readonly link: string }>>): string {
  const folder = mkdtempSync(join(here.dir, 'work-'));
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(join(folder, path, '..'), { recursive: true });
    if (typeof content === 'string') writeFileSync(join(folder, path), content);
    else symlinkSync(content.link, join(folder, path));
  }
  return folder;
}

function git(folder: string, ...args: string[]): void {
  const done = spawnSync('git', ['-c', 'user.name=t', '-c', 'user.email=t@t', ...args], { cwd: folder, encoding: 'utf8' });
  if (done.status !== 0) throw new Error(`git ${args.join(' ')}: ${done.stderr}`);
}

describe.each(members)('on $name', ({ missing, pool }) => {
  const it = test.skipIf(missing);
  let here: Home;
  const run = (folder: string, ...args: string[]): Child => here.cli(['run', ...args], { cwd: folder });
  const sh = (folder: string, script: string, ...options: string[]): Child => run(folder, ...options, '--', 'sh', '-c', script);

  beforeAll(async () => {
    if (missing) return;
    here = await onejob({ config: `pools: { default: { agents: 2, ${pool}, stop_grace: 200ms } }` });
    await here.up();
  });

  afterAll(() => (missing ? undefined : here.close()));

  it('of a git work tree what git tracks and does not ignore is sent', async () => {
    const folder = folderOf(here, {
      '.gitignore': '*.tmp\nbuild/\n',
      tracked: 'as committed',
      'deep/untracked': 'not added',
      'ignored.tmp': '',
      'build/out': '',
      'forced.tmp': 'added all the same',
    });
    git(folder, 'init', '-q');
    git(folder, 'add', 'tracked', '.gitignore');
    git(folder, 'add', '-f', 'forced.tmp');
    git(folder, 'commit', '-qm', 'x');
    writeFileSync(join(folder, 'tracked'), 'as it is');
    const ended = await sh(folder, 'find . -type f | sort; cat tracked').ended;
    expect(ended.stdout).toBe('./.gitignore\n./deep/untracked\n./forced.tmp\n./tracked\nas it is');
  });

  it('of another folder everything is sent that .onejobignore does not name', async () => {
    const folder = folderOf(here, {
      '.onejobignore': 'data/\n*.log\n!keep.log\n',
      'data/x': '',
      'a.log': '',
      'keep.log': '',
      b: '',
    });
    const ended = await sh(folder, 'find . -type f | sort').ended;
    expect(ended.stdout).toBe('./.onejobignore\n./b\n./keep.log\n');
  });

  it('names, modes and links arrive as they are; a link outward shows the sandbox, not the host', async () => {
    const names = ['new\nline', ' spaces ', '"double"', "it's", '-rf', '\\back', 'ünïcödé', '$(touch pwned)', 'x'.repeat(250)];
    const folder = folderOf(here, {
      ...Object.fromEntries(names.map((name) => [name, name])),
      inward: { link: '-rf' },
      dangling: { link: 'no/such/file' },
      outward: { link: join(here.dir, 'secret') },
      outside: { link: '..' },
      'a/tool': '#!/bin/sh\necho ran',
    });
    writeFileSync(join(here.dir, 'secret'), 'hush');
    chmodSync(join(folder, 'a', 'tool'), 0o755);
    writeFileSync(Buffer.concat([Buffer.from(`${folder}/latin1-`), Buffer.from([0xe9])]), '');
    const script = [
      'find . -type f ! -path "./a/*" -exec cat {} ";" | tr -d "\\n" | wc -c',
      'cat inward; echo; readlink dangling; cat outward 2>/dev/null || echo closed; ls outside/secret 2>/dev/null; a/tool; find . -maxdepth 1 | wc -l',
    ].join('\n');
    const ended = await sh(folder, script).ended;
    const text = names.join('').replaceAll('\n', '');
    // With the folder itself, and a line more for the newline in a name.
    const count = names.length + 1 + 1 + 5;
    expect(ended.stdout.split('\n').map((line) => line.trim())).toEqual(
      [Buffer.byteLength(text), '-rf', 'no/such/file', 'closed', 'ran', count, ''].map(String),
    );
    expect(ended.stderr).toMatch(/^onejob: Skipped .*latin1-.*not UTF-8/m);
  });

  it('a job may write in its workspace, and the folder it was sent from stays as it is', async () => {
    const folder = folderOf(here, { read: 'only', 'sub/file': 'before' });
    chmodSync(join(folder, 'read'), 0o444);
    const ended = await sh(folder, 'set -e; pwd; echo after >sub/file; touch sub/new new; rm -f read; mkdir d; ls').ended;
    expect(ended).toMatchObject({ code: 0, stdout: expect.stringMatching(/^\/workspace\nd\nnew\nsub\n$/) });
    expect(readdirSync(folder).sort()).toEqual(['read', 'sub']);
    expect(readFileSync(join(folder, 'sub', 'file'), 'utf8')).toBe('before');
  });

  it('--no-workspace starts in an empty one, --workspace in another folder', async () => {
    const folder = folderOf(here, { mine: '', 'sub/other': '' });
    expect((await sh(folder, 'pwd; ls -A', '--no-workspace').ended).stdout).toBe('/workspace\n');
    expect((await sh(folder, 'ls -A', '--workspace', 'sub').ended).stdout).toBe('other\n');
    const wrong = await sh(folder, 'true', '--workspace', 'none').ended;
    expect(wrong.code).toBe(125);
    expect(wrong.stderr).toMatch(/Cannot send the workspace .*none/);
  });

  it('artifacts of a hostile job write nothing outside the folder, and what was refused is said', async () => {
    const folder = folderOf(here, { 'there/kept': 'mine', into: { link: here.dir }, 'real/x': '' });
    const script = [
      'mkdir -p out/.git/hooks; cd out; echo good >good; ln -s /etc/passwd absolute; ln -s ../../../escaped climbing; ln -s good inside',
      'echo evil >.git/hooks/post-checkout; chmod 4777 good; mkfifo pipe; ln good hard; cd ..',
      // What was a link to somewhere on the host comes back as a folder with files in it, and the other way round.
      'rm into; mkdir into; echo through >into/through; rm -r there; ln -s real there; touch "out/a..b" "out/..c"',
    ].join('\n');
    const ended = await sh(folder, script, '--artifact', 'out/**', '--artifact', 'into/**', '--artifact', 'there').ended;
    expect(ended.code, ended.stderr).toBe(0);
    const said = ended.stderr;
    for (const refused of ['out/absolute', 'out/climbing', 'out/.git/hooks/post-checkout', 'into/through', 'there'])
      expect(said).toContain(`did not bring back ${refused}`);
    expect(readFileSync(join(folder, 'out', 'good'), 'utf8')).toBe('good\n');
    expect(lstatSync(join(folder, 'out', 'good')).mode & 0o7000).toBe(0);
    expect(readlinkSync(join(folder, 'out', 'inside'))).toBe('good');
    expect(readdirSync(join(folder, 'out')).sort()).toEqual(['..c', 'a..b', 'good', 'hard', 'inside']);
    expect(existsSync(join(here.dir, 'through'))).toBe(false);
    expect(readFileSync(join(folder, 'there', 'kept'), 'utf8')).toBe('mine');
    expect(said).toContain('out/pipe');
  });

  it('artifacts that the job did not make are said, and change nothing else', async () => {
    const folder = folderOf(here, {});
    const none = await sh(folder, 'exit 3', '--artifact', 'dist/**').ended;
    expect(none.code).toBe(3);
    expect(none.stderr).toMatch(/^onejob: No file matched .*dist\/\*\*/m);
    const some = await sh(folder, 'echo x >made', '--artifact', 'made', '--artifact', 'not-made').ended;
    expect(some.code).toBe(0);
    expect(readFileSync(join(folder, 'made'), 'utf8')).toBe('x\n');
    expect(some.stderr).toMatch(/^onejob: No file matched .*not-made/m);
    const outside = await sh(folder, 'true', '--artifact', '../x', '--artifact', '/etc/hostname').ended;
    expect(outside.code).toBe(2);
    expect(outside.stderr).toContain('../x');
    expect(readdirSync(folder)).toEqual(['made']);
  });

  it('two jobs with the same artifacts keep them apart', async () => {
    const [one, two] = [folderOf(here, {}), folderOf(here, {})];
    const script = (text: string): string => `echo ${text} >result; mkdir -p deep; echo ${text} >deep/result`;
    const runs = [sh(one, script('one'), '--artifact', '**/result'), sh(two, script('two'), '--artifact', '**/result')];
    for (const each of runs) expect((await each.ended).code).toBe(0);
    expect(readFileSync(join(one, 'deep', 'result'), 'utf8')).toBe('one\n');
    expect(readFileSync(join(two, 'result'), 'utf8')).toBe('two\n');
    // Into the same folder at the same time: each file is one job's, whole.
    const shared = folderOf(here, {});
    const both = [sh(shared, script('one'), '--artifact', '**/result'), sh(shared, script('two'), '--artifact', '**/result')];
    for (const each of both) expect((await each.ended).code).toBe(0);
    expect(readFileSync(join(shared, 'result'), 'utf8')).toMatch(/^(one|two)\n$/);
    expect(readdirSync(shared).sort()).toEqual(['deep', 'result']);
  });
});

test.skipIf(lacks('bubblewrap'))('a workspace over the limit is refused before it is sent, and nothing is left of it', async () => {
  await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
  await here.up();
  const folder = folderOf(here, { 'data/one': '', 'data/two': '', small: '' });
  for (const name of ['one', 'two']) truncateSync(join(folder, 'data', name), 1200 * 2 ** 20);
  const ended = await here.cli(['run', '--', 'true'], { cwd: folder }).ended;
  expect(ended.code).toBe(125);
  expect(ended.stderr).toMatch(/has 2\.3 GiB in 3 files, but at most 2(\.0)? GiB.*data\/(one|two) \(1\.2 GiB\)/);
  expect(ended.stderr).toContain('.onejobignore');
  expect(await here.api.jobs({ all: true, pool: null })).toEqual([]);
  expect(readdirSync(join(here.stateDir, 'workspaces'))).toEqual([]);
});
