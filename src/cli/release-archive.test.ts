import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { checkedArchive, upgradeKey } from './release-archive.ts';
import type { Session } from './session.ts';

let here: Scratch;
let said: string[];
beforeEach(() => {
  here = scratch();
  said = [];
});
afterEach(() => here[Symbol.dispose]());
const at = (name: string) => join(here.path, name);
const write = (name: string, text: string) => writeFileSync(at(name), text);

// Written by minisign 0.11.
const key = 'RWTsQuC0HjPu8X1iRf0O6PKScPmoDsZxGzgjgufU1KILRx7Vi02luwwu';
const signature = `untrusted comment: signature from minisign secret key
RUTsQuC0HjPu8UAwG5v8Zh/2tPwXsnqQCpOVuJbEGGqC1JTDOqBb81pp7Ts6Q5Tgra5rVcO7EePr82tr6l0J0vh0z/KmazUpngI=
trusted comment: timestamp:1795875542	file:onejob-1.2.0-linux-x64.tar.gz	hashed
bUPG3fqPAdS33pVwYfm8qW7QyuPeYmmfLKU3VrQenehViQZPk4yeBepYn+Vv/F8c7q75SNy5U1JroDRMpRdgAw==
`;

describe('an archive', () => {
  const name = 'onejob-1.2.0-linux-x64.tar.gz';
  const bytes = 'a release\n';
  const read = (given: string | null) => checkedArchive(at(name), given, (line) => said.push(line)).toString();

  test('is checked by its signature where a key is known', () => {
    write(name, bytes);
    write(`${name}.minisig`, signature);
    expect([read(key), said]).toEqual([bytes, []]);
  });

  test('without a signature is refused where a key is known, also if SHA256SUMS names it', () => {
    write(name, bytes);
    write('SHA256SUMS', `${createHash('sha256').update(bytes).digest('hex')}  ${basename(name)}\n`);
    expect([read(null), said]).toEqual([bytes, []]);
    const refused = { code: 'E_SIGNATURE', message: expect.stringMatching(/it is not signed: cannot read .*\.minisig/) };
    expect(() => read(key)).toThrow(expect.objectContaining(refused));
  });

  test('that was changed, or has the name of another, is refused before SHA256SUMS is asked', () => {
    write(name, 'another release\n');
    write(`${name}.minisig`, signature);
    write('SHA256SUMS', `${createHash('sha256').update('another release\n').digest('hex')}  ${basename(name)}\n`);
    const changed = { code: 'E_SIGNATURE', message: expect.stringContaining('its bytes are not those that were signed') };
    expect(() => read(key)).toThrow(expect.objectContaining(changed));
    const newer = 'onejob-9.0.0-linux-x64.tar.gz';
    write(newer, bytes);
    write(`${newer}.minisig`, signature);
    const renamed = { code: 'E_SIGNATURE', message: expect.stringContaining('signed under another name') };
    expect(() => checkedArchive(at(newer), key, () => {})).toThrow(expect.objectContaining(renamed));
  });

  test('needs no signature without a key, and is said not to be checked if nothing names it', () => {
    write(name, bytes);
    expect([read(null), said]).toEqual([bytes, [expect.stringContaining('was not checked')]]);
    write('SHA256SUMS', `${'0'.repeat(64)}  ${name}\n`);
    expect(() => read(null)).toThrow(/is not the archive that SHA256SUMS next to it names/);
  });
});

describe('the key that archives are signed with', () => {
  function known(config?: string, unit = '') {
    const { context } = testContext([], here.path);
    const flags = config === undefined ? {} : { config };
    return upgradeKey({ context, flags } as unknown as Session, { pid: null, unit, environment: '' });
  }
  const unitWith = (config: string) => `[Service]\nExecStart=/opt/onejob/current/bin/onejob up --config ${config} --state-dir /s\n`;

  test('is that of the config that is named, or that the service reads', async () => {
    expect(await known()).toBeNull();
    write('50% of "$x".yml', `upgrade: { key: ${key} }\n`);
    expect(await known('50% of "$x".yml')).toBe(key);
    expect(await known(undefined, unitWith(`"${at('50%% of \\"$$x\\".yml')}"`))).toBe(key);
    write('plain.yml', 'pools: { a: { agents: 1 } }\n');
    expect(await known(undefined, unitWith(at('plain.yml')))).toBeNull();
    expect(await known('50% of "$x".yml', unitWith(at('plain.yml')))).toBe(key);
  });

  test.each([
    ['is not a key', 'upgrade: { key: RWTsQuC0 }\n', 'expected a public key of minisign'],
    ['is misspelt', `upgrade: { keys: ${key} }\n`, 'unknown key'],
    ['may be in a file that is not YAML', 'upgrade: { key: \n', 'The config has'],
    ['may be in a file that is not there', null, 'does not exist'],
  ])('is missed if it %s', async (_what, text, why) => {
    if (text !== null) write('c.yml', text);
    await expect(known('c.yml')).rejects.toMatchObject({ code: 'E_CONFIG', message: expect.stringContaining(why) });
  });

  test('is known whatever else is wrong in the config', async () => {
    write('c.yml', `upgrade: { key: ${key} }\npools: { a: { agents: many } }\n`);
    expect(await known('c.yml')).toBe(key);
  });
});
