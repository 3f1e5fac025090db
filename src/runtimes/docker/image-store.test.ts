/** Putting an image into the store of the engines, on an Engine that a test makes. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { Socket } from 'node:net';
import { dirname, join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { answersPing, withoutVersion } from '../../../test/kit/fake-engine.ts';
import { scratch } from '../../../test/support/scratch.ts';
import type { AgentId } from '../../core/slot.ts';
import { Engine } from '../engine/engine.ts';
import { engineProgram, engineUsers, inEngine } from './engine-program.ts';
import { ImageStore } from './image-store.ts';
import { fillDocker, fillPodman } from './store-programs.ts';

/** The Engine leaves a connection to a container open, as a real one does whatever becomes of that. */
test('who stops while an image is read leaves no connection that would keep the process', async () => {
  using here = scratch();
  const path = `${here.path}/e.sock`;
  const asked: string[] = [];
  const reads = Promise.withResolvers<void>();
  const attached = Promise.withResolvers<Socket>();
  const server = createServer((request, answer) => {
    if (answersPing(request, answer)) return;
    const { method = '', url = '' } = request;
    asked.push(`${method} ${withoutVersion(url.split('?')[0] ?? '')}`);
    if (asked.at(-1) === 'POST /containers/create') answer.writeHead(201).end('{"Id":"filler"}');
    else if (url.endsWith('/get')) reads.resolve();
    else if (url.endsWith('/start')) void attached.promise.then((socket) => answer.writeHead(204).end() && socket.write('wanted'));
    else if (!url.endsWith('/wait')) answer.writeHead(204).end();
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    attached.resolve(socket.on('error', () => {}).resume());
  });
  server.listen(path);
  await once(server, 'listening');
  const engine = new Engine({ kind: 'unix', path, from: 'test' });
  const stop = new AbortController();
  const filling = new ImageStore(engine, 'o', engineUsers.trusted).ensure('sha256:1', 'maker', () => {}, stop.signal);
  const socket = await attached.promise;
  const ended = once(socket, 'end');
  await reads.promise;
  stop.abort();
  await expect(filling).rejects.toThrow();
  await ended;
  expect(asked.at(-1)).toBe('DELETE /containers/filler');
  engine.close();
  socket.destroy();
  server.closeAllConnections();
  server.close();
});

/** A store on an Engine whose container ends at once as it is told. `asked`: what the Engine was asked. */
async function ended(
  code: number,
  says: string,
  wants: boolean,
  volumes: readonly { readonly name: string; readonly label: string }[] = [],
  labels: object | null | undefined = undefined,
) {
  const here = scratch();
  const path = `${here.path}/e.sock`;
  const line = `2026-11-30T01:00:00.000000000Z ${says}`;
  const header = Buffer.from([2, 0, 0, 0, 0, 0, 0, line.length + 1]);
  const asked: string[] = [];
  const attached = Promise.withResolvers<Socket>();
  const read = Promise.withResolvers<void>();
  const slow = Promise.withResolvers<void>();
  const slowNames: string[] = [];
  const server = createServer(async (request, answer) => {
    if (answersPing(request, answer)) return;
    const url = withoutVersion(request.url ?? '');
    asked.push(/^(POST|DELETE)$/.test(request.method ?? '') ? `${request.method} ${url}` : url);
    const State = { Status: 'exited', Running: false, ExitCode: code };
    if (url.startsWith('/containers/create'))
      answer.writeHead(201).end(JSON.stringify({ Id: slowNames.some((name) => url.endsWith(`=${name}`)) ? 'slow' : 'filler' }));
    else if (url.startsWith('/containers/slow/wait')) slow.resolve();
    else if (url.startsWith('/volumes?')) {
      const found = volumes.map(({ name: Name, label }) => ({ Name, Labels: { 'onejob.owner': 'o', 'onejob.ready': label } }));
      answer.end(JSON.stringify({ Volumes: found }));
    } else if (url.startsWith('/volumes/'))
      answer
        .writeHead(labels === undefined ? 404 : 200)
        .end(JSON.stringify({ Name: 'v', Labels: labels, message: 'no such volume' }));
    else if (url.startsWith('/containers/filler/logs')) answer.end(Buffer.concat([header, Buffer.from(`${line}\n`)]));
    else if (url === '/containers/filler/json')
      answer.end(JSON.stringify({ Id: 'filler', Name: 'f', Image: 'i', State, Config: {} }));
    else if (url.endsWith('/get')) {
      answer.end('image');
      read.resolve();
    } else if (url.endsWith('/start')) {
      if (wants) (await attached.promise).write('wanted');
      answer.writeHead(204).end();
    } else if (url.endsWith('/wait')) {
      if (wants) await read.promise;
      answer.end(`{"StatusCode":${code}}`);
    } else answer.writeHead(204).end();
  });
  server.on('upgrade', (_, socket: Socket) => {
    socket.write('HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n');
    attached.resolve(socket.on('error', () => {}).resume());
  });
  server.listen(path);
  await once(server, 'listening');
  const engine = new Engine({ kind: 'unix', path, from: 'test' });
  onTestFinished(() => {
    engine.close();
    server.closeAllConnections();
    server.close();
    here[Symbol.dispose]();
  });
  const never = new AbortController().signal;
  const store = new ImageStore(engine, 'o', engineUsers.trusted);
  const ready = (agent: string, image: string) =>
    store.ready(agent as AgentId, 'p', [{ id: `sha256:${image}`, name: 'a:1' }], 'maker', () => {}, never);
  const untrusted = new ImageStore(engine, 'o', engineUsers.untrusted);
  return { asked, never, ready, slow: { names: slowNames, waits: slow.promise }, store, untrusted };
}

