/** Which runtime a pool gets, with an Engine that the test controls. */

import { afterEach, beforeEach, expect, test } from 'vitest';
import { emptyEnvironment, Folder } from '../../test/kit/config.ts';
import { fakeEngine } from '../../test/kit/fake-engine.ts';
import { scratch } from '../../test/support/scratch.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import { systemClock } from '../system/system-clock.ts';
import { choiceNow, chooseRuntimes, isolationNotes } from './choose.ts';

let engine: ReturnType<typeof fakeEngine>;
/** Images that the Engine has. */
let images: Set<string>;
/** What it says of itself; null: nothing, for ever. */
let about: object | null;
beforeEach(() => {
  images = new Set();
  about = {};
  engine = fakeEngine('choose', (path, _, answer) => {
    const reply = (status: number, body: unknown) =>
      answer.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    if (path.endsWith('/version')) return reply(200, { Version: '20.10', ApiVersion: '1.41' });
    if (path.endsWith('/info')) return about === null ? undefined : reply(200, about);
    const image = /\/images\/(.+)\/json$/.exec(path)?.[1];
    if (image !== undefined && images.has(decodeURIComponent(image))) return reply(200, { Id: 'sha256:1', Config: { User: '' } });
    return reply(404, { message: 'manifest unknown' });
  });
});
afterEach(() => engine.stop());

async function choose(pools: string, stored: readonly Slot[] = []) {
  const opened = new AsyncDisposableStack();
  const dir = opened.use(scratch());
  const folder = opened.use(new Folder());
  const { config } = await folder.load(`pools: ${pools}`);
  const env = emptyEnvironment({ DOCKER_HOST: `unix://${engine.socket}` });
  const runtimes = await chooseRuntimes({ config, clock: systemClock, env, owner: 'abc', stateDir: dir.path, stored });
  opened.defer(() => {
    for (const runtime of runtimes.all) runtime.close?.();
  });
  return { runtimes, config, [Symbol.asyncDispose]: () => opened.disposeAsync() };
}

test('a pool with an image uses docker even if the image or the Engine is missing; another pool’s image does not matter', async () => {
  for (const isThere of [true, false]) {
    if (isThere) await engine.start();
    else await engine.stop();
    await using here = await choose('{ a: { image: "missing:1" }, b: { image: "also-missing:1" } }');
    expect(here.config.pools.map(({ runtime }) => runtime)).toEqual(['docker', 'docker']);
    expect(here.runtimes.all.map(({ name }) => name)).toEqual(['docker']);
    expect([here.runtimes.reason, here.runtimes.findings()]).toEqual([null, []]);
  }
});

