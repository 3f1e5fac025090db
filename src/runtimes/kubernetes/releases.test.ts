/** Release, signals and removal on bad days: streams that are refused, cut or silent, and pods that do not go. */
import { expect, test } from 'vitest';
import { type Call, podOf, success, token } from '../../../test/kit/fake-kubernetes.ts';
import { fakedCluster } from '../../../test/kit/faked-cluster.ts';
import type { RuntimeEvent } from '../../ports/runtime.ts';
import { frame } from '../gate.ts';

const agent = 'a1b2c3';
const name = `oj-${agent}`;
const never = new AbortController().signal;
const script = frame(agent, 'echo it ran');
const end = `\u001eonejob exited ${agent} 96\n`;

async function waiting() {
  const here = await fakedCluster();
  here.api.put(podOf(agent));
  await here.runtime.list(never);
  return here;
}

/** Accepts a stream, and takes nothing from it: no frame, no ping. */
async function deaf({ open }: Call): Promise<void> {
  (await open()).pause();
}

test('a frame is handed over', async () => {
  await using here = await waiting();
  await here.runtime.release(agent, script, never);
  expect(here.api.inputOf(name)).toBe(`${Buffer.from(script)}`);
});

test.each([
  [
    { status: 403, message: 'pods "oj-a1b2c3" is forbidden: no create of pods/attach' },
    'E_ENGINE_PERMISSION',
    'answered 403: pods "oj-a1b2c3" is forbidden',
  ],
  [
    { status: 500, message: 'error dialing backend: connection refused' },
    'E_ENGINE_FAILED',
    'answered 500: error dialing backend: connection refused.',
  ],
  [{ status: 429, body: '' }, 'E_ENGINE_FAILED', 'answered 429.'],
] as const)('an attach that is refused: %j', async (way, code, words) => {
  await using here = await waiting();
  here.api.answer('attach', way);
  const failed = await here.runtime.release(agent, script, never).catch((error: unknown) => error);
  expect(failed).toMatchObject({ code, retry: true });
  expect(`${failed}`).toContain(
    `Cannot release agent ${agent}: the Kubernetes API at ${here.api.access.server.origin} (from test) ${words}`,
  );
  expect(JSON.stringify(failed) + failed).not.toContain(token);
});

test.each<[string, (call: Call) => Promise<void>]>([
  [
    'before the frame',
    async ({ open, cut }) => {
      const socket = await open();
      socket.pause();
      cut();
    },
  ],
  [
    'in the middle of it',
    async ({ open, cut }) => {
      (await open()).once('message', cut);
    },
  ],
  [
    'with Success, though the container lives',
    async ({ open }) => {
      const socket = await open();
      socket.pause();
      socket.send(success, () => socket.terminate());
    },
  ],
])('a stream that is cut %s: the frame is sent again', async (_, way) => {
  await using here = await waiting();
  here.api.answer('attach', way);
  const released = here.runtime.release(agent, script, never);
  await here.clock.pass(200);
  await released;
  expect(here.api.inputOf(name)).toBe(`${Buffer.from(script)}`);
  expect(here.api.count('attach')).toBe(2);
});

test('a frame that nobody takes is sent again, and given up after 15 s in all', async () => {
  await using here = await waiting();
  here.api.always('attach', deaf);
  const released = here.runtime.release(agent, script, never).catch((error: unknown) => error);
  for (let n = 1; n <= 6; n += 1) {
    await here.api.called('attach', n);
    await here.clock.pass(2_000);
    await here.clock.pass(200);
  }
  await here.api.called('attach', 7);
  await here.clock.waits(2_000);
  here.clock.advance(1_800);
  expect(await released).toMatchObject({
    code: 'E_ENGINE_UNREACHABLE',
    retry: true,
    message: `Cannot release agent ${agent} with the Kubernetes API at ${here.api.access.server.origin} (from test): it did not answer within 15 s.`,
  });
});

test('a big frame that is not taken ends with the time', async () => {
  await using here = await waiting();
  here.api.always('attach', deaf);
  const released = here.runtime.release(agent, Buffer.alloc(64 * 1024 * 1024), never).catch((error: unknown) => error);
  await here.api.called('attach');
  await here.clock.pass(15_000);
  expect(await released).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
});

test('an API that is silent is given up after 15 s in all', async () => {
  await using here = await waiting();
  here.api.always('attach', 'silent');
  here.api.always('log', 'silent');
  const released = here.runtime.release(agent, script, never).catch((error: unknown) => error);
  await here.api.called('attach');
  await here.clock.pass(15_000);
  expect(await released).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
});

