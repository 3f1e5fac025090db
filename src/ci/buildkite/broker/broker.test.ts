/** The broker put together, at its socket and its port, in time that is moved by hand. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { ClientRequest } from 'node:http';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { scratch } from '../../../../test/support/scratch.ts';
import { noProxies } from '../../../config/proxies.ts';
import { handClock } from '../../../core/testing.ts';
import { type Broker, startBroker } from './broker.ts';
import type { BrokerEvent, Phase } from './protocol.ts';
import { keptLog, slotOffer } from './testing.ts';
import { joinBroker, type Manager, serveAtPort } from './testing-http.ts';
import { serviceToken, testService } from './testing-service.ts';

/** Calls to `url` that were begun in this process and are not over. */
function underWay(url: string): ReadonlySet<ClientRequest> {
  const calls = new Set<ClientRequest>();
  const begun = (message: unknown): void => {
    const { request } = message as { request: ClientRequest };
    if (request.getHeader('host') !== new URL(url).host) return;
    calls.add(request);
    request.once('close', () => calls.delete(request));
  };
  subscribe('http.client.request.start', begun);
  onTestFinished(() => void unsubscribe('http.client.request.start', begun));
  return calls;
}

async function stage() {
  const folder = scratch();
  onTestFinished(() => folder[Symbol.dispose]());
  const service = testService();
  service.intervals = { ping: 1, status: 1, heartbeat: 60 };
  const server = await serveAtPort(service);
  onTestFinished(() => server[Symbol.asyncDispose]());
  const calls = underWay(server.url);
  const clock = handClock();
  const log = keptLog();
  const socket = join(folder.path, 'b.sock');
  const host = { hostname: 'host', os: 'linux', arch: 'amd64', machineId: 'm', pid: 1 };
  const broker: Broker = await startBroker({
    stateDir: folder.path,
    socket,
    version: '0.0.0',
    clock,
    proxies: noProxies,
    log,
    host,
    random: () => 0,
  });
  onTestFinished(() => {
    broker.stop();
    return broker.ended;
  });
  const manager = async (): Promise<Manager> => {
    const joined = await joinBroker(socket);
    onTestFinished(() => joined.close());
    return joined;
  };
  /** Moves time until `what` holds, by `ms` at most. It stands still while the service is asked, which takes real time. */
  const passUntil = async (what: () => boolean, ms: number): Promise<void> => {
    for (let left = ms; !what() && left >= 0; left -= 1_000) {
      clock.advance(1_000);
      do await new Promise((resolve) => setTimeout(resolve, 2));
      while (calls.size > 0);
    }
    // What follows from it, such as an event on its way to the manager, needs no more of that time.
    await expect.poll(what, { message: `it did not happen within ${ms} ms` }).toBe(true);
  };
  const pass = async (ms: number): Promise<void> => {
    const until = clock.now() + ms;
    await passUntil(() => clock.now() >= until, ms);
  };
  const offers = (...slots: readonly string[]) => ({
    services: [{ name: 'bk', endpoint: server.url, token: serviceToken }],
    offers: slots.map((slot) => ({ ...slotOffer, slot, name: slot.replace('/', '-') })),
    complete: true,
  });
  return { service, log, broker, manager, pass, passUntil, offers };
}

const last = ({ events }: Manager, fits: (event: BrokerEvent & { kind: 'agent' }) => boolean): Phase | null => {
  const found = events.findLast((event) => event.kind === 'agent' && fits(event));
  return found?.kind === 'agent' ? found.agent.phase : null;
};

async function withJob() {
  const made = await stage();
  const one = await made.manager();
  made.service.add('job-1');
  await one.post('/v1/offers', made.offers('gpu/0'));
  const accepted = await one.until((event) => event.kind === 'agent' && event.agent.phase === 'accepted');
  const id = accepted.kind === 'agent' ? accepted.agent.id : '';
  const handed = await one.post(`/v1/agents/${id}/hand`, { agent: 'a1', trusted: true, secrets: [] });
  return { ...made, one, id, token: (handed.body as { token: string }).token };
}

it('takes an agent inside for alive as long as its heart beats, and for lost five minutes later', { timeout: 60_000 }, async () => {
  const { one, id, token, service, pass, passUntil } = await withJob();
  const [state] = one.events;
  const base = `http://127.0.0.1:${state?.kind === 'state' ? state.port : 0}/v3`;
  const call = (method: string, path: string, as: string) =>
    fetch(`${base}/${path}`, {
      method,
      headers: { Authorization: `Token ${as}`, ...(method !== 'GET' && { 'Content-Type': 'application/json' }) },
      ...(method !== 'GET' && { body: '{}' }),
    });
  const session = ((await (await call('POST', 'register', token)).json()) as { access_token: string }).access_token;
  await call('POST', 'connect', session);
  const job = ((await (await call('PUT', 'jobs/job-1/accept', session)).json()) as { token: string }).token;
  expect((await call('PUT', 'jobs/job-1/start', job)).status).toBe(200);
  expect((await call('POST', 'heartbeat', session)).status).toBe(200);
  for (let at = 0; at < 4; at += 1) {
    await pass(200_000);
    expect((await call('POST', 'heartbeat', session)).status).toBe(200);
  }
  expect(last(one, ({ agent }) => agent.id === id)).toBe('running');
  // Of these a job can make as many as it likes.
  await pass(200_000);
  await call('GET', 'jobs/job-1', job);
  await call('GET', 'nothing', job);
  await pass(80_000);
  expect(service.jobs.get('job-1')?.state).toBe('running');
  await passUntil(() => last(one, ({ agent }) => agent.id === id) === 'gone', 60_000);
  expect(service.jobs.get('job-1')).toMatchObject({ state: 'finished', finish: { signal_reason: 'process_run_error' } });
});

it('that was told to leave goes on with the next manager, and says both', { timeout: 60_000 }, async () => {
  const { one, log, manager, offers, pass, passUntil, broker, service, id } = await withJob();
  await one.post('/v1/leave', {});
  // Its own stream is open still, and keeps nobody.
  await one.post('/v1/offers', offers('gpu/0', 'gpu/1'));
  await pass(30_000);
  expect(last(one, ({ agent }) => agent.slot === 'gpu/1')).toBeNull();
  one.close();
  const two = await manager();
  await two.post('/v1/offers', offers('gpu/0', 'gpu/1'));
  await passUntil(() => last(two, ({ agent }) => agent.slot === 'gpu/1') === 'idle', 5_000);
  await pass(30_000);
  expect(log.lines.map(({ event }) => event)).toEqual(
    expect.arrayContaining(['broker leaves', 'broker goes on for a new manager']),
  );
  await two.post('/v1/leave', {});
  await two.post(`/v1/agents/${id}/end`, { reason: 'the sandbox is gone', signalReason: 'process_run_error' });
  two.close();
  let isOver = false;
  void broker.ended.then(() => {
    isOver = true;
  });
  await passUntil(() => isOver, 20_000);
  expect(service.jobs.get('job-1')?.state).toBe('finished');
});
