/** Making agents, and the news of them, on bad days of an API and of nodes. */
import type { ServerResponse } from 'node:http';
import { expect, test } from 'vitest';
import { podOf, token } from '../../../test/kit/fake-kubernetes.ts';
import { type FakedCluster, fakedCluster, specOf } from '../../../test/kit/faked-cluster.ts';
import { type RuntimeEvent, start } from '../../ports/runtime.ts';
import { readyMarker, releasedMarker } from '../gate.ts';
import { check } from './check.ts';
import { KubeClient } from './client.ts';
import { podAccount } from './kubeconfig.ts';
import { exitUnfit } from './script.ts';

const agent = 'a1b2c3';
const name = `oj-${agent}`;
const never = new AbortController().signal;

/** Begins to make an agent. */
function preparing({ runtime }: FakedCluster, gpus = 0, what = agent) {
  const said: string[] = [];
  const stop = new AbortController();
  const made = runtime.prepare(specOf(what, gpus), (line) => said.push(line), stop.signal);
  const failed = made.then(
    () => null,
    (error: unknown) => error,
  );
  return { said, stop, made, failed };
}

/** A container's state as the node tells it. */
const waits = (reason: string, message: string) => ({ waiting: { reason, message } });
const ends = (exitCode: number, reason = 'Error', message = '') => ({ terminated: { exitCode, reason, message } });

/** What the node now says of a pod that was created. */
function tells(here: FakedCluster, state: Parameters<typeof podOf>[1], status = {}, what = agent): void {
  const { uid } = here.api.pods.get(`oj-${what}`).metadata;
  here.api.put({ ...podOf(what, state, { uid, status }) });
}

test('a pod that begins', async () => {
  await using here = await fakedCluster();
  const { made } = preparing(here);
  await here.api.called('create');
  tells(here, 'running');
  expect(await made).toMatchObject({ fingerprint: expect.any(String) });
  expect(here.runtime.placeOf?.(agent)).toEqual({ place: 'k1', devices: '' });
});

test('a quota is waited for, with its words', async () => {
  await using here = await fakedCluster();
  const message = `pods "${name}" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 4, limited: 4`;
  here.api.answer('create', { status: 403, reason: 'Forbidden', message });
  const { made, said } = preparing(here);
  await here.clock.pass(2_000);
  await here.api.called('create', 2);
  tells(here, 'running');
  await made;
  expect(said).toContain(`cluster: waits for room: ${message}`);
});

test.each([
  [
    403,
    `pods "${name}" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true`,
    { code: 'E_RECIPE', hint: expect.stringContaining('security: restricted') },
  ],
  [403, `pods is forbidden: User "u" cannot create resource "pods"`, { code: 'E_ENGINE_PERMISSION', retry: true }],
  [401, 'Unauthorized', { code: 'E_ENGINE_PERMISSION', retry: true }],
  [422, `Pod "${name}" is invalid: spec.containers[0].image: Required value`, { code: 'E_RECIPE', retry: false }],
  [
    409,
    `Operation cannot be fulfilled on resourcequotas "q": the object has been modified`,
    { code: 'E_ENGINE_FAILED', retry: true },
  ],
  [429, 'Too many requests, please try again later', { code: 'E_ENGINE_FAILED', retry: true }],
  [500, 'etcdserver: request timed out', { code: 'E_ENGINE_FAILED', retry: true }],
] as const)('a pod that is refused with %d: %s', async (status, message, error) => {
  await using here = await fakedCluster();
  here.api.answer('create', { status, message, reason: 'Any' });
  const failed = await preparing(here).failed;
  expect(failed).toMatchObject(error);
  expect(`${failed}`).toContain(
    `Cannot create agent ${agent}: the Kubernetes API at ${here.api.access.server.origin} (from test) answered ${status}: ${message}.`,
  );
  expect(`${failed}${JSON.stringify(failed)}`).not.toContain(token);
});

test.each([
  ['silent', 'it did not answer within 30 s'],
  ['cut', 'other side closed'],
] as const)('an API that is %s when the pod is created', async (way, words) => {
  await using here = await fakedCluster();
  here.api.answer('create', way);
  const { failed } = preparing(here);
  await here.api.called('create');
  if (way === 'silent') await here.clock.pass(30_000);
  expect(await failed).toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true, message: expect.stringContaining(words) });
});

