/**
 * Encrypted values as owners of fleets have them: made by OpenSSL on a command line, as the public fleet's scripts call it, or by
 * `onejob secret encrypt`. And a home whose pools open them.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { expect } from 'vitest';
import { makeKey, parseKeys, publicOf } from '../../src/secrets/keys.ts';
import { type BuildkiteConfig, buildkiteBench } from './buildkite.ts';
import { type Day, theAgent } from './buildkite-days.ts';
import type { Child } from './child.ts';
import { engineAt } from './engine-http.ts';
import { type Home, onejob } from './onejob.ts';

export interface Keys {
  /** The private keys, an RSA one and one of age, mode 600. */
  readonly file: string;
  readonly text: string;
  /** Paths of the public halves. */
  readonly rsa: string;
  readonly age: string;
}

/** A new pair of each kind, the RSA one by OpenSSL. `name` keeps those of one folder apart. */
export async function makeKeys(dir: string, name = 'secrets'): Promise<Keys> {
  const rsa = join(dir, `${name}.rsa.pub`);
  const age = join(dir, `${name}.age.pub`);
  const pem = execFileSync('openssl', ['genrsa', '2048'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  execFileSync('openssl', ['pkey', '-pubout', '-out', rsa], { input: pem });
  const made = await makeKey('x25519', 'for a test');
  const [key] = (await parseKeys(made)).keys;
  if (key === undefined) throw new Error('no key was made');
  writeFileSync(age, publicOf(key));
  const file = join(dir, `${name}.key`);
  const text = `${made}${pem}`;
  writeFileSync(file, text, { mode: 0o600 });
  return { file, text, rsa, age };
}

/** RSA of a random key file, AES of the value with a newline behind it: `BASE64;BASE64`. */
export function seedValue(publicKey: string, value: string): string {
  const keyText = execFileSync('openssl', ['rand', '-base64', '128']);
  const dir = mkdtempSync(join(tmpdir(), 'oj-key-'));
  try {
    const keyFile = join(dir, 'key');
    writeFileSync(keyFile, keyText, { mode: 0o600 });
    const cipher = ['enc', '-aes-256-cbc', '-salt', '-pbkdf2', '-iter', '100000', '-pass', `file:${keyFile}`];
    return `${rsaValue(publicKey, keyText)};${execFileSync('openssl', cipher, { input: `${value}\n` }).toString('base64')}`;
  } finally {
    rmSync(dir, { recursive: true });
  }
}

/** RSA directly over the bytes: what values were before there was a `;`. */
export function rsaValue(publicKey: string, bytes: string | Buffer): string {
  const args = ['pkeyutl', '-encrypt', '-pubin', '-inkey', publicKey, '-pkeyopt', 'rsa_padding_mode:pkcs1'];
  return execFileSync('openssl', args, { input: bytes }).toString('base64');
}

/** `onejob secret encrypt`, the value on its standard input. `pipelines`: `ORGANISATION/PIPELINE`. */
export async function sealedValue(
  { cli }: Pick<Home, 'cli'>,
  keys: Keys,
  about: { readonly name: string; readonly value: string; readonly pipelines?: readonly string[] },
): Promise<string> {
  const pipelines = (about.pipelines ?? ['acme/demo']).flatMap((each) => ['--pipeline', each]);
  const child = cli(['secret', 'encrypt', '--key', keys.age, '--name', about.name, '--keep-newline', ...pipelines]);
  child.type(about.value);
  const { code, stdout, stderr } = await child.ended;
  expect(code, stderr).toBe(0);
  return stdout.trim();
}

export interface SecretDay extends Day {
  readonly keys: Keys;
  /** A folder of the host that jobs see as `/out` and may write to. */
  readonly out: string;
  /** Writes the config anew. */
  configure(config: BuildkiteConfig): void;
}

/** A stand-in, keys, and a home whose config names them. */
export async function secretDay(
  config: BuildkiteConfig = {},
  options: Parameters<typeof buildkiteBench>[1] = {},
): Promise<SecretDay> {
  await using parts = new AsyncDisposableStack();
  const bench = parts.use(await buildkiteBench(theAgent(), { lostMs: 15_000, ...options }));
  const here = parts.use(await onejob({ config: '' }));
  const keys = await makeKeys(here.dir);
  const out = join(here.dir, 'out');
  mkdirSync(out);
  chmodSync(here.dir, 0o755);
  chmodSync(out, 0o777);
  const configure = (more: BuildkiteConfig): void => {
    const top = `${more.top ?? ''}\nsecrets: { key: { file: ${keys.file} } }`;
    here.configure(bench.config({ ...more, top, volumes: [...(more.volumes ?? []), `${out}:/out:rw`] }));
  };
  configure(config);
  const all = parts.move();
  return { bench, here, keys, out, configure, [Symbol.asyncDispose]: () => all.disposeAsync() };
}

/** A command line of onejob that goes well; what it printed. */
export async function well(child: Child): Promise<string> {
  const { code, stdout, stderr } = await child.ended;
  expect(code, stdout + stderr).toBe(0);
  return stdout;
}

/** Ids of this home's containers that are there. */
export async function containersOf({ api }: Pick<Home, 'api'>): Promise<string[]> {
  const { owner } = await api.status();
  using engine = engineAt();
  const filters = encodeURIComponent(JSON.stringify({ label: [`onejob.owner=${owner}`] }));
  const list = (await engine.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { readonly Id: string }[];
  return list.map(({ Id }) => Id).sort();
}

/** Ids of this home's containers that were made since `since`, ms since the epoch, also of those that are gone. */
export async function containersMade({ api }: Pick<Home, 'api'>, since: number): Promise<string[]> {
  const { owner } = await api.status();
  using engine = engineAt();
  const filters = { type: ['container'], event: ['create'], label: [`onejob.owner=${owner}`] };
  const seconds = (time: number): string => (time / 1000).toFixed(3);
  const query = new URLSearchParams({ since: seconds(since), until: seconds(Date.now()), filters: JSON.stringify(filters) });
  const answer = await engine.stream('GET', `/events?${query}`);
  const lines = (await text(answer)).split('\n').filter((line) => line !== '');
  return lines.map((line) => (JSON.parse(line) as { readonly id: string }).id);
}
