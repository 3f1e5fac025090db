/** The join of a machine: real files below a folder, and a real server. */
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, describe, expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { memoryHandler } from '../../../test/kit/machine-handler.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import { systemClock } from '../../system/system-clock.ts';
import { attendMachine, joinController, readJoined } from './machine.ts';
import type { JoinAnswer, MachineFile } from './protocol.ts';
import { JoinServer } from './server.ts';

const endings: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

const run = 'onejob-0123456789abcdef';
const never = new AbortController().signal;
const quiet = { info() {}, warn() {}, error() {} };
const base64 = (text: string) => Buffer.from(text).toString('base64');

async function bench(belongings: Partial<JoinAnswer> = {}) {
  const world = memoryHandler();
  const token = world.expect(run, { config: 'pools: {}\n', files: [], beat: 15, ...belongings });
  const listen = { host: '127.0.0.1', port: 0 };
  const server = new JoinServer({ listen, tls: null, key: 'x', handler: world.handler, clock: systemClock, log: quiet });
  await server.open();
  const folder: Scratch = scratch();
  endings.push(
    () => folder[Symbol.dispose](),
    () => server.close(),
  );
  const root = folder.path;
  const file = join(root, 'machine.json');
  const write = (more: Partial<MachineFile> = {}) => {
    const url = `http://127.0.0.1:${server.port}`;
    writeFileSync(file, JSON.stringify({ run, url, token, cloud: 'none', guestEnds: false, away: 60, ...more }));
  };
  write();
  const clock = handClock();
  const parts = { file, clock, fetch, metadata: fetch, log: quiet, version: '1', root };
  const read = (path: string) => readFileSync(join(root, path), 'utf8');
  const mode = (path: string) => (statSync(join(root, path)).mode & 0o777).toString(8);
  return { ...world, server, root, write, clock, parts, read, mode, take: () => joinController(parts, never) };
}

describe('the join of a machine', () => {
  it('brings its config and files, for root only', async () => {
    const { take, read, mode, root } = await bench({
      files: [
        { path: '/run/onejob-cloud/secrets/github.pem', mode: '0600', content: base64('a key\n') },
        { path: '/etc/onejob/hosts.yml', mode: '0644', content: base64('hosts: {}\n') },
      ],
    });
    mkdirSync(join(root, 'etc/onejob'), { recursive: true });
    await take();
    expect(read('run/onejob-cloud/config.yml')).toBe('pools: {}\n');
    expect(read('run/onejob-cloud/secrets/github.pem')).toBe('a key\n');
    expect(read('etc/onejob/hosts.yml')).toBe('hosts: {}\n');
    const modes = ['', '/credential', '/config.yml', '/auth', '/secrets', '/secrets/github.pem'].map((path) =>
      mode(`run/onejob-cloud${path}`),
    );
    expect(modes).toEqual(['700', '600', '600', '600', '700', '600']);
    expect(mode('etc/onejob/hosts.yml')).toBe('644');
    const joined = readJoined(root);
    expect(joined?.beat).toBe(15_000);
    expect(read('run/onejob-cloud/auth')).toBe(`authorization: Bearer ${joined?.credential}\n`);
    expect(readdirSync(join(root, 'run/onejob-cloud')).filter((name) => name.endsWith('.new'))).toEqual([]);
  });

  it('may be done again with the same result, as after an answer that was lost', async () => {
    const { take, root, thefts } = await bench();
    await take();
    const first = readJoined(root);
    await take();
    expect(readJoined(root)).toEqual(first);
    expect(thefts).toEqual([]);
  });

  it('is tried again while the controller cannot answer, for a quarter of an hour', async () => {
    const { take, failWith, clock, root } = await bench();
    failWith(new Error('the disk is full'));
    const over = take();
    const waited = () => expect.poll(() => clock.next(), { timeout: 10_000, interval: 1 });
    await waited().toBe(2_000);
    clock.advance(2_000);
    await waited().toBe(4_000);
    failWith(null);
    clock.advance(4_000);
    await over;
    expect(readJoined(root)).not.toBeNull();
  });

  it('ends at once when the controller does not expect the machine', async () => {
    const { take, forget, root } = await bench();
    forget(run);
    await expect(take()).rejects.toMatchObject({ code: 'E_CLOUD_DENIED', hint: expect.stringContaining('Destroy it') });
    expect(readJoined(root)).toBeNull();
  });

  it.each([
    '/etc/passwd',
    '/run/onejob-cloud/../../etc/passwd',
    '/run/onejob-cloud',
    '/run/onejob-cloudy/x',
    'run/onejob-cloud/x',
    '/etc/onejob//x',
  ])('writes no file at %s', async (path) => {
    const { take, root } = await bench({ files: [{ path, mode: '0600', content: '' }] });
    await expect(take()).rejects.toMatchObject({ code: 'E_FILES' });
    expect(existsSync(join(root, 'etc/passwd'))).toBe(false);
    expect(readJoined(root)).toBeNull();
  });

  it('sends nothing to an address that others could listen to', async () => {
    const { take, write } = await bench();
    write({ url: 'http://192.0.2.1:7718' });
    await expect(take()).rejects.toMatchObject({ code: 'E_USAGE', message: expect.stringMatching(/machine.json.*https/) });
  });
});

it('a machine that has not joined, or was started again, has nothing to attend to', async () => {
  const { parts } = await bench();
  const upgrade = async () => Promise.reject(new Error('nothing listens'));
  await expect(attendMachine({ ...parts, socket: '/nonexistent/s.sock', upgrade }, never)).rejects.toMatchObject({
    code: 'E_USAGE',
    hint: expect.stringContaining('After a reboot'),
  });
});