test.each([
  ['ImagePullBackOff', 'Back-off pulling image "debian:12"', 'E_PULL_FAILED', true],
  ['ErrImageNeverPull', 'Container image "debian:12" is not present with pull policy of Never', 'E_IMAGE_NOT_FOUND', false],
  ['CreateContainerConfigError', 'secret "x" not found', 'E_RECIPE', false],
] as const)('a container that cannot begin: %s', async (reason, message, code, retry) => {
  await using here = await fakedCluster();
  const { failed } = preparing(here);
  await here.api.called('create');
  tells(here, waits(reason, message));
  expect(await failed).toMatchObject({ code, retry, message: `Cannot start agent ${agent} on node k1: ${reason}: ${message}.` });
});

test('an image without sh', async () => {
  await using here = await fakedCluster();
  const { failed } = preparing(here);
  await here.api.called('create');
  tells(here, ends(128, 'StartError', 'exec: "sh": executable file not found in $PATH'), { phase: 'Failed' });
  expect(await failed).toMatchObject({
    code: 'E_RECIPE',
    message: `Cannot start agent ${agent}: exec: "sh": executable file not found in $PATH.`,
    hint: 'Its image needs a POSIX sh.',
  });
});

test('what the scheduler says is said', async () => {
  await using here = await fakedCluster();
  const { said, made } = preparing(here);
  await here.api.called('create');
  const conditions = [
    { type: 'PodScheduled', status: 'False', reason: 'Unschedulable', message: '0/1 nodes: 1 Insufficient nvidia.com/gpu' },
  ];
  tells(here, {}, { conditions });
  await expect.poll(() => said, { interval: 1 }).toContain('cluster: waits for a node: 0/1 nodes: 1 Insufficient nvidia.com/gpu');
  tells(here, 'running');
  await made;
});

test.each(['one line', 'Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54'])(
  'a GPU that is not fit, in the words %j: the next pod avoids its node',
  async (words) => {
    await using here = await fakedCluster();
    const { failed } = preparing(here, 1);
    await here.api.called('create');
    for (const [at, line] of `\u001eonejob unfit ${agent} nvidia-smi fails: ${words}\n`.split(/(?<=\n)/).entries())
      here.api.write(name, `2026-11-29T10:00:0${at}Z`, line);
    tells(here, ends(exitUnfit), { phase: 'Failed' });
    expect(await failed).toMatchObject({ code: 'E_GATE_ENDED', retry: true });
    expect(`${await failed}`).toContain(`node k1 is not fit for it: nvidia-smi fails: ${words.split('\n')[0]}`);
    preparing(here, 1, 'next');
    const { body } = await here.api.called('create', 2);
    expect(JSON.stringify(body.spec.affinity)).toContain('{"key":"metadata.name","operator":"NotIn","values":["k1"]}');
  },
);

test('a GPU that is not fit, on a node whose logs cannot be read', async () => {
  await using here = await fakedCluster();
  const { failed } = preparing(here, 1);
  await here.api.called('create');
  here.api.always('log', { status: 404, message: 'not found' });
  tells(here, ends(exitUnfit), { phase: 'Failed' });
  expect(await failed).toMatchObject({ retry: true });
});

test('a pod that is deleted before it ran', async () => {
  await using here = await fakedCluster();
  const { failed } = preparing(here);
  await here.api.called('create');
  tells(here, 'pending');
  here.api.remove(name);
  expect(await failed).toMatchObject({ code: 'E_GATE_ENDED', message: expect.stringContaining('somebody deleted its pod') });
});

test('a pod that is deleted before the watch has seen it', async () => {
  await using here = await fakedCluster();
  await here.runtime.list(never);
  await here.api.called('watch');
  here.api.always('watch', { status: 500, message: 'etcdserver: no leader' });
  here.api.endWatches();
  const { failed } = preparing(here);
  await here.api.called('create');
  here.api.remove(name);
  here.api.compact();
  here.api.always('watch', null);
  for (const pause of [200, 400]) await here.clock.pass(pause);
  expect(await failed).toMatchObject({ code: 'E_GATE_ENDED', message: expect.stringContaining('somebody deleted its pod') });
});

