/**
 * An Engine that does otherwise than documented. Filters of a list or a stream that it ignores: what belongs to others stays unseen, and
 * so is never touched.
 */
import { expect, test } from 'vitest';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { connectImageEngine } from '../../images/engine.ts';
import { followEvents } from './events.ts';
import { Exits } from './exits.ts';

const never = new AbortController().signal;
const own = { 'onejob.owner': 'me', 'onejob.agent': 'a1' };
/** Things of ours, of another installation, of somebody else, and without any label. */
const all = [own, { 'onejob.owner': 'you', 'onejob.agent': 'a2' }, { 'onejob.owner.x': 'me' }, null];
const things = all.map((Labels, at) => ({ Id: `${at}`, Name: `${at}`, State: 'exited', Labels }));
const images = things.map((image, at) => ({ ...image, Created: 1, RepoTags: at === 0 ? ['a:1'] : null }));

test('lists', async () => {
  await using fake = fakeEngine('foreign', (path, _, reply) => {
    const listed = path === '/volumes' ? { Volumes: things } : path === '/images/json' ? images : things;
    reply.end(JSON.stringify(listed));
  });
  const engine = await fake.connect();
  const [mine, agent] = ['onejob.owner=me', 'onejob.agent'];
  expect((await engine.containers([mine], never)).map(({ Id }) => Id)).toEqual(['0']);
  expect((await engine.containers([agent], never)).map(({ Id }) => Id)).toEqual(['0', '1']);
  expect((await engine.containers([mine, 'onejob.agent=a2'], never)).map(({ Id }) => Id)).toEqual([]);
  expect((await engine.networks(mine, never)).map(({ Id }) => Id)).toEqual(['0']);
  expect((await engine.images(mine, never)).map(({ Id }) => Id)).toEqual(['0']);
  expect(await engine.danglingVolumes([mine], never)).toEqual(['0']);
  const builder = connectImageEngine(fake.endpoint);
  expect((await builder.labelled([mine], never)).map(({ id }) => id)).toEqual(['0']);
  expect((await builder.dangling([agent], never)).map(({ id }) => id)).toEqual(['1']);
  builder.close();
});

test('a folder is read only from an Engine that tells it from a link, and one that does not is told so', async () => {
  const heads = new Map([
    ['folder', { mode: 2 ** 31 + 0o755 }],
    ['link', { mode: 2 ** 27 + 0o777 }],
  ]);
  await using fake = fakeEngine('folder', (_, request, reply) => {
    const path = new URL(request.url ?? '', 'http://engine').searchParams.get('path') ?? '';
    const head = heads.get(path);
    if (head !== undefined) reply.setHeader('X-Docker-Container-Path-Stat', Buffer.from(JSON.stringify(head)).toString('base64'));
    reply.end('tar');
  });
  const engine = await fake.connect();
  expect(await engine.getFolder('c1', 'folder', never)).toMatchObject({ readable: true });
  expect(await engine.getFolder('c1', 'link', never)).toBeNull();
  const message = expect.stringContaining('does not tell a folder from a link');
  await expect(engine.getFolder('c1', 'other', never)).rejects.toMatchObject({ code: 'E_ENGINE_FAILED', message });
});

test('events', async () => {
  await using fake = fakeEngine('foreign-events', (path, _, reply) => {
    const answers: Readonly<Record<string, string>> = { '/info': '{"LiveRestoreEnabled":true}', '/networks/bridge': '{"Id":"b"}' };
    if (path !== '/events') return reply.end(answers[path] ?? '{}');
    const event = (labels: object | null) => JSON.stringify({ Action: 'destroy', Actor: { ID: 'c', Attributes: labels ?? {} } });
    return reply.writeHead(200).write(`${all.toReversed().map(event).join('\n')}\n`);
  });
  const engine = await fake.connect();
  const stop = new AbortController();
  const events = followEvents(engine, new Exits(engine, null), 'me', stop.signal);
  expect((await events.next()).value).toEqual({ kind: 'connected' });
  expect((await events.next()).value).toEqual({ kind: 'removed', agent: 'a1' });
  stop.abort();
  expect((await events.next()).done).toBe(true);
});
