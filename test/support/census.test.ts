import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { createLocks, lockDirectory } from '../../src/gpu/lock.ts';
import { openStore } from '../../src/store/store.ts';
import { fakeEngine } from '../kit/fake-engine.ts';
import { type Census, census, cleanUp, renderCensus } from './census.ts';
import { engineAt } from './engine-http.ts';
import { withoutKept } from './kept-networks.ts';
import { defaultImage, lacks } from './require.ts';

let dir = '';
let stateDir = '';

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'oj-'));
  stateDir = join(dir, 'state');
});

afterEach(() => rmSync(dir, { recursive: true, force: true }));

/** What was left, as `kind id`. */
function left(result: Census): string[] {
  return result.left.map(({ kind, id }) => `${kind} ${id}`);
}

describe('the census', () => {
  test('of a state directory that nobody uses balances', async () => {
    openStore(stateDir).close();
    expect(left(await census({ stateDir }))).toEqual([]);
  });

  test('of a state directory that was never made balances, and does not count other people’s', async () => {
    expect((await census({ stateDir })).rows).toEqual([]);
  });

  test('finds slots, leases, registrations, files and sockets', async () => {
    const store = openStore(stateDir);
    store.transaction({ durable: false }, () => {
      store.slots.save({
        key: 'p/1',
        runtime: 'docker',
        service: 'azure',
        devices: [],
        grace: 1,
        standby: { kind: 'none' },
        agent: { kind: 'idle', fingerprint: 'f', online: true, agent: 'a', since: 0 },
        leaving: [],
      });
      store.registrations.intend({ agent: 'a', service: 'azure', place: '7', name: 'box-a', placeholder: false }, 1);
    });
    const locks = createLocks({ dir: lockDirectory(), owner: store.owner, stateDir, bootId: store.bootId });
    locks.take('GPU-census');
    store.close();
    mkdirSync(join(stateDir, 'agents', 'agents', 'a'), { recursive: true });
    const server = createServer().listen(join(stateDir, 'x.sock'));
    await once(server, 'listening');
    const result = await census({ stateDir });
    server.close();
    locks.keep(new Set());
    expect(left(result)).toEqual(['slot p/1', 'lease GPU-census', 'registration a', 'file agents/agents/a', 'socket x.sock']);
    expect(renderCensus(result)).toContain('5 things of onejob are here, 5 of them left behind.');
  });

  test('finds a process that works in the state directory, and ends it when asked', async () => {
    openStore(stateDir).close();
    const child = spawn('sleep', ['300'], { cwd: stateDir });
    await once(child, 'spawn');
    const ended = once(child, 'exit');
    const result = await census({ stateDir });
    expect(left(result)).toEqual([`process ${child.pid}`]);
    await cleanUp(result);
    await ended;
    expect(left(await census({ stateDir }))).toEqual([]);
  });

  test('counts only what an earlier one did not note', async () => {
    openStore(stateDir).close();
    mkdirSync(join(stateDir, 'agents', 'agents', 'a'), { recursive: true });
    const noted = join(dir, 'noted');
    const args = ['--state-dir', stateDir, '--engine', join(dir, 'none')];
    const run = (...more: string[]) => spawnSync('npm', ['run', 'census', '--', ...args, ...more], { encoding: 'utf8' });
    expect(run('--save', noted)).toMatchObject({ status: 0 });
    expect(run('--since', noted)).toMatchObject({ status: 0 });
    mkdirSync(join(stateDir, 'agents', 'agents', 'b'), { recursive: true });
    const { status, stdout } = run('--since', noted);
    expect([status, stdout]).toEqual([1, expect.stringMatching(/agents\/agents\/b .*\n.*1 things of onejob are here/s)]);
    expect(stdout).not.toContain('agents/agents/a');
  });

  test('holds nothing against a manager that runs', async () => {
    const store = openStore(stateDir);
    mkdirSync(join(stateDir, 'agents', 'agents', 'a'), { recursive: true });
    const result = await census({ stateDir });
    store.close();
    expect(result.rows.map((row) => [row.id, row.held])).toContainEqual(['agents/agents/a', process.pid]);
    expect(left(result)).toEqual([]);
  });

  test('says that it did not look where no Engine answers', async () => {
    writeFileSync(join(dir, 'nothing'), '');
    const result = await census({ owner: 'nobody', engine: join(dir, 'nothing') });
    expect(result.blind.join()).toContain('no Engine answers');
  });

  test.skipIf(lacks('docker', 'image'))('finds containers, networks and volumes of its owner only', async () => {
    const store = openStore(stateDir);
    const { owner } = store;
    store.close();
    using engine = engineAt();
    const Labels = { 'onejob.owner': owner, 'onejob.slot': 'p/1' };
    const body = { Image: defaultImage, Cmd: ['true'], Labels };
    const { Id } = (await engine.ok('POST', '/containers/create', body)) as { Id: string };
    const other = { ...body, Labels: { 'onejob.owner': `not-${owner}` } };
    const foreign = (await engine.ok('POST', '/containers/create', other)) as { Id: string };
    try {
      await engine.ok('POST', '/volumes/create', { Name: `v-${owner}`, Labels });
      await engine.ok('POST', '/networks/create', { Name: `n-${owner}`, Labels });
      const result = await census({ stateDir });
      expect(left(result)).toEqual([`container ${Id.slice(0, 12)}`, `network n-${owner}`, `volume v-${owner}`]);
      await cleanUp(result);
      expect(left(await census({ stateDir }))).toEqual([]);
      expect((await engine.call('GET', `/containers/${foreign.Id}/json`)).status).toBe(200);
    } finally {
      await engine.call('DELETE', `/containers/${foreign.Id}?force=1`);
    }
  });
});

/** What an Engine says to the removal of a network that is in the census, and how many it says are on it. */
test.each([
  ['that nobody removed is left', 204, 0, 1],
  ['that the Engine keeps for nothing is not', 403, 0, 0],
  ['that something is on is left', 403, 1, 1],
])('a network %s', async (_, refusal, ends, count) => {
  const warned = vi.spyOn(console, 'warn').mockImplementation(() => {});
  const Containers = Object.fromEntries(Array.from({ length: ends }, (__, n) => [`c${n}`, {}]));
  await using engine = fakeEngine('kept', (path, { method }, reply) => {
    if (method === 'DELETE') reply.writeHead(refusal).end();
    else reply.setHeader('content-type', 'application/json').end(JSON.stringify({ Name: path, Containers }));
  });
  await engine.start();
  const row = { kind: 'network', id: 'onejob-me', detail: 'bridge', owner: 'me', held: null };
  const found = await withoutKept({ rows: [row], left: [row], blind: [] }, engine.socket);
  expect({ left: found.left.length, told: found.blind.length + warned.mock.calls.length }).toEqual({
    left: count,
    told: count === 0 ? 2 : 0,
  });
  warned.mockRestore();
});