test('one that an earlier manager has created is taken over', async () => {
  await using here = await fakedCluster();
  here.api.answer('list', ({ reply }) => {
    reply.end(JSON.stringify({ metadata: { resourceVersion: `${here.api.it.version}` }, items: [] }));
    here.api.put(podOf(agent));
  });
  expect(await preparing(here).made).toMatchObject({ fingerprint: expect.any(String) });
  expect(here.api.count('delete')).toBe(0);
});

test('a pod of another owner with the same name is neither taken nor waited for', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf(agent, 'running', { owner: 'other' }));
  expect(await preparing(here).failed).toMatchObject({ code: 'E_GATE_ENDED', retry: true });
  expect(here.api.count('delete')).toBe(0);
});

test('the API goes away in the middle, and comes back', async () => {
  await using here = await fakedCluster();
  const { said, made } = preparing(here);
  await here.api.called('create');
  await here.api.called('watch');
  here.api.away(true);
  await here.clock.pass(200);
  await expect.poll(() => said.join('\n'), { interval: 1 }).toContain('The watch of the pods of onejob was cut');
  await here.clock.waits(400);
  tells(here, 'running');
  here.api.away(false);
  await here.clock.pass(400);
  await made;
});

test('an end that comes while its reader is busy is told without another change', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf('a'));
  here.api.put(podOf('b'));
  const stop = new AbortController();
  const events = here.runtime.events(stop.signal)[Symbol.asyncIterator]();
  const next = async (): Promise<RuntimeEvent> => (await events.next()).value;
  expect(await next()).toEqual({ kind: 'connected' });
  const first = next();
  await here.api.called('watch');
  here.api.put(podOf('a', ends(1), { status: { phase: 'Failed' } }));
  expect(await first).toMatchObject({ kind: 'exited', agent: 'a' });
  here.api.put(podOf('b', ends(2), { status: { phase: 'Failed' } }));
  await expect.poll(async () => (await here.runtime.list(never)).filter(({ state }) => state.kind === 'exited').length).toBe(2);
  expect(await next()).toEqual({ kind: 'exited', agent: 'b', exit: { kind: 'code', code: 2 } });
  stop.abort();
});

test('an outage is lost once, and connected once', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf('a'));
  here.api.put(podOf('b'));
  const stop = new AbortController();
  const events: string[] = [];
  const read = (async () => {
    for await (const event of here.runtime.events(stop.signal))
      events.push(`${event.kind} ${'agent' in event ? event.agent : ''}`.trim());
  })();
  await here.api.called('watch');
  here.api.away(true);
  for (const pause of [200, 400, 800, 1_600, 3_200, 6_400, 12_800]) await here.clock.pass(pause);
  await here.clock.waits(15_000);
  expect(events).toEqual(['connected', 'lost']);
  here.api.remove('oj-a');
  here.api.away(false);
  await here.clock.pass(15_000);
  await expect.poll(() => events, { interval: 1 }).toEqual(['connected', 'lost', 'exited a', 'removed a', 'connected']);
  await expect(here.runtime.list(never)).resolves.toMatchObject([{ agent: 'b' }]);
  stop.abort();
  await read;
});

test('a pod that goes before anybody saw it end was deleted by somebody', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf('a'));
  const stop = new AbortController();
  const events: RuntimeEvent[] = [];
  void (async () => {
    for await (const event of here.runtime.events(stop.signal)) events.push(event);
  })();
  await here.api.called('watch');
  here.api.remove('oj-a');
  const exit = { kind: 'lost', reason: expect.stringMatching(/^Kubernetes ended it.*: somebody deleted its pod$/) };
  await expect
    .poll(() => events, { interval: 1 })
    .toEqual([{ kind: 'connected' }, { kind: 'exited', agent: 'a', exit }, { kind: 'removed', agent: 'a' }]);
  stop.abort();
});

