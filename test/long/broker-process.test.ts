/** The broker as a process, with a manager at its socket and a service at a port. */
import { once } from 'node:events';
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterEach, expect, it } from 'vitest';
import type { BrokerEvent, Phase } from '../../src/ci/buildkite/broker/protocol.ts';
import { slotOffer } from '../../src/ci/buildkite/broker/testing.ts';
import { joinBroker, type Manager, postTo, serveAtPort } from '../../src/ci/buildkite/broker/testing-http.ts';
import { serviceToken, type TestService, testService } from '../../src/ci/buildkite/broker/testing-service.ts';
import { type Child, startChild } from '../support/child.ts';
import { scratch } from '../support/scratch.ts';

const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const clean of cleanups.splice(0).reverse()) await clean();
});

interface Stage {
  readonly dir: string;
  readonly socket: string;
  readonly service: TestService;
  readonly url: string;
  /** Starts a broker; resolves once it listens. */
  start(): Promise<Child>;
  join(): Promise<Manager>;
  offers(...offers: readonly (typeof slotOffer)[]): unknown;
}

async function stage(): Promise<Stage> {
  const folder = scratch();
  cleanups.push(() => folder[Symbol.dispose]());
  const service = testService();
  const server = await serveAtPort(service);
  cleanups.push(() => server[Symbol.asyncDispose]());
  const dir = join(folder.path, 'state');
  const socket = join(dir, 'broker', 'broker.sock');
  return {
    ...{ dir, socket, service, url: server.url },
    async start() {
      const child = startChild(program, ['broker', '--state-dir', dir, '--socket', socket], {
        cwd: folder.path,
        env: { PATH: process.env.PATH },
      });
      cleanups.push(() => child.kill());
      await child.says(/broker listens/);
      return child;
    },
    async join() {
      const manager = await joinBroker(socket);
      cleanups.push(() => manager.close());
      return manager;
    },
    offers: (...offers) => ({
      services: [{ name: 'bk', endpoint: server.url, token: serviceToken }],
      offers,
      complete: true,
    }),
  };
}

const inPhase = (phase: Phase) => (event: BrokerEvent) => event.kind === 'agent' && event.agent.phase === phase;
const agentOf = (event: BrokerEvent) => {
  if (event.kind !== 'agent') throw new Error(`no agent: ${event.kind}`);
  return event.agent;
};
const portOf = ({ events }: Manager) => {
  const [first] = events;
  return first?.kind === 'state' ? first.port : 0;
};

it('carries a job over a kill: the same port, the same agent, and the job ends with a reason', async () => {
  const { start, join, offers, service, dir } = await stage();
  const first = await start();
  const before = await join();
  service.add('job-1', { BUILDKITE_BRANCH: 'main' });
  await before.post('/v1/offers', offers(slotOffer));
  const { id } = agentOf(await before.until(inPhase('accepted')));
  const handed = await before.post(`/v1/agents/${id}/hand`, {
    agent: 'a1',
    trusted: true,
    secrets: [{ name: 'KEY', value: 'secret-canary' }],
  });
  expect(handed).toMatchObject({ status: 200, body: { token: expect.stringMatching(/^ojt_/), job: 'job-1' } });
  await first.kill();

  const second = await start();
  const after = await join();
  expect(portOf(after)).toBe(portOf(before));
  const [state] = after.events;
  expect(state).toMatchObject({
    kind: 'state',
    agents: expect.arrayContaining([expect.objectContaining({ id, phase: 'handed' })]),
  });
  expect(await after.post(`/v1/agents/${id}/hand`, { agent: 'a1', trusted: true, secrets: [] })).toEqual(handed);
  await after.post(`/v1/agents/${id}/end`, { reason: 'the sandbox is gone', signalReason: 'process_run_error' });
  await after.until((event) => inPhase('gone')(event) && agentOf(event).id === id);
  expect(service.jobs.get('job-1')).toMatchObject({
    state: 'finished',
    log: 'the sandbox is gone\r\n',
    finish: { exit_status: '-1', signal_reason: 'process_run_error' },
  });

  const files = readdirSync(`${dir}/broker`).map((name) => `${dir}/broker/${name}`);
  for (const file of files.filter((each) => !each.endsWith('.sock'))) {
    if (/key$|broker\.db/.test(file)) expect(statSync(file).mode & 0o077, file).toBe(0);
    expect(readFileSync(file, 'latin1')).not.toContain('canary');
  }
  expect(first.stderr + second.stderr).not.toContain('canary');
  expect(statSync(`${dir}/broker`).mode & 0o777).toBe(0o700);
});

it('answers an agent inside with what the service said, by tokens of its own', async () => {
  const { start, join, offers, service } = await stage();
  await start();
  const manager = await join();
  service.add('job-1');
  await manager.post('/v1/offers', offers(slotOffer));
  const { id } = agentOf(await manager.until(inPhase('accepted')));
  const { body } = await manager.post(`/v1/agents/${id}/hand`, { agent: 'a1', trusted: true, secrets: [] });
  const { token } = body as { token: string };
  const base = `http://127.0.0.1:${portOf(manager)}/v3`;
  const call = (method: string, path: string, with_: string) =>
    fetch(`${base}/${path}`, {
      method,
      headers: { Authorization: `Token ${with_}`, 'Content-Type': 'application/json' },
      ...(method !== 'GET' && { body: '{}' }),
    });
  const registered = (await (await call('POST', 'register', token)).json()) as { access_token: string };
  expect(registered.access_token).toMatch(/^ojs_/);
  expect((await call('POST', 'connect', registered.access_token)).status).toBe(200);
  await manager.until(inPhase('connected'));
  expect((await call('POST', 'register', token)).status).toBe(401);
  const given = (await (await call('PUT', 'jobs/job-1/accept', registered.access_token)).json()) as { token: string };
  expect(given.token).toMatch(/^ojj_/);
  expect((await call('PUT', 'jobs/job-1/start', given.token)).status).toBe(200);
  await manager.until(inPhase('running'));
  expect(service.jobs.get('job-1')?.state).toBe('running');
});

