/** The manager's end of the filter, with the process that it starts. */
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import { listening, stopped } from '../../../test/kit/filter.ts';
import { filterPid, killFilter } from '../../../test/support/buildkite-days.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { systemClock } from '../../clock.ts';
import { createFilter, endFilter, type Filter, keepListening, readListenConfig, writeListenConfig } from './filter.ts';

const never = new AbortController().signal;
const main = join(import.meta.dirname, '../../main.ts');
/** The program's, so that its process stays. */
const { version } = JSON.parse(readFileSync(join(import.meta.dirname, '../../../package.json'), 'utf8')) as { version: string };
const silent = { info() {}, warn() {}, error() {} };
const open: { readonly dir: Scratch; readonly stop: AbortController }[] = [];
afterEach(async () => {
  for (const { dir, stop } of open.splice(0)) {
    stop.abort();
    endFilter(dir.path);
    await expect.poll(() => filterPid({ stateDir: dir.path }), { timeout: 10_000 }).toBe(null);
    dir[Symbol.dispose]();
  }
});

function bench(
  self: readonly string[] = [process.execPath, main],
  given = {},
): { readonly stateDir: string; readonly filter: Filter; readonly stop: AbortController } {
  const dir = scratch();
  const stop = new AbortController();
  const filter = createFilter({ stateDir: dir.path, self, given, version, clock: systemClock, log: silent });
  filter.start(stop.signal);
  open.push({ dir, stop });
  return { stateDir: dir.path, filter, stop };
}

const local = { hostAddress: async () => '127.0.0.1' };

/** What it answers to an invalid token, on a connection of its own: one that is kept would be that of a filter before. */
async function knock(authority: string): Promise<number | undefined> {
  const [response] = (await once(http.get(`http://${authority}/v3/ping`, { agent: false }), 'response')) as [http.IncomingMessage];
  response.resume();
  return response.statusCode;
}

it('listens once a sandbox needs it, is started again when it was killed, and ends when nobody needs it', async () => {
  const { stateDir, filter, stop } = bench();
  expect(filterPid({ stateDir })).toBe(null);
  const { authority, seal } = await filter.listenFor(local, never);
  expect(await knock(authority)).toBe(401);
  expect(seal.open('ojf_x')).toBe(null);
  expect((await filter.listenFor(local, never)).authority).toBe(authority);
  await killFilter({ stateDir });
  expect((await filter.listenFor(local, never)).authority).toBe(authority);
  expect(await knock(authority)).toBe(401);
  stop.abort();
  await filter.close(true);
  expect(await knock(authority)).toBe(401);
  await filter.close(false);
  await expect.poll(() => filterPid({ stateDir }), { timeout: 10_000 }).toBe(null);
});

it('is given the way to services and nothing else of our surroundings, and no argument names it', async () => {
  const dir = scratch();
  const path = join(dir.path, 'onejob.sh');
  writeFileSync(path, 'echo "$@"; env | sort\n');
  const { stateDir, filter } = bench(['/bin/sh', path], { HTTPS_PROXY: 'http://u:proxy-canary@p:1' });
  const stop = new AbortController();
  const door = filter.listenFor(local, stop.signal).catch(() => null);
  const log = join(stateDir, 'filter/filter.log');
  const read = (): string[] => {
    try {
      return readFileSync(log, 'utf8').trim().split('\n');
    } catch {
      return [];
    }
  };
  await expect.poll(() => read().length, { timeout: 10_000 }).toBeGreaterThan(2);
  const [args, ...given] = read();
  expect(args).toBe(`filter --state-dir ${stateDir}`);
  const names = given.map((line) => line.split('=')[0] ?? '').filter((name) => !['PWD', 'OLDPWD', 'SHLVL', '_'].includes(name));
  expect([...new Set(names)].slice(0, 2)).toEqual(['HTTPS_PROXY', 'PATH']);
  stop.abort();
  await door;
  dir[Symbol.dispose]();
});

it('ends where another program has its port', async () => {
  using dir = scratch();
  const { server, port } = await listening(() => {});
  const parts = { version: '1', server: () => http.createServer(), clock: systemClock, log: silent };
  writeListenConfig(dir.path, { version: '1', port, addresses: ['127.0.0.1'] });
  await keepListening(dir.path, parts, never);
  await stopped(server);
});

it('a file of another version ends it, and so does an unreadable file', () => {
  using dir = scratch();
  writeListenConfig(dir.path, { version: '1', port: 7070, addresses: ['127.0.0.1'] });
  expect(readListenConfig(dir.path)).toEqual({ version: '1', port: 7070, addresses: ['127.0.0.1'] });
  writeFileSync(join(dir.path, 'doors.json'), '{"version":');
  expect(readListenConfig(dir.path)).toBe(null);
  writeListenConfig(dir.path, null);
  expect(readListenConfig(dir.path)).toBe(null);
});