test('the end of a log whose reader stalls is looked for', async () => {
  await using here = await fakedCluster();
  here.api.put(podOf(agent));
  const stop = new AbortController();
  const told: RuntimeEvent[] = [];
  void (async () => {
    for await (const event of here.runtime.events(stop.signal)) told.push(event);
  })();
  const logs = here.runtime.logs(agent, start, stop.signal)[Symbol.asyncIterator]();
  for (const marker of [readyMarker(agent), releasedMarker(agent)]) here.api.write(name, '2026-11-29T10:00:00Z', `${marker}\n`);
  await logs.next();
  const first = logs.next();
  await here.api.called('follow');
  here.api.write(name, '2026-11-29T10:00:01Z', 'one\n');
  await first;
  here.api.write(name, '2026-11-29T10:00:02Z', `\u001eonejob exited ${agent} 3\n`);
  for (let n = 0; n < 3; n += 1) await here.clock.pass(2_000);
  await expect.poll(() => told.at(-1), { interval: 1 }).toEqual({ kind: 'exited', agent, exit: { kind: 'code', code: 3 } });
  stop.abort();
});

test('the log of an agent that the watch has not seen yet has not ended', async () => {
  await using here = await fakedCluster();
  const opened = Promise.withResolvers<ServerResponse>();
  here.api.answer('watch', ({ reply }) => {
    reply.writeHead(200).flushHeaders();
    opened.resolve(reply);
  });
  await here.runtime.list(never);
  here.api.put(podOf(agent, 'pending'));
  const stop = new AbortController();
  const logs = here.runtime.logs(agent, start, stop.signal)[Symbol.asyncIterator]();
  const first = logs.next();
  const now = await Promise.race([first.then(() => 'it ended'), here.clock.waits(2_000).then(() => 'it waits')]);
  expect(now).toBe('it waits');
  const pod = podOf(agent);
  here.api.put(pod);
  here.api.write(name, '2026-11-29T10:00:01Z', 'one\n');
  (await opened.promise).write(`${JSON.stringify({ type: 'ADDED', object: pod })}\n`);
  expect((await first).done).toBe(false);
  stop.abort();
});

test('what doctor says of an API that is away, and of rights that are missing', async () => {
  await using here = await fakedCluster();
  here.api.always('review', ({ body, reply }) => {
    const { resource, subresource, verb } = body.spec.resourceAttributes;
    reply.end(JSON.stringify({ status: { allowed: !(verb === 'create' && resource === 'pods' && subresource === 'exec') } }));
  });
  const words = async () => (await here.runtime.check(never)).map((finding) => JSON.stringify(finding)).join('\n');
  expect(await words()).toContain('It may not create pods/exec in namespace ci.');
  here.api.always('version', { status: 401, message: 'Unauthorized' });
  expect(await words()).toContain('answered 401: Unauthorized.');
  here.api.always('version', ({ reply }) => void reply.end('<html>Sign in</html>'));
  expect(await words()).toContain('answered with something else: <html>Sign in</html>');
  here.api.away(true);
  expect(await words()).toMatch(/Cannot ask for the version with the Kubernetes API at /);
  expect(await words()).not.toContain(token);
});

test('a namespace that does not exist', async () => {
  await using here = await fakedCluster();
  const words = async () => (await here.runtime.check(never)).map((one) => `${one.level}: ${one.message} ${one.hint}`).join('\n');
  const message = 'namespaces "ci" not found';
  here.api.always('namespace', { status: 404, reason: 'NotFound', message });
  expect(await words()).toMatch(/^error: .*, but namespace ci does not exist\. Type "kubectl create namespace ci"/);
  expect(await words()).not.toContain('agents are in namespace');
  here.api.always('namespace', { status: 403, reason: 'Forbidden', message: 'namespaces "ci" is forbidden' });
  expect(await words()).toMatch(/^ok: .*; agents are in namespace ci\./);
  here.api.answer('create', { status: 404, reason: 'NotFound', message });
  expect(await preparing(here).failed).toMatchObject({
    code: 'E_ENGINE_FAILED',
    hint: expect.stringContaining('"kubectl create namespace ci"'),
  });
});

test('doctor of a pod warns of an address instead of the name of a Service', async () => {
  await using here = await fakedCluster();
  const client = new KubeClient({ ...here.api.access, from: podAccount }, here.clock);
  const warned = async (address: string | null) =>
    (await check({ name: 'cluster', address, client, avoided: [], networks: [] }, never)).filter(({ level }) => level !== 'ok');
  expect(await warned(null)).toEqual([]);
  expect(await warned('onejob:7443')).toEqual([]);
  expect(await warned('10.96.7.7:7443')).toMatchObject([{ level: 'warning', message: expect.stringContaining('10.96.7.7:7443') }]);
  client.close();
});
