import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { afterAll, describe, expect, it } from 'vitest';
import { failureOf, memory, patient, samplePat } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import type { SecretReference } from '../../schema/secret-reference.ts';
import { createCredential } from './credential.ts';

let files = 0;
const folder = mkdtempSync(join(tmpdir(), 'onejob-credential-'));
afterAll(() => rmSync(folder, { recursive: true }));

function make(token: SecretReference, url = 'https://dev.azure.com/acme', variables: Record<string, string> = {}) {
  const clock = handClock();
  const credential = createCredential({ kind: 'pat', token }, { clock, url, variables });
  return { clock, credential, header: () => credential.header(patient) };
}

function inFile(text: string): SecretReference & { put(text: string): void } {
  const path = join(folder, `${files++}`);
  const put = (content: string) => writeFileSync(path, content, { mode: 0o600 });
  put(text);
  return { kind: 'file', path, expires: null, put };
}

const basic = (token: string) => `Basic ${Buffer.from(`:${token}`).toString('base64')}`;

describe('the token', () => {
  it.each([
    ['as it is', 'secret-token'],
    ['with the newline of an editor', 'secret-token\n'],
    ['with that of another system', '\r\nsecret-token \r\n\r\n'],
    ['broken over two lines', 'secret-\ntoken'],
    ['with a mark in front', '\uFEFFsecret-token'],
  ])('%s', async (_, text) => expect(await make(inFile(text)).header()).toBe(basic('secret-token')));

  it('from a variable, and from the command line', async () => {
    expect(await make({ kind: 'env', variable: 'PAT', expires: null }, undefined, { PAT: 'one-token' }).header()).toBe(
      basic('one-token'),
    );
    expect(await make(memory('two-token')).header()).toBe(basic('two-token'));
  });

  it('is read again when its file changed', async () => {
    const file = inFile('first-token');
    const { header } = make(file);
    expect(await header()).toBe(basic('first-token'));
    file.put('other-token');
    expect(await header()).toBe(basic('other-token'));
  });

  it('is missing', async () => {
    const { header } = make({ kind: 'file', path: join(folder, 'none'), expires: null });
    expect(await failureOf(header())).toMatchObject({ code: 'E_SECRET' });
    expect(await failureOf(make(inFile(' \n ')).header())).toMatchObject({
      code: 'E_SECRET',
      message: expect.stringContaining('only whitespace'),
    });
  });
});

describe('a refused one', () => {
  it('is not shown to the service again for ten minutes', async () => {
    const { clock, credential, header } = make(memory(samplePat));
    await header();
    const error = credential.rejected('401');
    clock.advance(599_999);
    expect(await failureOf(header())).toBe(error);
    clock.advance(1);
    expect(await header()).toBe(basic(samplePat));
  });

  it('is tried at once when it is another one', async () => {
    const file = inFile(samplePat);
    const { credential, header } = make(file);
    await header();
    credential.rejected('401');
    await failureOf(header());
    file.put('another-token');
    expect(await header()).toBe(basic('another-token'));
  });

  it('is not mistaken for the one that has taken its place', async () => {
    const file = inFile(samplePat);
    const { credential, header } = make(file);
    const before = await header();
    file.put('another-token');
    const after = await header();
    credential.rejected('401', before);
    expect(await header()).toBe(after);
    credential.rejected('401', after);
    credential.accepted(before);
    await failureOf(header());
  });

  it('is free again once the service takes it', async () => {
    const { credential, header } = make(memory(samplePat));
    await header();
    credential.rejected('401');
    credential.accepted();
    expect(await header()).toBe(basic(samplePat));
  });

  it('says what to do', async () => {
    const file = { ...inFile(samplePat), expires: Date.UTC(2029, 5, 1) };
    const { credential, header } = make(file);
    await header();
    expect(credential.rejected('203 with a sign-in page')).toMatchObject({
      code: 'E_CI_CREDENTIAL',
      retry: false,
      message: `Cannot sign in to https://dev.azure.com/acme: it does not accept the token from file ${'path' in file ? file.path : ''} (203 with a sign-in page); according to the config it expired on 2029-06-01.`,
      hint: expect.stringMatching(
        /Agent Pools \(Read & manage\)\. Put it into file .*; onejob reads it again automatically\. .*90 days/,
      ),
    });
  });
});

it('what must not be shown: the token, and what it travels as; old ones, too', async () => {
  const file = inFile(samplePat);
  const { credential, header } = make(file);
  expect(credential.redact()).toEqual([]);
  const first = await header();
  file.put('another-token');
  await header();
  const hidden = credential.redact();
  expect(hidden).toEqual(expect.arrayContaining([samplePat, first.replace('Basic ', ''), 'another-token']));
  const shown = inspect([credential, credential.rejected(`401: ${samplePat} ${first}`)], { depth: 10 });
  for (const secret of hidden) expect(shown).not.toContain(secret);
});

it('no credential is made for an address that holds a password', () => {
  expect(() => make(memory('x'), 'https://a:hunter2@dev.azure.com/acme')).toThrow(expect.objectContaining({ code: 'E_CONFIG' }));
});