it('is one of its kind for a state directory', async () => {
  const { start, dir, socket } = await stage();
  const one = await start();
  const other = await startChild(program, ['broker', '--state-dir', dir, '--socket', socket], {
    cwd: dir,
    env: { PATH: process.env.PATH },
  }).ended;
  expect(other.code).toBe(1);
  expect(other.stderr).toContain(`Another broker (pid ${one.pid})`);
});

it('ends when it is told to, with its idle agents gone, and not by Ctrl-C', async () => {
  const { start, join, offers, service } = await stage();
  const child = await start();
  const manager = await join();
  await manager.post('/v1/offers', offers(slotOffer));
  await manager.until(inPhase('idle'));
  child.signal('SIGINT');
  child.signal('SIGHUP');
  await manager.post('/v1/offers', offers({ ...slotOffer, priority: 1 }));
  await manager.until(inPhase('gone'));
  child.signal('SIGTERM');
  expect((await child.ended).code).toBe(0);
  expect([...service.agents.values()].every(({ state }) => state === 'gone')).toBe(true);
});

it('goes on after SIGTERM until its last job is over', async () => {
  const { start, join, offers, service } = await stage();
  const child = await start();
  const manager = await join();
  service.add('job-1');
  await manager.post('/v1/offers', offers(slotOffer));
  const { id } = agentOf(await manager.until(inPhase('accepted')));
  await manager.post(`/v1/agents/${id}/hand`, { agent: 'a1', trusted: true, secrets: [] });
  child.signal('SIGTERM');
  await manager.until((event) => inPhase('gone')(event) && agentOf(event).job === null);
  expect(child.running).toBe(true);
  await manager.post(`/v1/agents/${id}/end`, { reason: 'lost', signalReason: 'agent_stop' });
  expect((await child.ended).code).toBe(0);
  expect(service.jobs.get('job-1')?.state).toBe('finished');
});

it('goes on after SIGTERM when another manager comes, and ends at once with the second', async () => {
  const { start, join, offers, service } = await stage();
  const child = await start();
  const before = await join();
  service.add('job-1');
  await before.post('/v1/offers', offers(slotOffer));
  const { id } = agentOf(await before.until(inPhase('accepted')));
  await before.post(`/v1/agents/${id}/hand`, { agent: 'a1', trusted: true, secrets: [] });
  child.signal('SIGTERM');
  await child.says(/broker leaves/);
  before.close();
  const after = await join();
  await after.post('/v1/offers', offers(slotOffer, { ...slotOffer, slot: 'gpu/1', name: 'host-gpu-1' }));
  await after.until((event) => inPhase('idle')(event) && agentOf(event).slot === 'gpu/1');
  expect(child.running).toBe(true);
  child.signal('SIGTERM');
  expect((await child.ended).code).toBe(0);
  expect(service.jobs.get('job-1')?.state).toBe('accepted');
});

it('takes another port when its own was taken, as long as no agent knows it', { timeout: 40_000 }, async () => {
  const { start, join, socket } = await stage();
  const child = await start();
  const port = portOf(await join());
  await child.kill();
  const thief = createServer().listen(port, '127.0.0.1');
  await once(thief, 'listening');
  cleanups.push(() => thief.close());
  await start();
  const again = await join();
  expect(portOf(again)).not.toBe((thief.address() as AddressInfo).port);
  expect(await postTo(socket, '/v1/listen', { address: '127.0.0.2' })).toEqual({ status: 200, body: { port: portOf(again) } });
  await expect
    .poll(() =>
      fetch(`http://127.0.0.2:${portOf(again)}/v3/ping`).then(
        ({ status }) => status,
        () => null,
      ),
    )
    .toBe(401);
});

it('says what it does not understand, without repeating it', async () => {
  const { start, socket } = await stage();
  await start();
  const wrong = await postTo(socket, '/v1/offers', { services: [{ name: 'bk', endpoint: 1, token: 'bkct_canary' }], offers: [] });
  expect(wrong).toMatchObject({ status: 400, body: { code: 'E_API_REQUEST', retry: false } });
  expect(JSON.stringify(wrong.body)).not.toContain('canary');
  expect(await postTo(socket, '/v1/agents/none/hand', { agent: 'a1', trusted: true, secrets: [] })).toMatchObject({
    status: 404,
    body: { code: 'E_AGENT_UNKNOWN' },
  });
  expect(await postTo(socket, '/v1/agents/none/end', { reason: '', signalReason: 'agent_stop' })).toEqual({
    status: 200,
    body: {},
  });
  expect((await postTo(socket, '/v1/nothing', {})).status).toBe(404);
});
