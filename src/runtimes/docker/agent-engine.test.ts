/** An engine that belongs to a job, and answers what the job wants. */
import { mkdirSync, symlinkSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import { setImmediate as turn } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { settings } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { AgentEngine } from './agent-engine.ts';
import { DockerRuntime } from './docker.ts';
import { keepExit, keptExit } from './own-exit.ts';

type Answer = (path: string, reply: ServerResponse) => void;

const agent = 'a1';
const labels = { 'onejob.owner': 'o', 'onejob.agent': agent, 'onejob.pool': 'p', 'onejob.slot': 'p/1' };
const json = (reply: ServerResponse, body: unknown) =>
  reply.setHeader('content-type', 'application/json').end(JSON.stringify(body));

/** A Podman with one sandbox; `code`: null while it runs. */
const podman =
  (code: number | null): Answer =>
  (path, reply) => {
    const state = code === null ? 'running' : 'exited';
    if (path === '/version') json(reply, { Version: '5.4.2' });
    else if (path === '/containers/json') json(reply, [{ Id: 'c1', State: state, Labels: labels }]);
    else if (path === '/containers/c1/json')
      json(reply, {
        Id: 'c1',
        Name: 'n',
        Image: 'i',
        State: { Status: state, Running: code === null, ExitCode: code ?? 0 },
        Config: {},
      });
    else json(reply, {});
  };

/** An agent's engine that answers so, on a host whose Engine has seen these events. `killed`: called when that is to kill it. */
async function engineOf(answer: Answer, events = '', killed = () => {}) {
  const clock = handClock();
  const dir = scratch();
  const own = fakeEngine('own', (path, _, reply) => answer(path, reply), { podman: '5.4.2' });
  const host = fakeEngine('host', (path, _, reply) => {
    if (path === '/containers/outer/kill') killed();
    if (path === '/events') reply.end(events);
    else json(reply, [{ Id: 'outer', State: 'running', Labels: labels }]);
  });
  await Promise.all([own.start(), host.start()]);
  symlinkSync(own.socket, join(dir.path, 'api.sock'));
  const outer = new DockerRuntime(host.endpoint, { owner: 'o', environment: settings(host.socket), clock });
  await outer.parts.containers.find(agent);
  const engine = new AgentEngine(agent, outer, join(dir.path, 'api.sock'));
  onTestFinished(async () => {
    engine.close();
    outer.close();
    await Promise.all([own.stop(), host.stop()]);
    dir[Symbol.dispose]();
  });
  const asked = (path: string) => own.asked.filter((one) => one.endsWith(path)).length;
  return { asked, clock, engine, folder: dir.path, host, outer, own };
}

test('how a sandbox has ended is on disk before its engine is ended, which ends what its job has left', async () => {
  const kept: unknown[] = [];
  const { engine, folder, host } = await engineOf(podman(7), '', () => kept.push(keptExit(folder)));
  const states = await Promise.all([engine.look(), engine.look()]);
  expect(states).toEqual([expect.objectContaining({ kind: 'exited' }), expect.objectContaining({ kind: 'exited' })]);
  expect(kept).toEqual([{ kind: 'code', code: 7 }]);
  expect(engine.exit).toEqual({ kind: 'code', code: 7 });
  expect(host.asked.filter((path) => path.endsWith('/kill'))).toEqual(['/containers/outer/kill']);
});

test('a manager that comes afterwards knows that end, whatever the engine says then, and ends that', async () => {
  const { asked, engine, folder, host, outer } = await engineOf(podman(0));
  keepExit(folder, { kind: 'code', code: 7 });
  const next = new AgentEngine(agent, outer, join(folder, 'api.sock'));
  await next.watch();
  expect(await next.kill()).toBe(true);
  expect(next.exit).toEqual({ kind: 'code', code: 7 });
  expect(host.asked).toContain('/containers/outer/kill');
  expect(asked('/containers/json')).toBe(0);
  next.close();
  expect(engine.exit).toBeNull();
});

test('one whose end cannot be written down is not ended for that', async () => {
  const { engine, folder, host } = await engineOf(podman(7));
  mkdirSync(join(folder, 'exit', 'full'), { recursive: true });
  expect(await engine.look()).toBeNull();
  expect(engine.exit).toBeNull();
  expect(host.asked).not.toContain('/containers/outer/kill');
});

test.each([
  ['the Engine of the host says so', '{"Action":"oom"}\n', { kind: 'oom' }],
  ['somebody did', '', { kind: 'code', code: 137 }],
])('whether memory has ended it, is known because %s', async (_, events, exit) => {
  const { engine } = await engineOf(podman(137), events);
  await engine.look();
  expect(engine.exit).toEqual(exit);
});

test('one that says that what it lists as running has ended is believed neither, and asked now and then', async () => {
  const { asked, clock, engine } = await engineOf(podman(null));
  const watching = engine.watch();
  await expect.poll(() => asked('/wait')).toBe(1);
  await expect.poll(() => clock.next()).not.toBeNull();
  const before = asked('/containers/json');
  for (let n = 0; n < 100; n += 1) await turn();
  expect(asked('/containers/json')).toBe(before);
  clock.advance(1_000);
  await expect.poll(() => asked('/containers/json')).toBe(before + 1);
  engine.close();
  await watching;
  expect(engine.exit).toBeNull();
});

test.each([
  ['its own', 3, { kind: 'code', code: 3 }],
  // Only who looks knows whether memory was it.
  ['that of a kill', 137, null],
  ['none that there is', 4_711, null],
])('the wait for the end of a sandbox tells its exit code, so that nobody has to look for it: %s', async (_, StatusCode, exit) => {
  const running = podman(null);
  const { asked, engine, folder, host } = await engineOf((path, reply) =>
    path.endsWith('/wait') ? json(reply, { StatusCode }) : running(path, reply),
  );
  const watching = engine.watch();
  if (exit !== null) await watching;
  // One look before it, and one for what it did not tell.
  await expect.poll(() => asked('/containers/json')).toBe(exit === null ? 2 : 1);
  expect(keptExit(folder)).toEqual(exit);
  expect(host.asked.filter((path) => path.endsWith('/kill'))).toHaveLength(exit === null ? 0 : 1);
  engine.close();
  await watching;
});

test('one that is silent holds up nobody for long', async () => {
  const { asked, clock, engine } = await engineOf(() => {});
  const looking = engine.look();
  await expect.poll(() => asked('/containers/json')).toBe(1);
  clock.advance(10_000);
  expect(await looking).toBeNull();
});

test.each<[string, Answer]>([
  ['no JSON', (_, reply) => reply.end('<html>')],
  ['another shape', (_, reply) => json(reply, { Id: 4 })],
  ['an error', (_, reply) => reply.writeHead(500).end('{"message":"no"}')],
  ['a connection that breaks', (_, reply) => reply.destroy()],
  ['the sandbox of another', (_, reply) => json(reply, [{ Id: 'c', State: 'exited', Labels: { ...labels, 'onejob.agent': 'b' } }])],
])('an answer that is %s says nothing about the sandbox', async (_, answer) => {
  const { engine } = await engineOf(answer);
  expect(await engine.look()).toBeNull();
  expect(engine.exit).toBeNull();
});

test('one that does not end the sandbox, whatever it says, has not killed it', async () => {
  const { asked, engine } = await engineOf(podman(null));
  expect(await engine.kill()).toBe(false);
  expect(asked('/kill')).toBe(1);
});

test('that it is away is never said of the Engine of the host', async () => {
  const { engine, own } = await engineOf(podman(null));
  await own.stop();
  const asking = engine.ask((runtime) => runtime.list(new AbortController().signal));
  await expect(asking).rejects.toMatchObject({ code: 'E_SANDBOX_LOST', retry: true });
});
