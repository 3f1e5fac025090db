/** The manager's end of the filter, with the process that it starts. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { relayAt } from '../../../test/kit/filter.ts';
import { filterPid, killFilter } from '../../../test/support/buildkite-days.ts';
import { freePort } from '../../../test/support/free-port.ts';
import { lacks } from '../../../test/support/require.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { systemClock } from '../../system/system-clock.ts';
import { endFilter, readListenConfig } from './doors.ts';
import { type Filter, FilterProcess } from './filter.ts';

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

interface Bench {
  readonly stateDir: string;
  readonly filter: Filter;
  readonly stop: AbortController;
  /** What the manager was told of it, without what was told before. */
  readonly troubles: (string | null)[];
}

function bench(self: readonly string[] = [process.execPath, main], given = {}): Bench {
  const dir = scratch();
  open.push({ dir, stop: new AbortController() });
  return managerAt(dir.path, self, given);
}

/** A manager in the state directory, which ends with the test. */
function managerAt(stateDir: string, self: readonly string[], given = {}, its = version): Bench {
  const stop = new AbortController();
  const troubles: (string | null)[] = [];
  const filter = new FilterProcess({ stateDir, self, given, version: its, clock: systemClock, log: silent });
  filter.start(stop.signal, (trouble) => {
    const text = trouble?.message ?? null;
    if (troubles.at(-1) !== text) troubles.push(text);
  });
  open.find(({ dir }) => dir.path === stateDir)?.stop.signal.addEventListener('abort', () => stop.abort());
  return { stateDir, filter, stop, troubles };
}

const at = (address: string, isRemote = false) => ({ hostAddress: async () => address, isRemote });
const local = at('127.0.0.1');

async function listen(filter: Filter, context: ReturnType<typeof at>) {
  const way = await filter.listenFor(context, never);
  return { ...way, authority: new URL(way.origin).host };
}

/** What it answers to an invalid token, on a connection of its own: one that is kept would be that of a filter before. */
async function knock(authority: string): Promise<number | undefined> {
  const [response] = (await once(http.get(`http://${authority}/v3/ping`, { agent: false }), 'response')) as [http.IncomingMessage];
  response.resume();
  return response.statusCode;
}

