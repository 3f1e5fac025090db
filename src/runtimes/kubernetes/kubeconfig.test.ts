import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { accessOf } from './kubeconfig.ts';

const folder = scratch();
afterAll(() => folder[Symbol.dispose]());

let now = 0;
const clock = { now: () => now, wall: () => now };
const anything = { kubeconfig: null, context: null, namespace: null };
const place = (name: string): string => join(folder.path, name);
function write(name: string, content: string): string {
  writeFileSync(place(name), content, { mode: 0o755 });
  return place(name);
}
const base64 = (text: string): string => Buffer.from(text).toString('base64');

/** A kubeconfig whose user has these keys. */
function file(user: string, { cluster = '', context = '' } = {}): string {
  return `
apiVersion: v1
kind: Config
current-context: lab
clusters: [{ name: c, cluster: { server: "https://10.0.0.1:6443"${cluster} } }]
contexts: [{ name: lab, context: { cluster: c, user: u${context} } }, { name: other, context: { cluster: c, user: nobody } }]
users: [{ name: u, user: { ${user} } }]
`;
}
const access = (content: string, more = {}) => accessOf({ ...anything, kubeconfig: write('config', content), ...more }, clock, {});

describe('a kubeconfig', () => {
  test('with certificates in it, or in files next to it', async () => {
    write('ca.crt', 'the authority');
    const data = `client-certificate-data: ${base64('the certificate')}, client-key-data: ${base64('the key')}`;
    const found = await access(file(data, { cluster: ', certificate-authority: ca.crt', context: ', namespace: ci' }));
    expect(found).toMatchObject({
      namespace: 'ci',
      from: place('config'),
      tls: { ca: 'the authority', cert: 'the certificate', key: 'the key' },
    });
    expect([found.server.href, await found.token()]).toEqual(['https://10.0.0.1:6443/', null]);
  });

  test('with a token; the runtime may name another namespace', async () => {
    const found = await access(file('token: secret'), { namespace: 'mine' });
    expect([found.namespace, await found.token()]).toEqual(['mine', 'secret']);
    expect((await access(file('token: secret'))).namespace).toBe('default');
  });

  test('with a file of a token, which is read again after a minute', async () => {
    write('token', 'first\n');
    const found = await access(file('tokenFile: token'));
    expect(await found.token()).toBe('first');
    write('token', 'second\n');
    expect(await found.token()).toBe('first');
    now += 60_000;
    expect(await found.token()).toBe('second');
  });

  test.each([
    ['', 'config has no user "nobody"', { context: 'other' }],
    ['', 'config has no context "none"', { context: 'none' }],
    ['auth-provider: { name: gcp }', 'config has "auth-provider" for user u, which Kubernetes does not know any more', {}],
    ['username: me, password: pw', 'config has "username" for user u', {}],
    ['client-key: gone.key', 'gone.key cannot be read: ENOENT', {}],
  ])('with %j is refused: %s', async (user, said, more) => {
    await expect(access(file(user), more)).rejects.toMatchObject({ code: 'E_CONFIG', message: expect.stringContaining(said) });
  });

  test.each([
    ['a: [', 'is not YAML'],
    ['clusters: 3', 'is not a kubeconfig: clusters'],
    ['{}', 'has no current-context'],
  ])('of %j is refused: %s', async (content, said) => {
    await expect(access(content)).rejects.toMatchObject({ code: 'E_CONFIG', message: expect.stringContaining(said) });
  });

  test('with a server that is not an address is refused', async () => {
    const content = file('token: secret').replace('https://10.0.0.1:6443', 'localhost:6443');
    await expect(access(content)).rejects.toMatchObject({
      code: 'E_CONFIG',
      message: `Cannot use the kubeconfig: ${place('config')} has the server "localhost:6443" for cluster c, which is not an http:// or https:// address.`,
    });
  });

  test('is found by KUBECONFIG: the first that exists', async () => {
    const env = { KUBECONFIG: `${place('none')}:${write('other', file('token: found'))}` };
    expect(await (await accessOf(anything, clock, env)).token()).toBe('found');
    await expect(accessOf(anything, clock, { KUBECONFIG: place('none') })).rejects.toThrow('none does not exist');
  });
});

describe('a program for credentials', () => {
  const withProgram = (script: string) =>
    access(
      file(`exec: { apiVersion: client.authentication.k8s.io/v1, command: ./login, args: [a], env: [{ name: E, value: e }] }`, {
        cluster: '',
      }).replace('./login', write('login', `#!/bin/sh\n${script}\n`)),
    );

  test('gives a token until it ends', async () => {
    now = 0;
    const found = await withProgram(
      `printf '{"status":{"token":"%s","expirationTimestamp":"1970-01-01T00:10:00Z"}}' "$1-$E-$(cat ${place('count')} 2>/dev/null)"`,
    );
    expect(await found.token()).toBe('a-e-');
    write('count', '2');
    now = 8 * 60_000;
    expect(await found.token()).toBe('a-e-');
    now = 9 * 60_000;
    expect(await found.token()).toBe('a-e-2');
  });

  test('runs once for what it gives', async () => {
    const found = await withProgram(`echo run >>${place('runs')}; echo '{"status":{"token":"t","clientCertificateData":"c"}}'`);
    expect([await found.token(), await found.token(), found.tls.cert]).toEqual(['t', 't', 'c']);
    expect(readFileSync(place('runs'), 'utf8')).toBe('run\n');
  });

  test('runs once for all that wait, and again for what the API refused', async () => {
    now = 0;
    const found = await withProgram(
      `echo >>${place('count')}; printf '{"status":{"token":"%s","expirationTimestamp":"1970-01-01T00:10:00Z"}}' "$(wc -l <${place('count')})"`,
    );
    now = 9 * 60_000;
    write('count', '');
    expect(await Promise.all([found.token(), found.token()])).toEqual(['1', '1']);
    now = 0;
    expect([await found.token(), await found.token(true), await found.token()]).toEqual(['1', '2', '2']);
  });

  test('gives a certificate', async () => {
    const found = await withProgram(`echo '{"status":{"clientCertificateData":"cert","clientKeyData":"key"}}'`);
    expect([found.tls, await found.token()]).toEqual([{ cert: 'cert', key: 'key' }, null]);
  });

  test.each([
    ['echo no login >&2; exit 1', 'which failed: Command failed'],
    ['echo hello', 'which printed no credentials'],
  ])('of %j is told', async (script, said) => {
    await expect(withProgram(script)).rejects.toMatchObject({ code: 'E_CONFIG', message: expect.stringContaining(said) });
  });
});
