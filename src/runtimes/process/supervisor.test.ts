import { execFile, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { quoted } from '../../base/quoted.ts';
import { type SupervisorOptions, supervisorScript } from './supervisor.ts';

const shells = [['dash'], ['bash', '--posix'], ['busybox', 'sh']].filter(
  ([name]) => existsSync(`/usr/bin/${name}`) || existsSync(`/bin/${name}`),
);

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'onejob-supervisor-'));
  mkdirSync(join(folder, 'log'));
  writeFileSync(join(folder, 'exit'), '-----\n');
  writeFileSync(join(folder, 'args'), '');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const options = (command: readonly string[]): SupervisorOptions => ({
  command: ['setsid', ...command],
  cwd: null,
  open: [],
  cores: true,
  uid: null,
  exitFile: join(folder, 'exit'),
  outputLimit: 1024 * 1024,
  ownGroup: null,
  network: null,
  cgroups: [],
  killFile: null,
  beforeCode: [],
  oomScoreAdj: 100,
});
const log = (name: string): string => readFileSync(join(folder, 'log', name), 'latin1');
const exit = (): string => readFileSync(join(folder, 'exit'), 'latin1');

describe.each(shells)('the supervisor in %s', (...shell) => {
  const start = (script: string) => {
    writeFileSync(join(folder, 'run.sh'), script);
    return spawn(shell[0] as string, [...shell.slice(1), './run.sh'], { cwd: folder, stdio: 'ignore', detached: true });
  };
  const run = (changes: Partial<SupervisorOptions>, script: string): Promise<void> => {
    const child = start(supervisorScript({ ...options(['sh', '-c', script]), ...changes }));
    return new Promise((resolve) => child.once('exit', () => resolve()));
  };

  test.each([0, 1, 96, 127, 255])('records exit code %i', async (code) => {
    await run({}, `exit ${code}`);
    expect(exit()).toBe(`${String(code).padEnd(5)}\n`);
  });

  test('reports death by a signal as 128 and its number', async () => {
    await run({}, 'kill -KILL $$');
    expect(exit()).toBe('137  \n');
  });

  test('keeps the two streams separate, and every byte', async () => {
    await run({}, `printf 'a\\000\\377'; printf 'b\\n' >&2; printf 'c'`);
    expect(log('stdout')).toBe('a\0\xffc');
    expect(log('stderr')).toBe('b\n');
    expect(existsSync(join(folder, 'log/stdout.end')) && existsSync(join(folder, 'log/stderr.end'))).toBe(true);
  });

  test('keeps the newest output in files that say where they begin, without slowing the job down', async () => {
    const limit = 1024 * 1024;
    await run({ outputLimit: limit }, 'seq 1 1000000; echo fine >&2; exit 3');
    const whole = Buffer.from(Array.from({ length: 1_000_000 }, (_, i) => `${i + 1}\n`).join(''));
    const starts = readdirSync(join(folder, 'log')).flatMap((name) => (/^stdout\.\d+$/.test(name) ? [Number(name.slice(7))] : []));
    expect(starts.length).toBeGreaterThan(0);
    starts.sort((a, b) => a - b);
    let at = starts[0] ?? 0;
    for (const from of starts) {
      expect(from).toBe(at);
      const bytes = readFileSync(join(folder, `log/stdout.${from}`));
      expect(bytes.equals(whole.subarray(from, from + bytes.length))).toBe(true);
      at += bytes.length;
    }
    expect(at).toBe(whole.length);
    expect(at - (starts[0] ?? 0)).toBeGreaterThan((limit / 4) * 3 - 1);
    expect(at - (starts[0] ?? 0)).toBeLessThan(2 * limit);
    expect(log('stderr')).toBe('fine\n');
    expect(exit()).toBe('3    \n');
  });

  test('lets the job continue if nothing can be written, and keeps its exit code', async () => {
    rmSync(join(folder, 'log'), { recursive: true });
    mkdirSync(join(folder, 'log/stdout'), { recursive: true });
    await run({}, 'head -c 5000000 /dev/zero; exit 4');
    expect(exit()).toBe('4    \n');
  });

  test('ends what the job leaves in its process group, so that it delays nothing', async () => {
    await run({}, 'sleep 600 & echo left; exit 0');
    expect(exit()).toBe('0    \n');
    expect(log('stdout')).toBe('left\n');
  });

  test('writes the exit code while a process of another session still holds the output open', async () => {
    const other = 'setsid sh -c ": >there; until [ -e go ]; do sleep 0.02; done"';
    const job = `${other} & until [ -e there ]; do sleep 0.02; done; exit 5`;
    const child = start(supervisorScript(options(['sh', '-c', job])));
    const over = new Promise((resolve) => child.once('exit', resolve));
    await expect.poll(exit).toBe('5    \n');
    expect(existsSync(join(folder, 'log/stdout.end'))).toBe(false);
    writeFileSync(join(folder, 'go'), '');
    await over;
    expect(existsSync(join(folder, 'log/stdout.end'))).toBe(true);
  });

  test('makes the job more likely to be ended when memory is short, and opens its umask', async () => {
    await run({}, 'cat /proc/self/oom_score_adj; umask');
    expect(log('stdout')).toBe('100\n0022\n');
  });

  test('leaves no descriptor of its own open in the job', async () => {
    await run({ cwd: '/' }, 'for fd in 3 4 5 6; do [ ! -e /proc/$$/fd/$fd ] || echo "$fd is open"; done; pwd');
    expect(log('stdout')).toBe('/\n');
  });
});

test('quoted makes any text one word', async () => {
  for (const word of ["it's", '$HOME `id` "x"', 'a\nb', '', '*', '-n', '\\', '~', 'a=b']) {
    const said = await new Promise((resolve) => execFile('sh', ['-c', `printf %s ${quoted(word)}`], (_error, out) => resolve(out)));
    expect(said).toBe(word);
  }
});
