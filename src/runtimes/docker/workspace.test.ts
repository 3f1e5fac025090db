/** Giving a workspace to its user, with an Engine that answers as 29.8 does: it refuses names that leave their folder. */
import { pipeline } from 'node:stream/promises';
import { extract } from 'tar-stream';
import { expect, test } from 'vitest';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { Givers, giveWorkspace } from './workspace.ts';

const never = new AbortController().signal;
const to = { uid: 1000, gid: 2000 };

/** Its containers: whether their root is read-only, and whose volume they share. */
async function over(name: string) {
  const roots = new Map([
    ['writable', false],
    ['readonly', true],
  ]);
  /** Who owns the workspace of a container. */
  const owners = new Map<string, string>();
  const removed: string[] = [];
  const bodies: { readonly Labels: object; readonly HostConfig: { readonly VolumesFrom: string[] } }[] = [];
  const fake = fakeEngine(name, async (path, request, reply) => {
    const say = (status: number, message: string) => reply.writeHead(status).end(JSON.stringify({ message }));
    const [, , id = '', call] = path.split('/');
    if (request.method === 'DELETE') {
      removed.push(id);
      return reply.writeHead(204).end();
    }
    if (id === 'create') {
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      bodies.push(JSON.parse(Buffer.concat(parts).toString()));
      roots.set('giver', false);
      return reply.writeHead(201).end('{"Id":"giver"}');
    }
    if (call !== 'archive') return say(404, 'no');
    const target = new URL(request.url ?? '', 'http://engine').searchParams.get('path');
    const found: { readonly name: string; readonly owner: string }[] = [];
    const reader = extract();
    reader.on('entry', ({ name: entry, uid, gid }, body, next) => {
      found.push({ name: entry, owner: `${uid}:${gid}` });
      body.resume();
      next();
    });
    await pipeline(request, reader);
    const leaving = found.find((one) => one.name.split('/').includes('..'));
    if (leaving !== undefined) return say(500, `invalid entry name "${leaving.name}"`);
    if (target === '/' && roots.get(id) === true) return say(400, 'container rootfs is marked read-only');
    const whose = id === 'giver' ? (bodies.at(-1)?.HostConfig.VolumesFrom[0] ?? '') : id;
    for (const one of found) if (target === '/' && one.name === 'workspace/') owners.set(whose, one.owner);
    return reply.writeHead(200).end();
  });
  const engine = await fake.connect();
  return {
    engine,
    owners,
    removed,
    bodies,
    [Symbol.asyncDispose]: fake.stop,
  };
}

test('a workspace under a writable root gets its user with one call', async () => {
  await using here = await over('give');
  await giveWorkspace(here.engine, 'writable', to, never);
  expect([...here.owners, here.bodies.length]).toEqual([['writable', '1000:2000'], 0]);
});

test('a workspace under a read-only root gets its user through a second container, which is removed', async () => {
  await using here = await over('give-read-only');
  await new Givers(here.engine, 'me').give('a1', { id: 'readonly', image: 'sha256:i' }, to, never);
  expect([...here.owners]).toEqual([['readonly', '1000:2000']]);
  expect(here.bodies).toMatchObject([{ Image: 'sha256:i', Labels: { 'onejob.owner': 'me', 'onejob.workspace': 'a1' } }]);
  // No event reports its end, because it has no agent.
  expect(Object.keys(here.bodies[0]?.Labels ?? {})).not.toContain('onejob.agent');
  expect(here.removed).toEqual(['giver']);
});

test('what a killed manager has left of that is removed with the next look, and what is in use stays', async () => {
  await using here = await over('give-left');
  const givers = new Givers(here.engine, 'me');
  const left = (agent: string) => ({ Id: `of-${agent}`, State: 'created', Labels: { 'onejob.workspace': agent } });
  const giving = givers.give('a1', { id: 'readonly', image: 'sha256:i' }, to, never);
  await givers.sweep([left('a1'), left('a0'), { Id: 'agent', State: 'running', Labels: { 'onejob.agent': 'a2' } }]);
  expect(here.removed).toEqual(expect.arrayContaining(['of-a0']));
  await giving;
  expect(here.removed.toSorted()).toEqual(['giver', 'of-a0']);
});
