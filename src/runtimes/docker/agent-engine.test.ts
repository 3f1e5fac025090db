/** An engine that belongs to a job, and answers what the job wants. */
import type { ServerResponse } from 'node:http';
import { setImmediate as turn } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { settings } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import type { Exit } from '../../core/slot.ts';
import { AgentEngine } from './agent-engine.ts';
import { DockerRuntime } from './docker.ts';

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

/** An agent's engine that answers so, on a host whose Engine has seen these events. */
async function engineOf(answer: Answer, events = '') {
  const clock = handClock();
  const own = fakeEngine('own', (path, _, reply) => answer(path, reply), { podman: '5.4.2' });
  const host = fakeEngine('host', (path, _, reply) =>
    path === '/events' ? reply.end(events) : json(reply, [{ Id: 'outer', State: 'running', Labels: labels }]),
  );
  await Promise.all([own.start(), host.start()]);
  const outer = new DockerRuntime(host.endpoint, { owner: 'o', environment: settings(host.socket), clock });
  await outer.parts.containers.find(agent);
  const ends: Exit[] = [];
  const engine = new AgentEngine(agent, outer, own.socket, (exit) => ends.push(exit));
  onTestFinished(async () => {
    engine.close();
    outer.close();
    await Promise.all([own.stop(), host.stop()]);
  });
  const asked = (path: string) => own.asked.filter((one) => one.endsWith(path)).length;
  return { asked, clock, ends, engine, own };
}

test('the end of a sandbox is told once, with its code', async () => {
  const { ends, engine } = await engineOf(podman(7));
  const states = await Promise.all([engine.look(), engine.look()]);
  expect(states).toEqual([expect.objectContaining({ kind: 'exited' }), expect.objectContaining({ kind: 'exited' })]);
  await engine.look();
  expect(ends).toEqual([{ kind: 'code', code: 7 }]);
});

test.each([
  ['the Engine of the host says so', '{"Action":"oom"}\n', { kind: 'oom' }],
  ['somebody did', '', { kind: 'code', code: 137 }],
])('whether memory has ended it, is known because %s', async (_, events, exit) => {
  const { ends, engine } = await engineOf(podman(137), events);
  await engine.look();
  expect(ends).toEqual([exit]);
});

test('one that says that what it lists as running has ended is believed neither, and asked now and then', async () => {
  const { asked, clock, ends, engine } = await engineOf(podman(null));
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
  expect(ends).toEqual([]);
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
  const { ends, engine } = await engineOf(answer);
  expect(await engine.look()).toBeNull();
  expect(ends).toEqual([]);
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
