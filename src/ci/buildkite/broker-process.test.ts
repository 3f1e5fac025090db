import { closeSync, openSync, readFileSync, statSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { scratch } from '../../../test/support/scratch.ts';
import { readEnvironment } from '../../config/environment.ts';
import { boundLog, brokerPlace, startBroker } from './broker-process.ts';

/** A program that is run as onejob would be. */
function program(dir: string, words: string): readonly string[] {
  const path = join(dir, 'onejob.sh');
  writeFileSync(path, `${words}\n`);
  return ['/bin/sh', path];
}

it('is started with its place and nothing of our surroundings, and says in its log what it says', async () => {
  using dir = scratch();
  const place = brokerPlace(dir.path);
  const self = program(dir.path, 'echo "$@"; pwd; env | sort >&2; exit 3');
  expect(await startBroker(self, dir.path, place)).toBe('ended with exit code 3');
  const lines = readFileSync(place.log, 'utf8').split('\n');
  expect(lines.slice(0, 2)).toEqual([`broker --state-dir ${dir.path} --socket ${place.socket}`, place.dir]);
  const names = lines.slice(2).flatMap((line) => (line === '' ? [] : [line.split('=')[0]]));
  // What a shell sets by itself is none of ours.
  expect(names.filter((name) => !['PWD', 'OLDPWD', 'SHLVL', '_'].includes(name ?? ''))).toEqual(['PATH']);
  expect(statSync(place.log).mode & 0o777).toBe(0o600);
});

it('is given the way to services, but no argument that names it', async () => {
  using dir = scratch();
  const place = brokerPlace(dir.path);
  const { handedOn } = readEnvironment({
    NODE_USE_ENV_PROXY: '1',
    HTTPS_PROXY: 'http://u:proxy-canary@p:1',
    NO_PROXY: 'a',
    TOKEN: 't',
  });
  await startBroker(program(dir.path, 'echo "$@"; env | grep -E "PROXY|TOKEN" | sort'), dir.path, place, handedOn);
  const [args, ...given] = readFileSync(place.log, 'utf8').trim().split('\n');
  expect(args).not.toContain('canary');
  expect(given).toEqual(['HTTPS_PROXY=http://u:proxy-canary@p:1', 'NO_PROXY=a', 'ONEJOB_USE_ENV_PROXY=1']);
});

it('leads a group of its own, so that no signal to ours ends it', async () => {
  using dir = scratch();
  const place = brokerPlace(dir.path);
  await startBroker(program(dir.path, 'cut -d" " -f1,5,6 /proc/$$/stat'), dir.path, place);
  const [pid, group, session] = readFileSync(place.log, 'utf8').trim().split(' ');
  expect([group, session]).toEqual([pid, pid]);
});

it('says how it ended, in words that end a sentence', async () => {
  using dir = scratch();
  const place = brokerPlace(dir.path);
  expect(await startBroker(program(dir.path, 'kill -9 $$'), dir.path, place)).toBe('was ended by SIGKILL');
  expect(await startBroker(['/no/such/program'], dir.path, place)).toMatch(/^could not be started \(.*ENOENT/);
});

it('keeps what earlier ones said, but not for ever', async () => {
  using dir = scratch();
  const place = brokerPlace(dir.path);
  const self = program(dir.path, 'echo hello');
  await startBroker(self, dir.path, place);
  await startBroker(self, dir.path, place);
  expect(readFileSync(place.log, 'utf8')).toBe('hello\nhello\n');
  writeFileSync(place.log, 'x'.repeat(2 << 20));
  await startBroker(self, dir.path, place);
  expect(readFileSync(place.log, 'utf8')).toBe('hello\n');
});

it('keeps what the present one says, but not for ever', () => {
  using dir = scratch();
  const { log } = brokerPlace(dir.path);
  const file = openSync(log, 'a');
  try {
    writeSync(file, 'hello\n');
    boundLog(file);
    expect(readFileSync(log, 'utf8')).toBe('hello\n');
    writeSync(file, 'x'.repeat(2 << 20));
    boundLog(file);
    writeSync(file, 'again\n');
    expect(readFileSync(log, 'utf8')).toBe('again\n');
  } finally {
    closeSync(file);
  }
});

it('bounds nothing that is no file', () => {
  const file = openSync('/dev/null', 'a');
  expect(() => boundLog(file)).not.toThrow();
  closeSync(file);
  expect(() => boundLog(file)).not.toThrow();
});

it('has no place where its socket would be cut', () => {
  expect(() => brokerPlace(`/tmp/${'x'.repeat(100)}`)).toThrow(expect.objectContaining({ code: 'E_SOCKET_PATH' }));
});