test('a pool without one runs as processes if the default image is unavailable, and doctor warns about that', async () => {
  await engine.start();
  await using here = await choose('{ plain: {}, ci: { image: "missing:1" } }');
  const { runtimes } = here;
  expect([runtimes.best.name, runtimes.all.map(({ name }) => name)]).toEqual(['process', ['docker', 'process']]);
  expect(runtimes.reason).toMatch(/^runtime process \(Docker: .*"debian:stable-slim"/);
  expect(runtimes.findings()).toMatchObject([
    { level: 'warning', message: expect.stringMatching(/^Jobs of pool plain run as processes on this host \(Docker: /) },
  ]);
});

test('a pool without one runs as processes on an Engine that lacks what sandboxes need', async () => {
  images.add('debian:stable-slim');
  about = { Plugins: { Log: ['json-file'] } };
  await engine.start();
  await using here = await choose('{ plain: {} }');
  expect(here.runtimes.reason).toBe(
    'runtime process (Docker: This Engine has no log driver "local", which keeps the output of jobs)',
  );
});

test('a pool without one runs as processes if the Engine does not answer in time, and the reason says so', async () => {
  about = null;
  await engine.start();
  await using here = await choose('{ plain: {} }');
  expect(here.runtimes.reason).toBe('runtime process (Docker: its Engine did not answer within 5 s)');
}, 30_000);

test('only agents of an earlier start in a pool that names no runtime are a reason for Docker', async () => {
  await engine.start();
  const inDocker = (key: string): Slot => ({
    ...emptySlot({ key, runtime: 'docker', grace: 1 }),
    leaving: [{ agent: 'a', job: null, exit: null }],
  });
  for (const key of ['ci/1', 'plain-old/1']) {
    await using other = await choose('{ plain: {}, ci: { image: "missing:1" } }', [inDocker(key)]);
    expect([other.runtimes.best.name, other.runtimes.all.map(({ name }) => name)]).toEqual(['process', ['docker', 'process']]);
  }
  await using own = await choose('{ plain: {}, ci: { image: "missing:1" } }', [inDocker('plain/1')]);
  expect([own.runtimes.best.name, own.runtimes.reason]).toEqual(['docker', 'docker, because existing agents run in containers']);
});

test('a runtime that only agents of an earlier config have does not stand for this config', async () => {
  await engine.start();
  const earlier: Slot = {
    ...emptySlot({ key: 'a/1', runtime: 'process', grace: 1 }),
    leaving: [{ agent: 'a', job: null, exit: null }],
  };
  await using here = await choose('{ a: { image: "missing:1" } }', [earlier]);
  expect([here.runtimes.best.name, here.runtimes.all.map(({ name }) => name)]).toEqual(['docker', ['docker', 'process']]);
});

test('a runtime that the config has no more, and agents still have, is named with what to do', async () => {
  const earlier: Slot = {
    ...emptySlot({ key: 'gpu/1', runtime: 'cluster', grace: 1 }),
    leaving: [{ agent: 'a', job: null, exit: null }],
  };
  await expect(choose('{ plain: { runtime: process } }', [earlier])).rejects.toMatchObject({
    code: 'E_RUNTIME_UNKNOWN',
    message: 'Agents of gpu/1 are on runtime "cluster", which the config does not have any more.',
    hint: expect.stringContaining('Put it back under "runtimes"'),
  });
});

test('Docker is checked again, and stays chosen', async () => {
  await using here = await choose('{ plain: {} }');
  const { runtimes } = here;
  expect([runtimes.best.name, runtimes.reason]).toEqual([
    'process',
    expect.stringMatching(/^runtime process \(Docker: .*the socket does not exist/),
  ]);
  expect(await runtimes.chooseAgain()).toBe(false);
  await engine.start();
  images.add('debian:stable-slim');
  expect(await runtimes.chooseAgain()).toBe(true);
  expect([runtimes.best, runtimes.reason]).toEqual([
    runtimes.get('docker'),
    `docker, because Docker Engine 20.10 answers at ${engine.socket}`,
  ]);
  expect(choiceNow(runtimes, false)).toMatchObject({ reason: runtimes.reason, findings: [{ level: 'ok' }] });
  expect(choiceNow(runtimes, true)).toEqual({ reason: 'docker, chosen at the start', findings: [] });
  await engine.stop();
  expect(await runtimes.chooseAgain()).toBe(false);
  expect(runtimes.best.name).toBe('docker');
});

test('jobs are told that their devices are not proved clean only where they have some', () => {
  const wants = { gpus: 0, model: null, images: true, folders: false, lifetime: null, keys: {} };
  const noted = (gpus: number, weaker: string | null, reason: string | null = null) =>
    isolationNotes(reason, { weaker, unproved: 'Its engine grants it.' }, { wants: { ...wants, gpus } });
  expect(noted(0, null)).toEqual([]);
  expect(noted(1, null)).toEqual(['Its engine grants it.']);
  expect(noted(0, 'All is shared.')).toEqual(['All is shared.']);
  expect(noted(2, 'All is shared.', 'It was chosen')).toEqual(['It was chosen. All is shared. Its engine grants it.']);
  expect(isolationNotes(null, { weaker: null, unproved: 'Never.' }, {})).toEqual([]);
});
