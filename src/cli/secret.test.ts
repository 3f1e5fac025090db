/** `onejob secret keygen`, `encrypt`, `decrypt` and `rotate` as a person types them; they need no daemon. */
import { existsSync, lstatSync, mkdirSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { runCli } from '../cli.ts';

let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

const at = (name: string) => join(dir.path, name);
interface Said {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** `input`: all of standard input, which is a pipe. */
async function secret(input: string | Buffer, ...args: string[]): Promise<Said> {
  const stdin = new PassThrough();
  stdin.end(input);
  const { context, stdout, stderr } = testContext(['secret', ...args], dir.path, { stdin: () => stdin });
  const code = await runCli(context);
  return { code, stdout: stdout(), stderr: stderr() };
}
/** What goes well, on standard output. */
async function out(input: string, ...args: string[]): Promise<string> {
  const said = await secret(input, ...args);
  expect([said.code, said.stderr.includes('Error')], said.stderr).toEqual([0, false]);
  return said.stdout;
}
const encrypt = (input: string, ...more: string[]) =>
  out(input, 'encrypt', '--key', 'k', '--name', 'TOKEN', '--pipeline', 'acme/solver', ...more);

describe('keygen', () => {
  test('writes a file for its user only and prints the public half', async () => {
    const { code, stdout, stderr } = await secret('', 'keygen', 'k');
    expect([code, statSync(at('k')).mode & 0o777]).toEqual([0, 0o600]);
    expect(stdout).toMatch(/^age1[a-z0-9]{58}\n$/);
    expect(stderr).toMatch(/^onejob: wrote private key [0-9a-f]{8} to \S+\/k; its public key is on standard output\n$/);
    expect(stdout + stderr).not.toContain('SECRET-KEY');
    expect(readFileSync(at('k'), 'utf8')).toMatch(
      /^# onejob secret key, made .*\n# public key: age1.*\nAGE-SECRET-KEY-1[A-Z0-9]+\n$/,
    );
  });

  test('warns of a key in a repository, which could be committed', async () => {
    mkdirSync(at('repo/.git'), { recursive: true });
    mkdirSync(at('repo/deep'));
    const { code, stderr } = await secret('', 'keygen', 'repo/deep/k');
    expect([code, stderr]).toEqual([0, expect.stringMatching(/deep\/k is in the git repository \S+\/repo: move it out of there/)]);
  });

  test('overwrites a file only with --force', async () => {
    await out('', 'keygen', 'k');
    const before = readFileSync(at('k'), 'utf8');
    const { code, stderr } = await secret('', 'keygen', 'k');
    expect([code, readFileSync(at('k'), 'utf8')]).toEqual([1, before]);
    expect(stderr).toContain('with --add, name another file, or overwrite it with --force');
    await out('', 'keygen', 'k', '--force');
    expect(readFileSync(at('k'), 'utf8')).not.toContain(before.split('\n')[2]);
    expect(await secret('', 'keygen', 'k', '--force', '--add')).toMatchObject({ code: 2 });
  });

  test('adds a key in front of the others, which still decrypt', async () => {
    await out('', 'keygen', 'k', '--rsa');
    const old = await out('hunter2', 'encrypt', '--key', 'k', '--name', 'TOKEN', '--seed-format');
    await out('', 'keygen', 'k', '--add');
    const sealed = await encrypt('hunter3');
    expect([await out(old, 'decrypt', '--key', 'k'), await out(sealed, 'decrypt', '--key', 'k')]).toEqual(['hunter2', 'hunter3']);
    expect(statSync(at('k')).mode & 0o777).toBe(0o600);
  });

  test('neither adds to a file without keys nor writes into a missing folder', async () => {
    writeFileSync(at('k'), 'hunter2\n');
    const bad = await secret('', 'keygen', 'k', '--add');
    expect([bad.code, readFileSync(at('k'), 'utf8')]).toEqual([1, 'hunter2\n']);
    expect(bad.stderr).not.toContain('hunter2');
    expect((await secret('', 'keygen', 'none/k')).stderr).toContain('no such file or directory');
    expect(existsSync(at('none'))).toBe(false);
  });

  test('keeps a link to the file', async () => {
    await out('', 'keygen', 'k');
    symlinkSync('k', at('link'));
    await out('', 'keygen', 'link', '--add');
    expect(lstatSync(at('link')).isSymbolicLink()).toBe(true);
    expect(readFileSync(at('k'), 'utf8').match(/^AGE-SECRET-KEY-1/gm)).toHaveLength(2);
  });

  test('--json has everything except the key', async () => {
    const said = JSON.parse(await out('', 'keygen', 'k', '--rsa', '--json'));
    expect(said).toEqual({
      file: at('k'),
      id: expect.stringMatching(/^[0-9a-f]{8}$/),
      kind: 'rsa',
      publicKey: expect.stringContaining('BEGIN PUBLIC KEY'),
    });
  });
});

describe('encrypt and decrypt', () => {
  beforeEach(async () => {
    writeFileSync(at('k.pub'), await out('', 'keygen', 'k'));
  });

  test('the value comes back exactly; only one newline at the end of a pipe is dropped', async () => {
    for (const [given, back] of [
      ['hunter2\n', 'hunter2'],
      ['a\nb\n\n', 'a\nb\n'],
      [' x \r\n', ' x '],
      ['Grüße\n', 'Grüße'],
    ] as const) {
      expect(await out(await encrypt(given), 'decrypt', '--key', 'k')).toBe(back);
    }
    expect(await out(await encrypt('key\n', '--keep-newline'), 'decrypt', '--key', 'k')).toBe('key\n');
  });

  test('prints only the encrypted value into a pipe, and pipeline lines or JSON on request', async () => {
    expect(await encrypt('hunter2')).toMatch(/^oj1:[0-9a-f]{8}:[A-Za-z0-9_-]+\n$/);
    const yaml = await encrypt('hunter2', '--yaml');
    expect(yaml).toMatch(/^env:\n {2}SECRET_TOKEN: "oj1:\S+"\n$/);
    expect(await secret(yaml, 'decrypt', '--key', 'k')).toEqual({
      code: 0,
      stdout: 'hunter2',
      stderr: 'onejob: this is TOKEN for acme/solver\n',
    });
    const json = JSON.parse(await encrypt('hunter2', '--json'));
    expect(json).toMatchObject({ variable: 'SECRET_TOKEN', format: 'sealed', pipelines: ['acme/solver'] });
    expect(JSON.parse(await out(json.value, 'decrypt', '--key', 'k', '--json'))).toEqual({
      value: 'hunter2',
      format: 'sealed',
      name: 'TOKEN',
      pipelines: ['acme/solver'],
    });
  });

  test('the key may be a file or the key itself; pipelines may be several, by organisation', async () => {
    const key = readFileSync(at('k.pub'), 'utf8').trim();
    const flags = [
      '--organization',
      'acme',
      '--organisation',
      'lab',
      '--pipeline',
      'a',
      '--pipeline',
      '*',
      '--pipeline',
      'other/b',
    ];
    const sealed = await out('hunter2', 'encrypt', '--key', key, '--name', 'TOKEN', ...flags);
    expect((await secret(sealed, 'decrypt', '--key', 'k')).stderr).toBe(
      'onejob: this is TOKEN for acme/a, lab/a, acme/*, lab/* and other/b\n',
    );
    await out('hunter2', 'encrypt', '--key', 'k.pub', '--name', 'TOKEN', ...flags);
  });

  test('--seed-format writes what the scripts read', async () => {
    await out('', 'keygen', 'r', '--rsa');
    const old = await out('hunter2\n', 'encrypt', '--key', 'r', '--name', 'TOKEN', '--seed-format');
    expect(old).toMatch(/^[A-Za-z0-9+/]{342}==;U2FsdGVkX1[A-Za-z0-9+/]+=*\n$/);
    expect(await secret(`"${old.trim()}"\n`, 'decrypt', '--key', 'r')).toEqual({ code: 0, stdout: 'hunter2', stderr: '' });
  });

  const base = ['encrypt', '--key', 'k', '--name', 'TOKEN'];
  test.each([
    ['no pipeline', base, 2, '--pipeline is missing: it says which pipeline the value is for.'],
    ['a pipeline without organisation', [...base, '--pipeline', 'solver'], 2, '--pipeline has no organisation.'],
    ['an organisation alone', [...base, '--organization', 'acme'], 2, "use --pipeline '*' for all of them"],
    ['a title instead of a slug', [...base, '--pipeline', 'Acme/My Solver'], 2, 'slugs are in lower case'],
    [
      'a name with SECRET_',
      ['encrypt', '--key', 'k', '--name', 'SECRET_X', '--pipeline', 'a/b'],
      2,
      'Give the name that the job sees',
    ],
    ['no name', ['encrypt', '--key', 'k', '--name', 'a b', '--pipeline', 'a/b'], 2, '--name is not a valid variable name'],
    ['the wrong kind of key', [...base, '--seed-format'], 1, 'the old format needs one'],
    ['a pipeline that would mean nothing', [...base, '--seed-format', '--pipeline', 'a/b'], 2, 'The old format cannot say'],
    ['no key file', ['encrypt', '--key', 'none', '--name', 'X', '--pipeline', 'a/b'], 1, 'there is no such file'],
    ['the value as an argument', [...base, '--pipeline', 'a/b', 'hunter2'], 2, 'give it on standard input'],
  ])('%s is refused, and no value is in what is said', async (_name, args, code, text) => {
    const said = await secret('hunter2', ...args);
    expect(said).toMatchObject({ code, stdout: '', stderr: expect.stringContaining(text) });
    expect(said.stderr).not.toContain('hunter2');
  });

  test('a private key as an argument is refused without being repeated', async () => {
    const key = readFileSync(at('k'), 'utf8').trim().split('\n').at(-1) ?? '';
    const said = await secret('hunter2', 'encrypt', '--key', key, '--name', 'X', '--pipeline', 'a/b');
    expect(said).toMatchObject({ code: 2, stderr: expect.stringContaining('A private key was given for --key') });
    expect(said.stderr).not.toContain(key.slice(0, 30));
  });

  test.each([
    ['a NUL byte', Buffer.from('a\0b'), 1, 'NUL byte'],
    ['what is not text', Buffer.from([0xff, 0xfe, 1]), 1, 'not UTF-8 text'],
    ['nothing', '', 2, 'Standard input has no value'],
    ['only a newline', '\n', 2, 'Standard input has no value'],
    ['too much', 'x'.repeat(70_000), 1, 'the maximum is 65536'],
  ])('%s is not encrypted', async (_name, value, code, text) => {
    const said = await secret(value, ...base, '--pipeline', 'a/b');
    expect(said).toMatchObject({ code, stdout: '', stderr: expect.stringContaining(text) });
  });

  test('names its keys when it cannot decrypt a value', async () => {
    const sealed = await encrypt('hunter2');
    await out('', 'keygen', 'other');
    const said = await secret(sealed, 'decrypt', '--key', 'other');
    expect(said).toMatchObject({
      code: 1,
      stdout: '',
      stderr: expect.stringMatching(/The value was made for key \w{8}, and this host has \w{8}\.\n.*The keys here are/),
    });
    const two = `${await encrypt('a', '--yaml')}${await encrypt('b', '--yaml')}`;
    expect((await secret(two, 'decrypt', '--key', 'k')).stderr).toContain('There are 2 encrypted values');
    expect((await secret('hunter2', 'decrypt', '--key', 'k')).stderr).not.toContain('hunter2');
    expect((await secret(sealed, 'decrypt', '--key', 'k.pub')).stderr).toContain('line 1: is a public key');
    const missing = (await secret(sealed, 'decrypt', '--key', 'missing')).stderr;
    expect(missing).toMatch(/^onejob: The key file \S+missing does not exist\.\n.*Put the private key into \S+missing, /);
  });
});

describe('on a terminal', () => {
  async function typed(text: string, ...args: string[]): Promise<Said & { readonly shown: string }> {
    const stdin = Object.assign(new PassThrough(), { isTTY: true });
    const { context, stdout, stderr, says } = testContext(['secret', ...args], dir.path, { stdin: () => stdin });
    Object.assign(context.stdout, { isTTY: true, columns: 200 });
    const done = runCli(context);
    await Promise.race([says(/Value of|Encrypted value/), done]);
    stdin.write(text);
    const code = await done;
    return { code, stdout: stdout(), stderr: stderr(), shown: stdout() + stderr() };
  }
  beforeEach(() => out('', 'keygen', 'k'));
  const args = ['encrypt', '--key', 'k', '--name', 'TOKEN', '--pipeline', 'acme/solver'];

  test('asks for the value without showing it, and prints the lines for the pipeline', async () => {
    const { code, stdout, stderr, shown } = await typed(' hunter2 \r', ...args);
    expect(code, stderr).toBe(0);
    expect(stderr).toContain('Value of TOKEN (not shown): ');
    expect(stdout).toMatch(/^env:\n {2}SECRET_TOKEN: "oj1:\S+"\n$/);
    expect(shown).not.toContain('hunter');
    expect(await out(stdout, 'decrypt', '--key', 'k')).toBe(' hunter2 ');
    const back = await typed(`${stdout.split('"')[1]}\r`, 'decrypt', '--key', 'k');
    expect([back.code, back.stdout]).toEqual([0, ' hunter2 \n']);
  });

  test('refuses several lines, of which only the first would be used', async () => {
    for (const text of ['hunter2\rhunter3\r', 'hunter2\rhunter3']) {
      const { code, stderr, shown } = await typed(text, ...args);
      expect([code, stderr]).toEqual([2, expect.stringContaining('Only one line can be typed here')]);
      expect(shown).not.toContain('hunter');
    }
  });

  test('encrypts nothing when the person leaves', async () => {
    expect(await typed('\u0003', ...args)).toMatchObject({
      code: 2,
      stdout: '',
      stderr: expect.stringContaining('Nothing was typed'),
    });
    expect(await typed('\r', ...args)).toMatchObject({ code: 2, stdout: '' });
  });

  test('rotate asks for its text', async () => {
    expect((await typed('', 'rotate', '--key', 'k', '--to', 'k')).stderr).toContain('<pipeline.yml >new.yml');
  });
});

describe('rotate', () => {
  test('re-encrypts each value of a pipeline and keeps every other byte', async () => {
    await out('', 'keygen', 'old', '--rsa');
    await out('', 'keygen', 'k');
    const old = (await out('hunter2', 'encrypt', '--key', 'old', '--name', 'A', '--seed-format')).trim();
    const sealed = (await encrypt('hunter3')).trim();
    writeFileSync(at('both'), readFileSync(at('old'), 'utf8') + readFileSync(at('k'), 'utf8'));
    const to = (await out('', 'keygen', 'new')).trim();
    const before = Buffer.concat([
      Buffer.from(`# Gr\u00fc\u00dfe\r\nenv:\n  SECRET_A: "${old}"\n\n\tSECRET_TOKEN: ${sealed} # \u{1f680}\n`),
      Buffer.from([0xff, 10]),
    ]);
    const said = await secret(before, 'rotate', '--key', 'both', '--to', to, '--pipeline', 'acme/docs');
    expect(said).toMatchObject({ code: 0, stderr: 'onejob: 2 values re-encrypted, 0 left unchanged\n' });
    const [one = '', two = ''] = said.stdout.match(/oj1:[\w:-]+/g) ?? [];
    // What is not UTF-8 is not shown as it is by the test's own text; the rest is.
    expect(said.stdout.replace(one, () => old).replace(two, () => sealed)).toBe(before.toString('utf8'));
    expect((await secret(one, 'decrypt', '--key', 'new')).stderr).toContain('this is A for acme/docs');
    expect((await secret(two, 'decrypt', '--key', 'new')).stderr).toContain('this is TOKEN for acme/solver');
    const again = await secret(said.stdout, 'rotate', '--key', 'both', '--to', to);
    expect([again.code, again.stdout, again.stderr]).toEqual([
      0,
      said.stdout,
      'onejob: 0 values re-encrypted, 2 already for the new key, 0 left unchanged\n',
    ]);
  });

  test('names unchanged values by line, and exits with 1', async () => {
    await out('', 'keygen', 'k');
    await out('', 'keygen', 'new');
    const text = `env:\n  SECRET_TOKEN: "${(await encrypt('hunter2')).trim().slice(0, -3)}"\n`;
    const said = await secret(text, 'rotate', '--key', 'k', '--to', 'new');
    expect([said.code, said.stdout]).toEqual([1, text]);
    expect(said.stderr).toMatch(
      /^onejob: line 2: SECRET_TOKEN .*; left unchanged\nonejob: 0 values re-encrypted, 1 left unchanged\n$/,
    );
    const json = JSON.parse((await secret(text, 'rotate', '--key', 'k', '--to', 'new', '--json')).stdout);
    expect(json).toMatchObject({ text, replaced: 0, already: 0, left: [{ line: 2, variable: 'SECRET_TOKEN' }] });
  });

  test('names variables that are not encrypted, which would have their job refused', async () => {
    await out('', 'keygen', 'k');
    await out('', 'keygen', 'new');
    const value = (await encrypt('hunter2')).trim();
    const text = [
      'env:',
      `  SECRET_TOKEN: "${value}"`,
      '  SECRET_BAD: hunter4',
      '  "SECRET_WORSE": "!hunter5"',
      '  # SECRET_OLD: a word about it',
      '  SECRET_GIVEN: $OTHER',
      'command: echo SECRET_SAID: x',
      '',
    ].join('\n');
    const said = await secret(text, 'rotate', '--key', 'k', '--to', 'new');
    expect([said.code, said.stderr]).toEqual([
      0,
      [3, 4]
        .map((line) => `onejob: line ${line}: SECRET_${line === 3 ? 'BAD' : 'WORSE'} is not encrypted: a job with it is refused\n`)
        .concat('onejob: 1 value re-encrypted, 0 left unchanged\n')
        .join(''),
    ]);
    const json = JSON.parse((await secret(text, 'rotate', '--key', 'k', '--to', 'new', '--json')).stdout);
    expect(json.notEncrypted).toEqual([
      { line: 3, variable: 'SECRET_BAD' },
      { line: 4, variable: 'SECRET_WORSE' },
    ]);
  });

  test('a value alone needs its name when it has none itself', async () => {
    await out('', 'keygen', 'old', '--rsa');
    const old = await out('hunter2', 'encrypt', '--key', 'old', '--name', 'A', '--seed-format');
    await out('', 'keygen', 'new');
    const rotate = ['rotate', '--key', 'old', '--to', 'new', '--pipeline', 'acme/docs'];
    expect(await secret(old, ...rotate)).toMatchObject({ code: 1, stderr: expect.stringContaining('name it with --name') });
    expect(await out(old, ...rotate, '--name', 'A')).toMatch(/^oj1:\S+\n$/);
    expect(await out(old, 'rotate', '--key', 'old', '--to', 'old', '--seed-format')).toMatch(/^[^;\s]+;[^;\s]+\n$/);
  });
});