test('a disk that is full while an image is loaded is said to be full, in the words of who found it', async () => {
  const { ready } = await ended(1, 'write /var/lib/images/docker/x: no space left on device', true);
  await expect(ready('a', '1')).rejects.toMatchObject({
    code: 'E_DISK_FULL',
    message:
      "Cannot make image sha256:1 ready for the engines of agents: the Engine's disk is full (write /var/lib/images/docker/x: no space left on device).",
  });
});

test('what else goes wrong is said in the words of the program', async () => {
  const { ready } = await ended(1, 'dockerd: unknown flag', false);
  await expect(ready('a', '1')).rejects.toMatchObject({
    message: 'Cannot make image sha256:1 ready for the engines of agents: dockerd: unknown flag.',
  });
});

test('an image that is there already is not read again, which may be gigabytes at each start of the daemon', async () => {
  const { asked, ready } = await ended(0, '', false);
  expect(await ready('a', '1')).toMatch(/^onejob-o-images-\w{12}$/);
  expect(asked.filter((url) => url.endsWith('/get'))).toEqual([]);
});

test('a volume that an agent in preparation is about to read stays, although its pool has another one by now', async () => {
  const volumes: { name: string; label: string }[] = [];
  const { asked, ready, store } = await ended(0, '', false, volumes);
  const old = await ready('a', '1');
  volumes.push({ name: old, label: 'engine' });
  asked.length = 0;
  const removed = () => asked.filter((url) => url === `DELETE /volumes/${old}`).length;
  await ready('b', '2');
  expect(removed()).toBe(0);
  store.letGo('a' as AgentId);
  await ready('b', '2');
  expect(removed()).toBe(1);
});

test('untrusted jobs have volumes of their own, which those of others neither fill nor remove', async () => {
  const volumes: { name: string; label: string }[] = [];
  const { asked, never, ready, untrusted } = await ended(0, '', false, volumes);
  const theirs = await untrusted.ready('u' as AgentId, 'p', [{ id: 'sha256:1', name: 'a:1' }], 'maker', () => {}, never);
  expect(theirs).toMatch(/^onejob-o-untrusted-images-\w{12}$/);
  expect(await untrusted.ensure('sha256:1', 'maker', () => {}, never)).toBe('localhost/onejob:1');
  volumes.push({ name: theirs, label: 'untrusted' });
  asked.length = 0;
  for (const image of ['1', '2']) expect(await ready(`t${image}`, image)).not.toBe(theirs);
  expect(asked).toContainEqual(expect.stringMatching(/^\/volumes\?/));
  expect(asked).not.toContain(`DELETE /volumes/${theirs}`);
});

test.each([
  ['that Docker has made anew, which has no labels, is', null, 1],
  ['of ours is not', { 'onejob.ready': '' }, 0],
])('a volume %s removed before it is filled', async (_, labels, times) => {
  const { asked, ready } = await ended(0, '', false, [], labels);
  const volume = await ready('a', '1');
  const created = asked.findIndex((url) => url.startsWith('POST /containers/create'));
  expect(asked.slice(0, created).filter((url) => url === `DELETE /volumes/${volume}`)).toHaveLength(times);
});

test('who waits for one volume to be filled holds up nobody who needs another, and what is there is looked for once', async () => {
  const { asked, never, ready, slow, store } = await ended(0, '', false);
  const volume = await ready('a', '1');
  const made = () => asked.filter((url) => url.startsWith('POST /containers/create')).length;
  slow.names.push(volume);
  void ready('a', '1').catch(() => {});
  await slow.waits;
  for (const id of ['sha256:2', 'sha256:2']) expect(await store.ensure(id, 'maker', () => {}, never)).toBe('localhost/onejob:2');
  expect(made()).toBe(3);
});

/** Programs of a test on a folder that plays a volume. Each says with what it was called. */
function volumeOf(programs: Readonly<Record<string, string>>) {
  const here = scratch();
  onTestFinished(() => here[Symbol.dispose]());
  const file = (path: string, text: string, mode = 0o644): void => {
    mkdirSync(dirname(join(here.path, path)), { recursive: true });
    writeFileSync(join(here.path, path), text, { mode });
  };
  mkdirSync(join(here.path, 'v'));
  mkdirSync(join(here.path, 'run'));
  const text = (path: string): string => readFileSync(join(here.path, path), 'utf8');
  const has = (path: string): boolean => existsSync(join(here.path, path));
  for (const [name, script] of Object.entries(programs))
    file(`bin/${name}`, `#!/bin/sh\ncd ${here.path}\n${script.replaceAll('SAID', `echo "${name} $*" >>said`)}\n`, 0o755);
  const fill = (script: string, ...given: readonly string[]) => {
    const moved = script.replaceAll(inEngine.images, `${here.path}/v`);
    return spawnSync('/bin/sh', ['-c', moved, ...given], {
      env: { PATH: `${here.path}/bin:/usr/bin:/bin`, XDG_RUNTIME_DIR: `${here.path}/run` },
      encoding: 'utf8',
    });
  };
  const said = () => (has('said') ? text('said').trim().split('\n') : []);
  return { file, fill, has, path: here.path, said, text };
}

