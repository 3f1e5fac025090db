import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { listWorkspace, parseIgnore } from './list.ts';

describe('.onejobignore', () => {
  const cases: [lines: string[], path: string, isDirectory: boolean, ignored: boolean][] = [
    [['*.log'], 'a/b/x.log', false, true],
    [['*.log', '!keep.log'], 'a/keep.log', false, false],
    [['build/'], 'build', true, true],
    [['build/'], 'build', false, false],
    [['/build'], 'a/build', true, false],
    [['a/b'], 'x/a/b', false, false],
    [['**/b'], 'x/a/b', false, true],
    [['a/**'], 'a', true, false],
    [['a/**'], 'a/.b', false, true],
    [['a/**/z'], 'a/z', false, true],
    [['# note', '', '\\#x'], '#x', false, true],
    [['\\!x'], '!x', false, true],
    [['x  '], 'x', false, true],
    [['{a,b}'], 'a', false, false],
    [['{a,b}'], '{a,b}', false, true],
    [['[ab].c'], 'b.c', false, true],
    [['x?z'], 'xyz', false, true],
  ];
  it.each(cases)('%j on %s (directory: %s): %s', (lines, path, isDirectory, ignored) => {
    expect(parseIgnore(lines)(path, isDirectory)).toBe(ignored);
  });

  it('means what .gitignore means', async () => {
    const lines = [
      '*.o',
      '!keep.o',
      '/top',
      'deep/**/x',
      'dir/',
      'a/*',
      '!a/b',
      '**/cache/**',
      '.hidden',
      'sp ace',
      '*.t[mx]p',
      'q/**',
      '!q/keep',
    ];
    const files = [
      'x.o',
      'keep.o',
      'top',
      'sub/top',
      'deep/x',
      'deep/1/2/x',
      'deep/y',
      'dir/in',
      'sub/dir/in',
      'a/b',
      'a/c',
      'a/d/e',
      'cache/f',
      'sub/cache/g/h',
      '.hidden',
      'sub/.hidden',
      'sp ace',
      'u.tmp',
      'u.txp',
      'u.tap',
      'q/keep',
      'q/drop',
      'plain',
    ]; // prettier-ignore
    using dir = scratch();
    for (const file of files) {
      mkdirSync(dirname(join(dir.path, file)), { recursive: true });
      writeFileSync(join(dir.path, file), '');
    }
    writeFileSync(join(dir.path, '.onejobignore'), lines.join('\n'));
    const { paths } = await listWorkspace(dir.path);
    spawnSync('git', ['init', '-q'], { cwd: dir.path });
    const git = spawnSync('git', ['ls-files', '-z', '--others', '--exclude-from=.onejobignore'], {
      cwd: dir.path,
      encoding: 'utf8',
    });
    expect(paths).toEqual(git.stdout.split('\0').filter(Boolean).sort());
  });
});