it('listens once a sandbox needs it, is started again when it was killed, and ends when nobody needs it', async () => {
  const { stateDir, filter, stop } = bench();
  expect(filterPid({ stateDir })).toBe(null);
  const { authority, seal } = await listen(filter, local);
  expect(await knock(authority)).toBe(401);
  expect(seal.open('ojf_x')).toBe(null);
  expect((await listen(filter, local)).authority).toBe(authority);
  await killFilter({ stateDir });
  expect((await listen(filter, local)).authority).toBe(authority);
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

describe('another program at one of its addresses', () => {
  it('that forwards everything to it gets no job, and is reported until it is gone', async () => {
    const { stateDir, filter, troubles } = bench();
    const { authority } = await listen(filter, local);
    const port = Number(authority.split(':')[1]);
    {
      await using relay = await relayAt('127.0.0.2', port, '127.0.0.1');
      await expect(listen(filter, at('127.0.0.2'))).rejects.toMatchObject({
        code: 'E_FILTER_TAKEN',
        retry: true,
        message: `Another program answers at 127.0.0.2:${port}, where the filter of this onejob must listen, so no job is started there.`,
        hint: expect.stringContaining(`ss -ltnp 'sport = :${port}'`),
      });
      expect(troubles.at(-1)).toContain(`Another program answers at 127.0.0.2:${port}`);
      expect(await filter.check()).toMatchObject([
        { level: 'ok', message: `The filter answers at 127.0.0.1:${port}, and has proved that it is onejob's.` },
        { level: 'error', message: expect.stringContaining(`Another program answers at 127.0.0.2:${port}`) },
      ]);
      // It asked, and the filter answered: for its own address.
      expect(relay.seen.map((path) => path.replace(/=.*/, '='))).toContain('GET /who?nonce=');
      const log = () => readFileSync(join(stateDir, 'filter/filter.log'), 'utf8');
      await expect.poll(log, { timeout: 10_000 }).toMatch(/"level":"error".*EADDRINUSE/);
      expect((await listen(filter, local)).authority).toBe(authority);
    }
    await expect.poll(() => troubles.at(-1), { timeout: 10_000 }).toBe(null);
    expect((await listen(filter, at('127.0.0.2'))).authority).toBe(`127.0.0.2:${port}`);
  });

  it('that takes the port when the filter has died is noticed without a job', async () => {
    const { stateDir, filter, troubles } = bench();
    const { authority } = await listen(filter, local);
    await killFilter({ stateDir });
    await using _ = await relayAt('127.0.0.1', Number(authority.split(':')[1]), '127.0.0.2');
    await expect.poll(() => troubles.at(-1), { timeout: 10_000 }).toContain(`Another program answers at ${authority}`);
    await expect(listen(filter, local)).rejects.toMatchObject({ code: 'E_FILTER_TAKEN' });
  });
});

const ofVersion = (its: string) => [process.execPath, join(import.meta.dirname, '../../../test/support/filter-of-version.ts'), its];

describe('a new version of onejob', () => {
  it('has its filter take the listeners over, and nobody gets the port in between', async () => {
    const { stateDir, filter, stop } = bench();
    const addresses = ['127.0.0.1', '127.0.0.2'];
    const [first, second] = await Promise.all(addresses.map((address) => listen(filter, at(address))));
    const before = filterPid({ stateDir });
    const port = Number(first?.authority.split(':')[1]);
    const stopTrying = new AbortController();
    const tries = Promise.all(addresses.map((address) => tryToTake(address, port, stopTrying.signal)));
    stop.abort();
    const next = managerAt(stateDir, ofVersion('9.9.9'), {}, '9.9.9');
    for (const address of addresses) expect((await listen(next.filter, at(address))).authority).toBe(`${address}:${port}`);
    await expect.poll(() => filterPid({ stateDir }), { timeout: 10_000 }).not.toBe(before);
    expect(await knock(second?.authority ?? '')).toBe(401);
    stopTrying.abort();
    expect(await tries).toEqual([false, false]);
    expect(next.troubles).not.toContainEqual(expect.any(String));
  });

  it('whose filter does not start leaves the one before at work, and starts no job with it', async () => {
    const { stateDir, filter, stop } = bench();
    const { authority } = await listen(filter, local);
    const before = filterPid({ stateDir });
    stop.abort();
    const next = managerAt(stateDir, [process.execPath, '--eval', 'process.exit(3)'], {}, '9.9.9');
    const log = () => readFileSync(join(stateDir, 'filter/filter.log'), 'utf8');
    await expect.poll(log, { timeout: 10_000 }).toContain('cannot take over');
    const what = `The filter, through which agents reach their service, is still of version ${version} at ${authority}, not of 9.9.9.`;
    expect(await next.filter.check()).toMatchObject([{ level: 'error', message: `${what} (E_FILTER)` }]);
    expect(filterPid({ stateDir })).toBe(before);
    expect(await knock(authority)).toBe(401);
  });
});

it('agents that are the first at the same time get one port, whatever their address', async () => {
  const { filter } = bench();
  const all = ['127.0.0.3', '127.0.0.4', '127.0.0.5', '127.0.0.3'].map((address) => listen(filter, at(address)));
  const ways = await Promise.all(all);
  expect(new Set(ways.map(({ authority }) => authority.split(':')[1])).size).toBe(1);
  for (const { authority } of ways) expect(await knock(authority)).toBe(401);
});

describe.skipIf(lacks('openssl'))('for sandboxes on other hosts', () => {
  /** What an agent there gets to an invalid token, or why it does not ask. */
  const ask = async (origin: string, ca: string | null): Promise<unknown> => {
    const asked = https.get(`${origin}/v3/ping`, { agent: false, ...(ca !== null && { ca }) });
    const [response] = (await once(asked, 'response').catch((error: NodeJS.ErrnoException) => [error])) as [http.IncomingMessage];
    return response instanceof Error ? (response as NodeJS.ErrnoException).code : response.resume().statusCode;
  };

  it('it speaks TLS, with a certificate that they know from the manager and accept only for that address', async () => {
    const { stateDir, filter } = bench();
    const { origin, ca } = await listen(filter, at('127.0.0.3', true));
    expect(origin).toMatch(/^https:\/\/127\.0\.0\.3:\d+$/);
    expect(await ask(origin, ca)).toBe(401);
    expect(await ask(origin, null)).toMatch(/CERT|SIGNATURE/);
    const other = bench();
    const { ca: others } = await listen(other.filter, at('127.0.0.4', true));
    expect(await ask(origin, others)).toMatch(/CERT|SIGNATURE/);
    const near = await listen(filter, local);
    expect([near.origin, near.ca]).toEqual([`http://${near.authority}`, null]);
    expect(await knock(near.authority)).toBe(401);
    for (const name of ['ca.key', 'tls-127.0.0.3.key']) expect(statSync(join(stateDir, 'filter', name)).mode & 0o777).toBe(0o600);
    expect(await filter.check()).toMatchObject([{ level: 'ok' }, { level: 'ok' }]);
  });

  it('it listens everywhere for a name that leads to this host, also once the address behind it is another one', async () => {
    const { stateDir, filter, stop } = bench();
    const port = await freePort();
    const { origin, ca } = await listen(filter, at(`onejob:${port}`, true));
    expect(origin).toBe(`https://onejob:${port}`);
    const called = async (host: string, servername: string) => {
      const asked = https.get({ host, port, path: '/v3/ping', servername, agent: false, ...(ca !== null && { ca }) });
      const [answer] = (await once(asked, 'response').catch((error: NodeJS.ErrnoException) => [error])) as [http.IncomingMessage];
      return answer instanceof Error ? (answer as NodeJS.ErrnoException).code : answer.resume().statusCode;
    };
    expect(await called('127.0.0.5', 'onejob')).toBe(401);
    expect(await called('127.0.0.5', 'other')).toMatch(/CERT/);
    await killFilter({ stateDir });
    stop.abort();
    // Nobody asks it for an agent yet.
    const next = managerAt(stateDir, [process.execPath, main]);
    await expect.poll(() => called('127.0.0.6', 'onejob'), { timeout: 10_000 }).toBe(401);
    expect(await next.filter.check()).toMatchObject([{ level: 'ok', message: expect.stringContaining(`onejob:${port}`) }]);
  });

  it('several agents that are the first at the same time get the same authority', async () => {
    const { filter } = bench();
    const all = ['127.0.0.3', '127.0.0.3', '127.0.0.4', '127.0.0.3'].map((address) => listen(filter, at(address, true)));
    const ways = await Promise.all(all);
    expect(new Set(ways.map(({ ca }) => ca)).size).toBe(1);
    for (const { origin, ca } of ways) expect(await ask(origin, ca)).toBe(401);
  });

  it('its authority outlives filter, manager and addresses: jobs that run know no other', async () => {
    const { stateDir, filter, stop } = bench();
    const first = await listen(filter, at('127.0.0.3', true));
    await killFilter({ stateDir });
    stop.abort();
    const next = managerAt(stateDir, ofVersion('9.9.9'), {}, '9.9.9');
    const second = await listen(next.filter, at('127.0.0.4', true));
    expect(second.ca).toBe(first.ca);
    expect(await ask(second.origin, first.ca)).toBe(401);
    await expect.poll(() => ask(first.origin, first.ca), { timeout: 10_000 }).toBe(401);
  });

  it('its listeners go to a new version with their certificates', async () => {
    const { stateDir, filter, stop } = bench();
    const { origin, ca } = await listen(filter, at('127.0.0.3', true));
    const before = filterPid({ stateDir });
    stop.abort();
    const next = managerAt(stateDir, ofVersion('9.9.9'), {}, '9.9.9');
    expect(await listen(next.filter, at('127.0.0.3', true))).toMatchObject({ origin, ca });
    await expect.poll(() => filterPid({ stateDir }), { timeout: 10_000 }).not.toBe(before);
    expect(await ask(origin, ca)).toBe(401);
  });

  it('a port of the config is where they call, and agents that run keep the one that they know', async () => {
    const { stateDir, filter, stop } = bench();
    const before = await listen(filter, at('127.0.0.3', true));
    const fixed = await freePort();
    for (const address of [`127.0.0.3:${fixed}`, `[::1]:${fixed}`]) {
      const { origin, ca } = await listen(filter, at(address, true));
      expect(origin).toBe(`https://${address}`);
      expect(await ask(origin, ca)).toBe(401);
    }
    expect(await ask(before.origin, before.ca)).toBe(401);
    expect(await filter.check()).toMatchObject([
      { level: 'ok' },
      { level: 'ok', message: `The filter answers at 127.0.0.3:${fixed}, and has proved that it is onejob's.` },
      { level: 'ok', message: expect.stringContaining(`[::1]:${fixed}`) },
    ]);
    stop.abort();
    const next = managerAt(stateDir, ofVersion('9.9.9'), {}, '9.9.9');
    for (const { authority } of [before, { authority: `127.0.0.3:${fixed}` }])
      expect((await listen(next.filter, at(authority, true))).authority).toBe(authority);
    // Its own port, written into the config, is not another one.
    expect(readListenConfig(join(stateDir, 'filter'))?.addresses).toEqual(['127.0.0.3', `127.0.0.3:${fixed}`, `[::1]:${fixed}`]);
  });

  it('another program at a port of the config is named, and what to write', async () => {
    const { filter } = bench();
    const fixed = await freePort();
    await using _ = await relayAt('127.0.0.3', fixed, '127.0.0.2');
    await expect(listen(filter, at(`127.0.0.3:${fixed}`, true))).rejects.toMatchObject({
      code: 'E_FILTER_TAKEN',
      message: expect.stringContaining(`answers at 127.0.0.3:${fixed}`),
      hint: expect.stringMatching(
        new RegExp(`ss -ltnp 'sport = :${fixed}'.* If it must stay, write another port into "address" of the runtime\\.`),
      ),
    });
  });

  it('another program at its address is not taken for it, with TLS or without', async () => {
    const { stateDir, filter } = bench();
    const { origin, authority } = await listen(filter, at('127.0.0.3', true));
    await killFilter({ stateDir });
    await using _ = await relayAt('127.0.0.3', Number(authority.split(':')[1]), '127.0.0.2');
    await expect(listen(filter, at('127.0.0.3', true))).rejects.toMatchObject({ code: 'E_FILTER_TAKEN' });
    expect(origin).toContain(authority);
  });

  it('an address is for sandboxes of this host or for others, never for both', async () => {
    const { filter } = bench();
    await listen(filter, local);
    await expect(listen(filter, at('127.0.0.1', true))).rejects.toMatchObject({
      code: 'E_FILTER',
      hint: expect.stringContaining('another "address"'),
    });
  });
});

/** Whether the port could be had before `signal` aborts. */
async function tryToTake(host: string, port: number, signal: AbortSignal): Promise<boolean> {
  while (!signal.aborted) {
    const server = createServer();
    const isOurs = await new Promise<boolean>((resolve) => {
      server.once('listening', () => resolve(true)).once('error', () => resolve(false));
      server.listen({ host, port, exclusive: true });
    });
    server.close();
    if (isOurs) return true;
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  return false;
}

it.runIf(process.getuid?.() === 0)('under root its port is one that no other user may take, and stays the same', async () => {
  const { stateDir, filter } = bench();
  const { authority } = await listen(filter, local);
  const port = Number(authority.split(':')[1]);
  expect(port).toBeLessThan(1024);
  const code = `require('node:net').createServer().listen(${port}, '127.0.0.2').on('error', (e) => console.log(e.code))`;
  const taken = spawnSync(process.execPath, ['--eval', code], { uid: 65_534, gid: 65_534, cwd: '/', encoding: 'utf8' });
  expect(taken.stdout).toBe('EACCES\n');
  await filter.close(false);
  await expect.poll(() => filterPid({ stateDir }), { timeout: 10_000 }).toBe(null);
  const next = managerAt(stateDir, [process.execPath, main]);
  expect((await listen(next.filter, local)).authority).toBe(authority);
});

it('no secret is in arguments, environment or log of the filter', async () => {
  const { stateDir, filter } = bench();
  await listen(filter, local);
  const pid = filterPid({ stateDir });
  const shown = ['environ', 'cmdline'].map((name) => readFileSync(`/proc/${pid}/${name}`, 'utf8')).join('\n');
  const log = readFileSync(join(stateDir, 'filter/filter.log'), 'utf8');
  for (const name of ['key', 'proof.key']) {
    const path = join(stateDir, 'filter', name);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(`${shown}${log}${readFileSync(join(stateDir, 'filter/doors.json'), 'utf8')}`).not.toContain(
      readFileSync(path, 'utf8').trim(),
    );
  }
});
