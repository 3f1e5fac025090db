/** Pools that learn, on an Engine and a registry that answer what a test wants, with time that it moves. */
import { existsSync, writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { type Pack, pack } from 'tar-stream';
import { expect, onTestFinished, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { settings } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import { DockerRuntime } from './docker.ts';
import { Learning } from './learning.ts';

const hour = 3_600_000;
const agent = 'a1' as AgentId;
const digest = (word: string) => `sha256:${Buffer.from(word).toString('hex').padEnd(64, '0')}`;
const never = () => new AbortController().signal;
/** What a Docker Engine lists that has pulled these. */
const listOf = (...names: readonly string[]) => {
  const repositories = names.map((name) => [
    name,
    { [name]: digest(name), [`${name.split(':')[0]}@${digest(name)}`]: digest(name) },
  ]);
  return JSON.stringify({ Repositories: Object.fromEntries(repositories) });
};
const fileOf = (content: string) => {
  const tar = pack();
  tar.entry({ name: 'repositories.json' }, content);
  tar.finalize();
  return tar;
};
/** With a list in it, as a folder may have one. */
const entryOf = (header: Parameters<Pack['entry']>[0]) => {
  const tar = pack();
  tar.entry(header);
  tar.entry({ name: 'repositories.json/repositories.json' }, listOf('node:22'));
  tar.finalize();
  return tar;
};

let started = 0;

/** The pool `p` may learn 10 bytes of images of Docker's own. */
async function learning() {
  const dir = scratch();
  const clock = handClock();
  started += 1;
  /** By name, what the registry has: bytes, or why it does not give it. `version`: of all images. */
  const registry = { version: '1', sameDigest: false, has: new Map<string, number | string>() };
  const there = new Map<string, number>();
  /** Of the Engine, in addition to digests. */
  const tags: string[] = [];
  const container = { running: false, user: 'engine', pool: 'p', left: () => fileOf('') as Pack | null };
  const calls: string[] = [];
  const json = (reply: ServerResponse, body: unknown, status = 200) =>
    reply.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
  const host = fakeEngine(`learning${started}`, (path, request, reply) => {
    const query = new URL(request.url ?? '', 'http://engine').searchParams;
    const image = /^\/(images|distribution)\/(\S+?)(\/json)?$/.exec(path)?.[2] ?? '';
    if (path === '/containers/json')
      json(reply, [{ Id: 'c', State: 'exited', Labels: { 'onejob.owner': 'o', 'onejob.agent': agent } }]);
    else if (path === '/containers/c/json') {
      const { running: Running, user, pool } = container;
      const Labels = { 'onejob.user': user, 'onejob.pool': pool };
      json(reply, { Id: 'c', Name: 'c', Image: 'i', State: { Status: '', Running, ExitCode: 0 }, Config: { Labels } });
    } else if (path === '/containers/c/archive') {
      calls.push(`read ${query.get('path')}`);
      const left = container.left();
      if (left !== null) void buffer(left).then((bytes) => reply.end(bytes));
    } else if (path.startsWith('/distribution/')) {
      calls.push(`ask ${image}`);
      const size = registry.has.get(image) ?? 'manifest unknown';
      if (typeof size === 'string') json(reply, { message: size }, 500);
      else
        json(reply, { Descriptor: { digest: digest(`${registry.sameDigest ? image.split(':')[0] : image} ${registry.version}`) } });
    } else if (path === '/images/create') {
      const name = `${query.get('fromImage')}@${query.get('tag')}`;
      calls.push(`pull ${query.get('fromImage')}`);
      const size = [...registry.has].find(([one]) => one.startsWith(`${query.get('fromImage')}:`))?.[1];
      there.set(name, Number(size));
      reply.end('{}\n');
    } else if (request.method === 'DELETE') {
      calls.push(`remove ${image.split('@')[0]}`);
      there.delete(image);
      json(reply, []);
    } else if (there.has(image)) {
      const RepoTags = tags.filter((tag) => image.startsWith(tag.replace(/:.*/, '@')));
      json(reply, { Id: `id of ${image}`, Size: there.get(image), Config: {}, RepoTags });
    } else json(reply, { message: 'no such image' }, 404);
  });
  await host.start();
  const { parts } = new DockerRuntime(host.endpoint, { owner: 'o', environment: settings(host.socket), clock });
  const wants = { folder: join(dir.path, 'learnt'), pools: new Map([['p', { limit: 10, pull: ['docker.io/library/*'] }]]) };
  let it = new Learning(parts, wants);
  onTestFinished(async () => {
    it.close();
    parts.engine.close();
    await host.stop();
    dir[Symbol.dispose]();
  });
  const fills: string[][] = [];
  const failing = new Set<string>();
  const named = [{ id: 'n', name: 'named:1' }];
  /** Gives an agent its images, and waits for what that begins; what it got. */
  const start = async (waits = true) => {
    const over = Promise.withResolvers<void>();
    const given: string[][] = [];
    await it.ready(
      {
        name: 'p',
        from: parts.images,
        named,
        letGo: () => over.resolve(),
        fill: async (others, reader) => {
          const names = others.map(({ name }) => name);
          (reader === agent ? given : fills).push(names);
          const bad = others.find(({ name }) => failing.has(name));
          if (bad !== undefined) throw new OnejobError('E_ENGINE_FAILED', `Cannot make image ${bad.id} ready.`, { retry: true });
          return 'volume';
        },
      },
      agent,
      never(),
    );
    if (waits) await over.promise;
    return given;
  };
  return {
    calls,
    clock,
    container,
    failing,
    fills,
    folder: wants.folder,
    named,
    get it() {
      return it;
    },
    registry,
    start,
    tags,
    /** A job has pulled these. */
    async pulled(...names: readonly string[]) {
      container.left = () => fileOf(listOf(...names));
      clock.advance(1);
      await it.note(agent);
    },
    restart() {
      it.close();
      it = new Learning(parts, wants);
    },
    said: () => it.findings().map(({ level, message }) => `${level}: ${message}`),
  };
}

test('what a job has pulled is there for agents after the next one, by digest, and after a restart', async () => {
  const { calls, fills, pulled, registry, restart, said, start } = await learning();
  registry.has.set('node:22', 3);
  expect(said()).toEqual(['ok: Jobs of pool p have taught it no image so far.']);
  await pulled('node:22', 'ghcr.io/acme/other:1');
  expect(await start()).toEqual([[]]);
  expect(calls).toEqual(['read /var/lib/engine/docker/image/overlay2/repositories.json', 'ask node:22', 'pull node']);
  expect(fills).toEqual([['node:22']]);
  restart();
  expect(await start(false)).toEqual([['node:22']]);
  expect(said()).toEqual(['ok: Jobs of pool p have taught it node:22 (3 B of 10 B).']);
});

test('a new set is made once an hour; what was pulled last stays, and what no set has is removed from the Engine', async () => {
  const { calls, clock, fills, pulled, registry, start } = await learning();
  for (const [name, size] of [
    ['a:1', 6],
    ['b:1', 6],
    ['c:1', 4],
    ['d:1', 99],
  ] as const)
    registry.has.set(name, size);
  await pulled('a:1', 'named:1');
  await start();
  for (const name of ['d:1', 'b:1', 'c:1']) await pulled(name);
  await start(false);
  expect(fills).toEqual([['a:1']]);
  clock.advance(hour);
  calls.length = 0;
  await start();
  expect(fills).toEqual([['a:1'], ['b:1', 'c:1']]);
  expect(calls.filter((call) => !call.startsWith('ask'))).toEqual(['pull c', 'pull b', 'remove a']);
  // A job pulls it again, so it is wanted again. What stays is not asked for.
  await pulled('a:1');
  clock.advance(hour);
  calls.length = 0;
  expect(await start()).toEqual([['b:1', 'c:1']]);
  expect(fills.at(-1)).toEqual(['a:1', 'c:1']);
  expect(calls).toEqual(['ask a:1', 'pull a', 'remove b']);
});

test('an image that is larger than all may be is pulled once, removed, and named, until its registry has a smaller one', async () => {
  const { calls, clock, fills, pulled, registry, said, start } = await learning();
  registry.has.set('big:1', 11);
  await pulled('big:1');
  await start();
  clock.advance(hour);
  await pulled('big:1');
  await start();
  expect(fills).toEqual([]);
  expect(calls.filter((call) => !call.startsWith('read'))).toEqual(['ask big:1', 'pull big', 'remove big', 'ask big:1']);
  expect(said().at(-1)).toBe('warning: Pool p does not get big:1, which a job has pulled: it has 11 B, and "learn" is 10 B');
  registry.has.set('big:1', 9);
  registry.version = '2';
  clock.advance(hour);
  await pulled('big:1');
  await start();
  expect(fills).toEqual([['big:1']]);
  expect(said()).toEqual(['ok: Jobs of pool p have taught it big:1 (9 B of 10 B).']);
});

test('images that have no room are on the Engine one at a time', async () => {
  const { calls, pulled, registry, start } = await learning();
  for (const name of ['a:1', 'b:1']) registry.has.set(name, 99);
  await pulled('a:1', 'b:1');
  await start();
  expect(calls.filter((call) => /^(pull|remove)/.test(call))).toEqual(['pull a', 'remove a', 'pull b', 'remove b']);
});

test('an image that has two tags is not removed for the one that has no room', async () => {
  const { calls, fills, pulled, registry, start } = await learning();
  registry.sameDigest = true;
  for (const name of ['a:1', 'a:2']) registry.has.set(name, 6);
  await pulled('a:1', 'a:2');
  await start();
  expect(calls).not.toContain('remove a');
  expect(fills).toEqual([['a:1']]);
});

test('an image that somebody has given a tag stays on the Engine', async () => {
  const { calls, clock, pulled, registry, start, tags } = await learning();
  registry.has.set('a:1', 6);
  await pulled('a:1');
  await start();
  tags.push('a:1');
  registry.has.set('b:1', 6);
  await pulled('b:1');
  clock.advance(hour);
  await start();
  expect(calls).not.toContain('remove a');
});

test('an image that no engine can have is left out of the set, and named', async () => {
  const { failing, fills, pulled, registry, said, start } = await learning();
  for (const name of ['a:1', 'b:1']) registry.has.set(name, 1);
  await pulled('a:1', 'b:1');
  failing.add('a:1');
  await start();
  expect(fills).toEqual([['a:1', 'b:1'], ['b:1']]);
  expect(said()).toEqual([
    'ok: Jobs of pool p have taught it b:1 (1 B of 10 B).',
    expect.stringMatching(/^warning: Pool p does not get a:1, which a job has pulled: Cannot make image id of a@\S+ ready\.$/),
  ]);
});

test('its end waits for what is being made, and nothing is made afterwards', async () => {
  const one = await learning();
  one.registry.has.set('a:1', 1);
  await one.pulled('a:1');
  await one.start(false);
  await one.it.end();
  const before = [...one.calls];
  await one.start(false);
  expect(one.fills).toEqual([]);
  expect(one.calls).toEqual(before);
});

test('what a pool names itself is not learnt, also if it was before', async () => {
  const { named, pulled, registry, start } = await learning();
  for (const name of ['a:1', 'b:1']) registry.has.set(name, 1);
  await pulled('a:1', 'b:1', 'named:1');
  await start();
  expect(await start(false)).toEqual([['a:1', 'b:1']]);
  named.push({ id: 'other', name: 'docker.io/library/a:1' });
  expect(await start(false)).toEqual([['b:1']]);
});

test('a set that is what it was is not made again, and a newer image is there within a day', async () => {
  const { clock, fills, pulled, registry, start } = await learning();
  registry.has.set('a:1', 6);
  await pulled('a:1');
  await start();
  registry.version = '2';
  clock.advance(hour);
  await start();
  expect(fills).toHaveLength(1);
  clock.advance(24 * hour);
  await start();
  expect(fills).toEqual([['a:1'], ['a:1']]);
});

test('an image that cannot be pulled is left out, which is said; one that a registry does not give now stays', async () => {
  const { clock, fills, pulled, registry, said, start } = await learning();
  registry.has.set('a:1', 1);
  registry.has.set('gone:1', 1);
  await pulled('a:1', 'gone:1', 'none:1');
  await start();
  expect(fills).toEqual([['a:1', 'gone:1']]);
  registry.has.set('a:1', 'toomanyrequests');
  registry.has.set('gone:1', 'unauthorized');
  clock.advance(24 * hour);
  await start();
  expect(fills.at(-1)).toEqual(['a:1']);
  expect(said()).toEqual([
    'ok: Jobs of pool p have taught it a:1 (1 B of 10 B).',
    expect.stringMatching(/^warning: Pool p does not get a:1, which a job has pulled: .*could not reach docker.io/),
    expect.stringMatching(/^warning: Pool p does not get gone:1, which a job has pulled: .*docker.io refused/),
    expect.stringMatching(/^warning: Pool p does not get none:1, which a job has pulled: .*docker.io does not have it/),
  ]);
});

test('what was only learnt keeps no agent from starting, and is not tried for each of them', async () => {
  const { failing, pulled, registry, said, start } = await learning();
  registry.has.set('a:1', 1);
  await pulled('a:1');
  await start();
  failing.add('a:1');
  expect(await start(false)).toEqual([['a:1'], []]);
  expect(await start(false)).toEqual([[]]);
  expect(said()).toContainEqual(
    expect.stringMatching(/^warning: Pool p does not get newer images: Cannot make image id of a@\S+ ready\.$/),
  );
});

test('a set that cannot be made leaves the one before, and is tried again after an hour', async () => {
  const { clock, failing, fills, pulled, registry, start } = await learning();
  for (const name of ['a:1', 'b:1']) registry.has.set(name, 1);
  await pulled('a:1');
  await start();
  failing.add('b:1');
  await pulled('b:1');
  clock.advance(hour);
  await start();
  expect(await start(false)).toEqual([['a:1']]);
  failing.clear();
  clock.advance(hour);
  await start();
  expect(fills.at(-1)).toEqual(['a:1', 'b:1']);
});

test.each([
  ['that still runs', { running: true }],
  ['of an untrusted job', { user: 'untrusted' }],
  ['of a pool that does not learn', { pool: 'q' }],
])('a container %s is not read', async (_, change) => {
  const { calls, container, pulled } = await learning();
  Object.assign(container, change);
  await pulled('node:22');
  expect(calls).toEqual([]);
});

test.each([
  ['a link', () => entryOf({ name: 'repositories.json', type: 'symlink', linkname: '/etc/passwd' })],
  ['a FIFO', () => entryOf({ name: 'repositories.json', type: 'fifo' })],
  ['a folder', () => entryOf({ name: 'repositories.json/', type: 'directory' })],
  ['a file that is too long', () => fileOf(listOf('node:22').padEnd(300_000))],
  ['no list', () => fileOf('{')],
])('%s teaches nothing', async (_, left) => {
  const { calls, container, folder, it, pulled } = await learning();
  container.left = left;
  await it.note(agent);
  expect(calls).toHaveLength(1);
  expect(existsSync(join(folder, 'p.json'))).toBe(false);
  await pulled('node:22');
  expect(existsSync(join(folder, 'p.json'))).toBe(true);
});

test('an Engine that does not answer holds up a removal for five seconds', async () => {
  const { clock, container, it } = await learning();
  const asked = Promise.withResolvers<void>();
  container.left = () => {
    asked.resolve();
    return null;
  };
  let isOver = false;
  const noting = it.note(agent).then(() => {
    isOver = true;
  });
  await asked.promise;
  clock.advance(4_999);
  await new Promise(setImmediate);
  expect(isOver).toBe(false);
  clock.advance(1);
  await noting;
});

test('a file that cannot be read is begun anew', async () => {
  const { folder, pulled, registry, restart, said, start } = await learning();
  registry.has.set('a:1', 1);
  await pulled('a:1');
  writeFileSync(join(folder, 'p.json'), '{"at":');
  restart();
  await pulled('a:1');
  await start();
  expect(said()).toEqual(['ok: Jobs of pool p have taught it a:1 (1 B of 10 B).']);
});
