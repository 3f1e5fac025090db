/** What README, the docs and `--help` show is run here as it stands, as far as this host has what it needs. */
import { readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { buildProgram } from '../../src/cli.ts';
import { commandLines, commandsIn, helpLines } from '../support/command-lines.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { defaultImage, lacks } from '../support/require.ts';

const root = join(import.meta.dirname, '..', '..');
const read = (page: string) => readFileSync(join(root, page), 'utf8');
const shown = (page: string) => commandLines(read(page)).shown.flatMap(commandsIn);

async function helpOf(name: string): Promise<string[][]> {
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() });
  const lines = helpLines(await buildProgram({ stdout: silent, stderr: silent }, () => async () => {}));
  return lines.flatMap(commandsIn).filter(([command]) => command === name);
}

/** Not those of images that may not be here, of files that somebody has, that only a shell completes, or of an agent in the foreground. */
const runnable = (words: readonly string[]) =>
  words[0] === 'run' && !words.includes('--image') && !words.some((word) => word.startsWith('./') || word.includes('$(onejob'));

async function ended(home: Home, words: readonly string[]): Promise<string> {
  const { code, stdout, stderr } = await home.cli(words).ended;
  expect({ words, code, stderr }).toMatchObject({ code: 0 });
  return stdout;
}

describe.skipIf(lacks('docker', 'image'))('with the default image', () => {
  test('every "run" of README and help ends with 0', async () => {
    await using home = await onejob({});
    await home.up();
    writeFileSync(join(home.cwd, 'file.txt'), '');
    const lines = [...shown('README.md'), ...(await helpOf('run'))].filter(runnable);
    expect(lines.length).toBeGreaterThan(4);
    for (const words of lines) await ended(home, words);
    expect(await ended(home, ['run', '--', 'ls', '-l'])).toContain('file.txt');
  });

  test('a job that names no pool runs with the config of README, in the pool that it says', async () => {
    const [, config = ''] = /```yaml\n(.*?)```/s.exec(read('README.md')) ?? [];
    await using home = await onejob({ config: config.replace('/data/sets', '/usr/share') });
    await home.up();
    expect(await ended(home, ['run', '--no-workspace', '--', 'sh', '-c', 'echo $ONEJOB_POOL'])).toBe('build\n');
  });

  test('a command that is not there names the image', async () => {
    await using home = await onejob({});
    const missing = await home.run('--no-workspace', '--', 'onejob-no-such-command').ended;
    expect(missing.code).toBe(127);
    expect(missing.stderr).toContain(`it may be missing from the image ${defaultImage}; --image chooses another`);
    const script = await home.run('--no-workspace', '--', './probe.sh').ended;
    expect(script.stderr).toContain('with --no-workspace the job starts in an empty folder, so there is no ./probe.sh');
  });
});

test('what docs/moving/compose.md shows of the fleet in this repository does what it says', async () => {
  await using home = await onejob({});
  symlinkSync(join(root, 'tools'), join(home.cwd, 'tools'));
  const lines = shown('docs/moving/compose.md').filter((words) => words.some((word) => word.startsWith('tools/')));
  expect(lines.map(([command]) => command)).toEqual(['import', 'plan']);
  for (const words of lines) await ended(home, words);
});
