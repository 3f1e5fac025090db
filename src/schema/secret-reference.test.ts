import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterAll, describe, expect, it } from 'vitest';
import { checkSecret, describeSecret, howToReplace, readSecret, type SecretReference } from './secret-reference.ts';

const folder = mkdtempSync(join(tmpdir(), 'onejob-secret-'));
afterAll(() => rmSync(folder, { recursive: true }));

function file(name: string, content: string, mode = 0o600): SecretReference {
  const path = join(folder, name);
  writeFileSync(path, content);
  chmodSync(path, mode);
  return { kind: 'file', path, expires: null };
}
const memory = (value: string): SecretReference => ({
  kind: 'memory',
  name: 'the command line',
  expires: null,
  read: () => value,
});
const variable: SecretReference = { kind: 'env', variable: 'X_TOKEN', expires: null };

describe('a file with a variable instead of its value', () => {
  it.each(['GITHUB_TOKEN=abc\n', 'export AZP_TOKEN="abc"\n', '# for CI\nBUILDKITE_AGENT_TOKEN = abc', 'password=abc\r\n'])(
    'is named, and its value is not: %j',
    async (content) => {
      const reference = file('named', content);
      const why = expect.stringMatching(/contains a variable \(\w+=…\).*only/);
      expect((await checkSecret(reference, 0)).problem).toEqual(why);
      await expect(readSecret(reference)).rejects.toMatchObject({ code: 'E_SECRET', message: why });
      expect((await checkSecret(reference, 0)).problem).not.toContain('abc');
    },
  );

  it.each([
    'ghp_abc',
    'TOKEN==',
    'c2VjcmV0X3Rva2VuPQ==',
    'a=b',
    'https://h.example/?token=abc',
    '-----BEGIN PRIVATE KEY-----\nkey=1\n',
  ])('and %j is a value', async (content) => expect((await checkSecret(file('value', content), 0)).problem).toBeNull());
});

describe('reading', () => {
  it('the newline that ends the file is not part of the secret; others are', async () => {
    expect(await readSecret(file('a', 'hunter2\n'))).toBe('hunter2');
    expect(await readSecret(file('b', 'hunter2\r\n'))).toBe('hunter2');
    expect(await readSecret(file('c', 'line\nline\n\n'))).toBe('line\nline\n');
    expect(await readSecret(variable, { X_TOKEN: 'hunter2' })).toBe('hunter2');
  });

  it.each([
    ['missing', { kind: 'file', path: join(folder, 'none'), expires: null }, 'does not exist'],
    ['a folder', { kind: 'file', path: folder, expires: null }, 'is not a file'],
    ['empty', file('empty', ''), 'is empty'],
    ['only a newline', file('line', '\n'), 'contains only an empty line'],
    ['too large', file('large', 'x'.repeat(70_000)), 'is larger than 64 KiB'],
    ['empty on the command line', memory(''), 'on the command line is empty'],
    ['a variable that is not set', variable, 'X_TOKEN is missing: the variable is not set'],
  ] as const)('%s', async (_name, reference, why) => {
    await expect(readSecret(reference, {})).rejects.toMatchObject({ code: 'E_SECRET', message: expect.stringContaining(why) });
  });
});

describe('checking', () => {
  const now = Date.UTC(2030, 0, 10);
  const until = (day: number): SecretReference => ({ ...variable, expires: Date.UTC(2030, 0, day) + 86_399_999 });
  const set = { X_TOKEN: 'hunter2' };

  it('a file for the owner only is fine; a group may have it', async () => {
    expect(await checkSecret(file('own', 'x'), now)).toEqual({ problem: null, isAway: false, warnings: [] });
    expect(await checkSecret(file('group', 'x', 0o640), now)).toEqual({ problem: null, isAway: false, warnings: [] });
  });

  it('a file for everybody is a warning', async () => {
    const { problem, warnings } = await checkSecret(file('open', 'x', 0o604), now);
    expect([problem, warnings]).toEqual([null, [{ state: 'open', text: expect.stringContaining('(mode 604); run "chmod 600') }]]);
  });

  it('days are counted', async () => {
    expect((await checkSecret(until(30), now, set)).warnings).toEqual([]);
    expect((await checkSecret(until(11), now, set)).warnings).toMatchObject([
      { state: 'expires', text: expect.stringContaining('expires on 2030-01-11, in a day') },
    ]);
    expect((await checkSecret(until(10), now, set)).warnings).toMatchObject([
      { state: 'expires', text: expect.stringContaining('expires on 2030-01-10, today') },
    ]);
    expect((await checkSecret(until(9), now, set)).warnings).toMatchObject([
      { state: 'expired', text: expect.stringContaining('expired on 2030-01-09') },
    ]);
  });

  it('a variable that is not set is a problem', async () => {
    expect((await checkSecret(variable, now, {})).problem).toBe('environment variable X_TOKEN is not set');
  });
});

it('is shown as a reference', () => {
  expect(describeSecret(variable)).toBe('environment variable X_TOKEN');
  expect(describeSecret({ kind: 'file', path: '/p', expires: Date.UTC(2030, 0, 31) + 86_399_999 })).toBe(
    'file /p, expires 2030-01-31',
  );
});

describe('what stands in no file', () => {
  it('is read from memory', async () => {
    expect(await readSecret(memory('hunter2'))).toBe('hunter2');
    expect(await checkSecret(memory('hunter2'), 0)).toEqual({ problem: null, isAway: false, warnings: [] });
    expect((await checkSecret(memory(''), 0)).problem).toBe('the command line has an empty one');
  });

  it('is never written down', () => {
    const reference = memory('hunter2');
    expect([JSON.stringify(reference), inspect(reference), describeSecret(reference)].join()).not.toContain('hunter2');
    expect(describeSecret(reference)).toBe('the command line');
  });
});

it('says how to bring another value', () => {
  expect(howToReplace(variable)).toBe('Set environment variable X_TOKEN to it and restart onejob');
  expect(howToReplace({ kind: 'file', path: '/p', expires: null })).toBe(
    'Put it into file /p; onejob reads it again automatically',
  );
  expect(howToReplace(memory('x'))).toBe('Restart onejob with it');
});