const podman = 'shift 4; SAID; case $1 in image) exit 1;; load) echo Loaded image: x;; esac';

test.each([
  ['is', 'exit 0', ['podman load', 'sync -f', 'sync -f', 'podman tag']],
  ['cannot be', '[ ! -e said ] || ! grep -q load said', ['podman load', 'sync -f', 'sync']],
])('an image has its name only once it is on disk (which it %s)', (_, synced, calls) => {
  const { fill, said } = volumeOf({ podman, sync: `SAID; ${synced}` });
  fill(fillPodman, 'name');
  const after = said().slice(said().indexOf('podman load -q'));
  expect(after).toEqual(calls.map((call) => expect.stringMatching(new RegExp(`^${call}( |$)`))));
});

test('Podman forgets the layers of a load that was cut, which may be torn, and none of an image with a name', () => {
  const layers = 'overlay-layers/layers.json';
  const known = 'overlay-images/images.json';
  const { file, fill, has, text } = volumeOf({
    podman: `${podman}; case $1 in load) cp v/${layers} seen; printf torn >v/${layers}; printf torn >v/${known}; [ ! -e cut ] || exit 1;; esac`,
    sync: '',
  });
  file(`v/${layers}`, 'whole');
  file('cut', '');
  expect(fill(fillPodman, 'one').status).toBe(1);
  expect(text(`v/${layers}`)).toBe('torn');
  expect(fill(fillPodman, 'one').status).toBe(1);
  expect(text('seen')).toBe('whole');
  expect(has(`v/filling/${known}`)).toBe(false);
  // One that ends leaves nothing to forget.
  const ok = volumeOf({ podman, sync: '' });
  expect(ok.fill(fillPodman, 'one')).toMatchObject({ status: 0, stderr: '' });
  expect(ok.has('v/filling')).toBe(false);
});

/** Docker in a folder: what it was given it adds to the file of its only layer. */
const docker = {
  rootlesskit: [
    '[ "$2" != rm ] || { shift; exec "$@"; }',
    'mkdir -p v/docker/image v/docker/overlay2/l v/docker/overlay2/x/diff; touch v/docker/overlay2/l/X v/docker/overlay2/x/link',
    'echo $$ >run/docker.pid; exec sleep 100',
  ].join('\n'),
  docker: 'case $1 in image) [ -e run/docker.pid ];; load) cat >>v/docker/overlay2/x/diff/file; echo Loaded image: x;; esac',
  sync: 'SAID; rm -f run/docker.pid; [ ! -e v/complete ]',
};

test('a volume of a Docker Engine is complete only once its last image is on disk, and one that is not is begun anew', () => {
  const { file, fill, has, said, text } = volumeOf(docker);
  file('v/docker/overlay2/x/diff/file', 'torn');
  file('v/seed/torn', '');
  expect(fill(fillDocker, '0', 'a:1', '')).toMatchObject({ status: 0, stdout: 'wanted\n' });
  expect([text('v/docker/overlay2/x/diff/file'), has('v/seed/torn'), has('v/complete')]).toEqual(['', false, false]);
  expect(fill(fillDocker, '1', 'b:1', 'last')).toMatchObject({ status: 0, stdout: 'wanted\n' });
  expect([said().length, has('v/complete'), has('v/seed/overlay2/x/link')]).toEqual([2, true, true]);
  expect(fill(fillDocker, '0', 'a:1', '')).toMatchObject({ status: 0, stdout: '' });
  expect(has('v/seed/overlay2/x/link')).toBe(true);
});

test('a volume that somebody removes between two images gets no second one alone', () => {
  const { fill, has } = volumeOf(docker);
  const cut = fill(fillDocker, '1', 'b:1', 'last');
  expect(cut).toMatchObject({ status: 1, stdout: '', stderr: 'somebody has removed the volume meanwhile\n' });
  expect(has('v/complete')).toBe(false);
});

test('an engine does not start on a volume that Docker has made anew, without images', () => {
  const { file, path } = volumeOf({});
  const start = () => {
    file('program', engineProgram.replaceAll(inEngine.ready, 'v'));
    const env = { PATH: '/usr/bin:/bin', MIRRORS: '', ENGINE_USER: 'nobody-of-that-name' };
    return spawnSync('perl', ['program', 'a'], { cwd: path, env, encoding: 'utf8' }).stderr;
  };
  expect(start()).toBe('somebody has removed the volume with the images of its pool\n');
  file('v/complete', '');
  expect(start()).toBe('the image has no user for the engine\n');
});