test('a gate that has ended, as its log says', async () => {
  await using here = await waiting();
  here.api.write(name, '2026-11-29T10:00:00Z', end);
  here.api.always('attach', { status: 500, message: 'container not running' });
  await expect(here.runtime.release(agent, script, never)).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true });
});

test('a gate whose pod was deleted by others meanwhile', async () => {
  await using here = await waiting();
  here.api.answer('attach', ({ reply }) => {
    here.api.remove(name);
    reply.writeHead(404);
    reply.end();
  });
  await expect(here.runtime.release(agent, script, never)).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true });
});

test('an agent that is not there', async () => {
  await using here = await waiting();
  await expect(here.runtime.release('zzz', script, never)).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
});

test('a TERM that is refused says so, and a KILL then ends the pod', async () => {
  await using here = await waiting();
  here.api.always('exec', { status: 500, message: 'error dialing backend' });
  await expect(here.runtime.signal(agent, 'TERM')).rejects.toThrow('answered 500: error dialing backend.');
  expect(here.api.count('delete')).toBe(0);
  await here.runtime.signal(agent, 'KILL');
  expect(here.api.pods.has(name)).toBe(false);
});

test('an agent that a KILL ended with its pod has ended by that, not by others', async () => {
  await using here = await waiting();
  here.api.always('exec', { status: 403, message: 'no create of pods/exec' });
  const events: RuntimeEvent[] = [];
  const stop = new AbortController();
  const told = (async () => {
    for await (const event of here.runtime.events(stop.signal)) events.push(event);
  })();
  await expect.poll(() => events.length).toBe(1);
  await here.runtime.signal(agent, 'KILL');
  await expect.poll(() => events.length).toBe(3);
  expect(events.slice(1)).toEqual([
    { kind: 'exited', agent, exit: { kind: 'signal', signal: 'KILL' } },
    { kind: 'removed', agent },
  ]);
  stop.abort();
  await told;
});

test('a TERM that nobody takes is given up after 10 s, with words', async () => {
  await using here = await waiting();
  here.api.always('exec', 'silent');
  const sent = here.runtime.signal(agent, 'TERM').catch((error: unknown) => error);
  await here.api.called('exec');
  await here.clock.pass(10_000);
  expect(await sent).toMatchObject({
    code: 'E_ENGINE_UNREACHABLE',
    retry: true,
    message: `Cannot send TERM to agent ${agent} with the Kubernetes API at ${here.api.access.server.origin} (from test): it did not answer within 10 s.`,
  });
});

test('a pod that does not go is asked again, and never without time', async () => {
  await using here = await waiting();
  here.api.it.staysDeleted = true;
  let isGone = false;
  const removed = here.runtime.remove(agent).then(() => {
    isGone = true;
  });
  for (let n = 1; n <= 3; n += 1) {
    await here.api.called('delete', n);
    await here.clock.pass(2_000);
  }
  expect(isGone).toBe(false);
  for (const { body } of here.api.calls.filter(({ what }) => what === 'delete'))
    expect(body).toEqual({ gracePeriodSeconds: 1, preconditions: { uid: `uid-of-${agent}` } });
  here.api.remove(name);
  await removed;
});

test('a pod that others are deleting with much time has no more than ours', async () => {
  await using here = await fakedCluster();
  const pod = podOf(agent);
  pod.metadata.deletionTimestamp = '2030-01-01T00:00:00Z';
  here.api.put(pod);
  await here.runtime.remove(agent);
  expect(here.api.count('delete')).toBe(1);
});

test('a pod of another owner with the same name is not touched', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf(agent, 'running', { owner: 'other' }));
  await here.runtime.remove(agent);
  await here.runtime.signal(agent, 'KILL');
  await expect(here.runtime.release(agent, script, never)).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
  expect([here.api.count('delete'), here.api.count('exec'), here.api.count('attach')]).toEqual([0, 0, 0]);
});

test('a pod that became another meanwhile is not touched', async () => {
  await using here = await waiting();
  here.api.answer('delete', ({ reply }) => {
    here.api.remove(name);
    here.api.put(podOf(agent, 'running', { owner: 'other', uid: 'uid-2' }));
    reply.writeHead(409);
    reply.end('{"reason":"Conflict","message":"the UID in the precondition differs"}');
  });
  await here.runtime.remove(agent);
  expect(here.api.pods.get(name).metadata.uid).toBe('uid-2');
});

test('a removal while the API is away says so', async () => {
  await using here = await waiting();
  here.api.away(true);
  await expect(here.runtime.remove(agent)).rejects.toMatchObject({ retry: true });
});
