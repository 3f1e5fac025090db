/** Agents with engines of their own, on Engines of the host that answer what a test wants. */

import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { recipe, settings } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { specOf } from '../../../test/kit/runtime-contract/contract.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { start } from '../../ports/runtime.ts';
import { freeUid, keepUid, uidOf } from '../uids.ts';
import { DockerRuntime } from './docker.ts';
import { keepExit } from './own-exit.ts';
import { makeOwnLog } from './own-log.ts';
import { WithEngines } from './with-engines.ts';

const agent = 'a1';
const labels = { 'onejob.owner': 'o', 'onejob.agent': agent, 'onejob.pool': 'p', 'onejob.slot': 'p/1' };
const json = (reply: ServerResponse, body: unknown) =>
  reply.setHeader('content-type', 'application/json').end(JSON.stringify(body));

let started = 0;

async function engines(answer: (path: string, reply: ServerResponse) => void, isWanted = false) {
  const dir = scratch();
  const clock = handClock();
  started += 1;
  const host = fakeEngine(`with${started}`, (path, _, reply) => answer(path, reply), answer === podman ? { podman: '5.4.2' } : {});
  await host.start();
  const outer = new DockerRuntime(host.endpoint, { owner: 'o', environment: settings(host.socket), clock });
  const runtime = new WithEngines(outer, dir.path, { containers: isWanted });
  onTestFinished(async () => {
    runtime.close();
    await host.stop();
    dir[Symbol.dispose]();
  });
  return { asked: host.asked, clock, folder: dir.path, runtime };
}

const never = () => new AbortController().signal;
const podman = (path: string, reply: ServerResponse) =>
  path === '/version' ? json(reply, { Version: '5.4.2' }) : json(reply, { Id: 'sha256:1', Config: {} });

test('a pool with containers on Podman starts nothing, and says what it lacks', async () => {
  const { runtime } = await engines(podman);
  const spec = specOf({ ...recipe, containers: { image: 'engine:1' } });
  await expect(runtime.prepare(spec, () => {}, never())).rejects.toMatchObject({
    code: 'E_NO_CONTAINERS',
    retry: false,
    message: expect.stringContaining('an engine for containers: it needs a Docker Engine, and this is Podman.'),
  });
});

test('images for jobs are pulled with the credentials of their pool', async () => {
  using logins = scratch();
  const auth = (user: string) => ({ auths: { 'r.example': { auth: Buffer.from(`${user}:p`).toString('base64') } } });
  writeFileSync(join(logins.path, 'config.json'), JSON.stringify(auth('robot')));
  const pulls: unknown[] = [];
  const { runtime } = await engines((path, reply) => {
    const given = reply.req.headers['x-registry-auth'];
    if (path === '/version') json(reply, { Version: '26', Components: [{ Name: 'Engine' }] });
    else if (path === '/images/create') {
      pulls.push(JSON.parse(Buffer.from(String(given), 'base64url').toString()));
      json(reply, { errorDetail: { message: 'denied: not for you' } });
    } else if (path.startsWith('/images/r.example')) reply.writeHead(404).end('{"message":"no such image"}');
    else json(reply, { Id: 'sha256:1', Config: {} });
  });
  const ready = { images: ['r.example/a:1'], pull: 'missing', logins: logins.path } as const;
  const spec = specOf({ ...recipe, containers: { image: 'engine:1', ready } });
  await expect(runtime.prepare(spec, () => {}, never())).rejects.toMatchObject({ code: 'E_IMAGE_DENIED' });
  expect(pulls).toEqual([{ username: 'robot', password: 'p', serveraddress: 'r.example' }]);
});

test('"doctor" says whether pools may use containers, if one wants to', async () => {
  const about = async (isWanted: boolean) => {
    const { runtime } = await engines(podman, isWanted);
    return (await runtime.check(never())).filter(({ subject }) => subject === 'containers');
  };
  expect(await about(false)).toEqual([]);
  expect(await about(true)).toMatchObject([
    { level: 'error', message: 'Pools cannot use containers: it needs a Docker Engine, and this is Podman.' },
  ]);
});

/** Those of a host with one agent, whose container runs until it is killed. */
async function oneAgent(Config = {}) {
  let isEnded = false;
  const all = await engines((path, reply) => {
    if (path.endsWith('/kill')) isEnded = true;
    const State = isEnded ? 'exited' : 'running';
    if (path === '/containers/json') json(reply, [{ Id: 'outer', State, Labels: labels }]);
    else if (path === '/containers/outer/json')
      json(reply, { Id: 'outer', Name: 'n', Image: 'i', State: { Status: State, Running: !isEnded, ExitCode: 137 }, Config });
    else json(reply, { Id: 'n' });
  });
  mkdirSync(join(all.folder, agent));
  await makeOwnLog(join(all.folder, agent));
  return all;
}

test.skipIf(process.getuid?.() !== 0)('an agent that a reboot has ended keeps its ids until it is removed', async () => {
  const first = 1_879_048_192 + 262_144 * 840;
  const { folder, runtime } = await oneAgent({ Labels: { 'onejob.ids': String(first) } });
  await runtime.list(never());
  expect(await uidOf(join(folder, agent))).toBe(first);
  await freeUid(first);
  // What another removal has left goes with its ids.
  mkdirSync(join(folder, 'b1'));
  await keepUid(first, join(folder, 'b1'));
  await runtime.list(never());
  expect(await uidOf(join(folder, 'b1'))).toBeNull();
});

test('what a sandbox has written is read although its engine is silent, and was ended for that', async () => {
  const { asked, clock, folder, runtime } = await oneAgent();
  appendFileSync(join(folder, agent, 'log'), '2026-11-29T21:55:19.000000001+00:00 stdout F done\n');
  // Nothing listens there.
  const killing = runtime.signal(agent, 'KILL');
  const said: string[] = [];
  const reading = (async () => {
    for await (const chunks of runtime.logs(agent, start, never()))
      for (const { bytes } of chunks) said.push(Buffer.from(bytes).toString());
  })();
  await killing;
  expect(asked.filter((path) => path.endsWith('/kill'))).toHaveLength(1);
  await runtime.list(never());
  await reading;
  expect(said).toEqual(['done\n']);
  expect(clock.now()).toBe(0);
});

test('a manager that comes when the end of a sandbox was written down ends its engine, and tells that end once that has ended', async () => {
  const { asked, folder, runtime } = await oneAgent();
  keepExit(join(folder, agent), { kind: 'code', code: 3 });
  await expect(runtime.release(agent, new Uint8Array(), never())).rejects.toMatchObject({ code: 'E_GATE_ENDED' });
  expect((await runtime.list(never())).map(({ state }) => state)).toEqual([{ kind: 'running' }]);
  expect(asked.filter((path) => path.endsWith('/kill'))).toHaveLength(1);
  expect((await runtime.list(never())).map(({ state }) => state)).toEqual([{ kind: 'exited', exit: { kind: 'code', code: 3 } }]);
});
